"""Arguments of the wrong type or out of range are refused in one sentence that names them."""

import inspect
import re
from typing import Annotated

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import anyk
from anyk import clusters, codes, compression, delays, optimizers, problems, strategies
from anyk.base.checks import AtLeastOne, Share, check_value
from anyk.base.errors import BadInput, RunFailed, describe_error
from anyk.base.html import html_table
from anyk.clusters.messages import describe

RANGES = {"AtLeastOne": 1, "AtLeastZero": 1, "Positive": 0.5, "Nonnegative": 0.5, "Share": 0.5, "Cost": 0.5,
          "Seconds": 1, "SecondsOrZero": 0.5}  # fmt: skip
PLAIN = {"int": 1, "float": 0.5, "bool": False, "str": "sync", "File": "sync"} | RANGES
GIVEN = {
    "loss": lambda outputs, targets: outputs,
    "X": np.eye(4),
    "y": [0, 1, 0, 1],
    "code": codes.Uncoded(6),
    "latency": delays.NoDelay(),
    "weights": (1.0,),
}
NUMBERS = re.compile(rf"(int|float|{'|'.join(RANGES)}|Annotated\[(int|float), .*\])( \| None)?")
INTERNAL = {"DelayStream", "Durations", "LinearPartitions", "Messages", "TorchPartitions", "Decoding", "Selection",
            "Fit", "InFlight", "KnownRounds", "Outage", "Scaling", "TimeTable", "Tolerance", "Waiting"}  # fmt: skip


def test_a_misspelt_argument_is_answered_with_the_nearest():
    problem = problems.from_data("synthetic:rows=30,features=2")
    with pytest.raises(TypeError, match=r"train\(\) has no argument 'stepz'; did you mean 'steps'\?"):
        anyk.train(problem, "uncoded", stepz=2)
    with pytest.raises(TypeError, match=r"FractionalRepetition\(\) has no argument 'lod'; did you mean 'load'\?"):
        codes.FractionalRepetition(6, lod=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'xyz'"):
        anyk.train(problem, "uncoded", xyz=2)


def test_arrays_as_a_problem_are_answered_with_what_to_pass():
    with pytest.raises(
        BadInput, match=r"as in LogisticRegression\(X, y\), got data \(ndarray of shape \(5, 2\)\); make a"
    ):
        anyk.train(np.zeros((5, 2)), np.ones(5), steps=2)


def numbers():
    """Every parameter of a public class that is to be a number."""
    for room in (codes, compression, delays, optimizers, problems, strategies, clusters):
        for name in set(room.__all__) - INTERNAL:
            build = getattr(room, name)
            if (
                inspect.isclass(build)
                and build.__init__ not in (object.__init__, dict.__init__)
                and not inspect.isabstract(build)
            ):
                for key, parameter in inspect.signature(build).parameters.items():
                    if NUMBERS.fullmatch(str(parameter.annotation)):
                        yield pytest.param(build, key, id=f"{name}.{key}")


@pytest.mark.parametrize(("made", "key"), sorted(numbers(), key=lambda one: one.id))
def test_a_number_must_be_a_number(made, key):
    if made.__name__ in ("JaxProblem", "TorchProblem"):
        pytest.importorskip(made.__name__.removesuffix("Problem").lower())
    required = {
        name: 1
        if "Annotated[" in str(parameter.annotation)
        else PLAIN.get(str(parameter.annotation), GIVEN.get(name, ()))
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    if "module" in required:
        required["module"] = pytest.importorskip("torch").nn.Linear(4, 1)
    for bad, quoted in (("4", "'4'"), (True, "True"), (float("nan"), "nan"), ([4], "[4]")):
        with pytest.raises(BadInput) as caught:
            made(**required | {key: bad})
        sentence = str(caught.value)
        assert sentence.startswith(f"{key.rstrip('_')} must be a ") and sentence.endswith(f"got {quoted}")


def test_a_number_must_be_in_its_range():
    tenths = Annotated[float, msgspec.Meta(ge=0, lt=1)]
    for value, annotation, words in (
        (0, AtLeastOne, "a whole number of at least 1"),
        (2, Share | None, "a number from 0 to 1 or None"),
        (1.0, tenths, "a number of at least 0 and below 1"),
        ((3, 0), tuple[AtLeastOne, ...], "a tuple of whole numbers of at least 1"),
    ):
        with pytest.raises(anyk.BadInput, match=f"^load must be {words}, got "):
            check_value(value, annotation, "load")
    assert check_value(np.int64(1), AtLeastOne, "load") == 1 and check_value(0, tenths, "load") == 0.0


def test_numbers_of_numpy_are_numbers():
    assert check_value(np.int64(4), int, "n") == 4 and type(check_value(np.int64(4), int, "n")) is int
    assert type(check_value(np.float32(0.5), float, "x")) is float
    assert codes.FractionalRepetition(np.int32(6), load=np.uint8(2)).spec == "frc:load=2"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: delays.Exponential(1e308), "mean must be a number above 0 and of at most 1e+09, got 1e+308"),
        (
            lambda: delays.Pareto(1.0, 0.01),
            "alpha must be a number from 0.1 to 1e+09, got 0.01",
        ),
        (lambda: clusters.cluster("simulated:cores=0", workers=4), "cores must be a whole number of at least 1, got 0"),
        (
            lambda: clusters.cluster("simulated:task=-1", workers=4),
            "task must be a number from 0 to 1e+09, got -1.0",
        ),
        (lambda: clusters.Simulated(4, seed="x"), "seed must be a whole number, got 'x'"),
        (lambda: clusters.Simulated(4, byzantine=["1"]), "byzantine must be a tuple of whole numbers, got ['1']"),
        (
            lambda: strategies.KFamily(4, kind="sync"),
            "kind must be async, k-sync, k-async, k-batch-async or k-batch-sync, got 'sync'",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, sentence):
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == sentence


def problem(**keys):
    return problems.LogisticRegression(np.arange(24.0).reshape(12, 2) % 5, [0, 1] * 6, **keys)


FLEET = {"workers": 4, "delays": "exp:mean=0.1", "seed": 3}


def test_train_takes_specs_and_objects_alike():
    law, code = delays.Exponential(0.1), anyk.code("frc:load=2", workers=4)
    runs = [
        anyk.train(problem(), "frc:load=2", "simulated", **FLEET, communication="constant:1", steps=3),
        anyk.train(problem(), code, "simulated", delays=law, seed=3, communication=delays.Constant(1), steps=3),
        anyk.train(problem(), anyk.strategy(code), clusters.Simulated(4, delays="exp:mean=0.1", seed=3,
                   communication="constant:1"), steps=3),
    ]  # fmt: skip
    assert len({run.seconds for run in runs}) == 1 and len({run.model.tobytes() for run in runs}) == 1
    assert all(replace(run.config, begin=None) == replace(runs[0].config, begin=None) for run in runs)


def test_where_nobody_says_python_and_command_line_use_the_same(tmp_path):
    from click.testing import CliRunner

    from anyk.cli import main

    spec = "synthetic:rows=60,features=4"
    words = ["train", "--data", spec, "--cluster", "simulated", "--steps", "2", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(main, [*words, "--workers", "5"]).exit_code == 0
    theirs = anyk.Run.open(tmp_path / "run").config
    ours = anyk.train(problems.from_data(spec), "uncoded", "simulated", workers=5, steps=2).config
    for key in ("optimizer", "lr", "workers", "delays", "communication", "seed", "cluster"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert ours.optimizer.startswith("nesterov") and float(ours.lr) == pytest.approx(
        1 / problems.from_data(spec).smoothness(), rel=0.01
    )


@pytest.mark.parametrize(
    ("arguments", "keys", "sentence"),
    [
        (("frc:load=2", problem, "simulated"), {}, "problem must be one of anyk.problems, as in LogisticRegression(X, y), got 'frc:load=2'"),
        ((None, "uncoded", "simulated"), {}, "problem must be one of anyk.problems, as in LogisticRegression(X, y), got None"),
        ((problem, None, "simulated"), {}, "strategy must be a spec such as 'frc:load=3', a strategy or a code, got None"),
        ((problem, "uncoded", None), {}, "cluster must be a Cluster or a string, got None"),
        ((problem, "simulated", "uncoded"), {}, "no cluster 'uncoded'; it is a strategy; known: processes, mpi, nodes, ray, simulated"),
        ((problem, "uncoded", clusters.Simulated(4)), {"delays": "exp:mean=1"}, "the cluster already exists; give delays when it is created, as in anyk.cluster(…, delays=…)"),
        ((problem, codes.Uncoded(3), clusters.Simulated(4)), {}, "the strategy is for 3 workers, the cluster has 4"),
        ((problem, "uncoded", "simulated"), {"workers": "4"}, "workers must be a whole number, a tuple of whole numbers, a Workers or None, got '4'"),
        ((problem, "uncoded", "simulated"), {"seed": "x"}, "seed must be a whole number or None, got 'x'"),
        ((problem, "uncoded", "simulated"), {"steps": True}, "steps must be a whole number or None, got True"),
        ((problem, "uncoded", "simulated"), {"target": 0.9}, "a target is a value of the metric, auc, which needs held-out data (X_test and y_test); without them, give steps or seconds"),
        ((problem, "uncoded", "simulated"), {"evaluate": "every=0"}, "every must be a whole number of at least 1 or None, got 0"),
        ((problem, "uncoded", "simulated"), {"evaluate": "evry=3"}, "evaluation 'evaluate' has no key 'evry'; did you mean 'every'?"),
        ((problem, "uncoded", "simulated"), {"evaluate": 3}, "evaluate must be an Evaluate, a string or None, got 3"),
        ((problem, "uncoded", "simulated"), {"optimizer": 0.1}, "optimizer must be an Optimizer, a string or None, got 0.1"),
        ((problem, "uncoded", "simulated"), {"delays": 1.0}, "delays must be a DelayModel, a string or None, got 1.0"),
    ],
)  # fmt: skip
def test_what_train_cannot_take_is_said_in_one_sentence(arguments, keys, sentence):
    values = tuple(problem() if one is problem else one for one in arguments)
    with pytest.raises(BadInput) as caught:
        anyk.train(*values, **({"workers": 4} if values[2] == "simulated" else {}) | keys)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: anyk.rounds(None, "uncoded", clusters.Simulated(4)), "problem must be one of anyk.problems, .* got None"),
        (lambda: anyk.rounds(problem(), "uncoded", "simulated"), "cluster must be a Cluster, got 'simulated'"),
        (lambda: anyk.rounds(problem(), codes.Uncoded(3), clusters.Simulated(4)), "is for 3 workers, the cluster has 4"),
        (lambda: anyk.train_many(problem(), "uncoded", clusters.Simulated(4)), "problems must be a list of problems, .* got <"),
        (lambda: anyk.train_many("ab", "uncoded", clusters.Simulated(4)), "problem must be one of anyk.problems, .* got 'a'"),
        (lambda: anyk.Run.open(None), "path must be a string or a Path, got None"),
        (lambda: anyk.Race.open(3), "path must be a string or a Path, got 3"),
        (lambda: clusters.Processes(10**12), "workers must be 1 to 1,000,000, got 1000000000000"),
    ],
)  # fmt: skip
def test_what_the_cousins_of_train_cannot_take_is_said_too(call, sentence):
    with pytest.raises(BadInput, match=sentence):
        call()


def test_a_loop_of_ones_own_takes_a_code():
    loop = anyk.rounds(problem(), codes.Uncoded(4), clusters.Simulated(4), steps=2)
    for step in loop:
        step.model -= 0.1 * step.gradient
    assert loop.run.config.strategy == "uncoded"


def test_the_text_of_a_number_is_no_learning_rate():
    for bad in ("0.1", None, True, float("nan")):
        with pytest.raises(BadInput, match="^lr must be a number"):
            optimizers.Nesterov(lr=bad)
    assert optimizers.optimizer("nesterov", lr="0.1") == optimizers.Nesterov(lr=0.1)
    assert optimizers.GD(lr="exponential:start=1,decay=0.5").rate.at(1) == 0.5


def test_what_is_shown_of_things_says_what_they_are():
    objective = problem(X_test=np.eye(2), y_test=[0, 1])
    run = anyk.train(objective, "frc:load=2", "simulated", **FLEET, steps=3)
    race = anyk.race(objective, ["uncoded", "async"], workers=4, cluster="simulated", delays="exp:mean=1", steps=3)
    displays = {
        "<Run frc:load=2 on 4 workers, simulated: 3 steps in ": run,
        "<Race uncoded, async: 2 of 2 runs>": race,
        "<LogisticRegression: 12 rows, 2 parameters, metric auc>": objective,
        "<Simulated simulated: 4 workers, delays exp:mean=1, communication none, seed 0>": clusters.Simulated(4, delays="exp:mean=1"),
        "<Rounds uncoded:wait=2, 4 workers>": anyk.strategy("k-sync:k=2", workers=4),
        "<KFamily async, 4 workers>": anyk.strategy("async", workers=4),
        "FractionalRepetition(workers=4, load=2": anyk.code("frc:load=2", workers=4),
        "Exponential(": delays.parse("exp:mean=1"),
    }  # fmt: skip
    for start, thing in displays.items():
        assert repr(thing).startswith(start), repr(thing)
    for spec in ("dpsgd", "ad-psgd", "gc:stragglers=1", "nested", "tree", "compressed", "fedbuff", "pasgd"):
        assert f", {6} workers>" in repr(anyk.strategy(spec, workers=6)) and " at 0x" not in repr(
            anyk.strategy(spec, workers=6)
        )
    for thing, parts in (
        (run, ["frc:load=2", "<polyline"]),
        (race, ["async", "<polyline"]),
        (anyk.code("frc:load=2", workers=4), ["tolerates", "<rect"]),
        (clusters.Simulated(4, delays="exp:mean=1"), ["simulated", "exp:mean=1"]),
    ):
        markup = thing._repr_html_()
        assert markup.startswith("<table>") and all(piece in markup for piece in parts)
    assert "<b>" not in html_table(["<b>"], [["<b>"]])
    run.close()
    assert repr(run).startswith("<Run frc:load=2 on 4 workers, simulated")


def test_errors_of_a_users_code_are_told_with_their_line():
    def caught(call):
        with pytest.raises(Exception) as failure:
            call()
        return failure.value

    assert re.fullmatch(r"KeyError: 'x' \(test_checks\.py, line \d+\)", describe_error(caught(lambda: {}["x"])))
    assert re.fullmatch(
        r"ValueError: .* \(test_checks\.py, line \d+\)", describe_error(caught(lambda: np.zeros(2).reshape(3)))
    )
    # not of what came compiled, of a distribution's packages, or of a string
    assert re.fullmatch(
        r"ValueError: .* \(test_checks\.py, line \d+\)",
        describe_error(caught(lambda: np.random.default_rng(0).integers(0))),
    )
    for file in ("/usr/lib/python3/dist-packages/other/functional.py", "<string>"):
        code = compile("1 / 0", file, "exec")
        assert re.fullmatch(
            r"ZeroDivisionError: .* \(test_checks\.py, line \d+\)", describe_error(caught(lambda code=code: exec(code)))
        )
    assert (
        describe_error(RunFailed("item 3 cannot be read"))
        == describe(RunFailed("item 3 cannot be read"))
        == "item 3 cannot be read"
    )
    assert describe(BadInput("too few")) == "BadInput: too few"  # which ends the run at once
