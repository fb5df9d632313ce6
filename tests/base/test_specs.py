"""Specs: the grammar, what each mistake is answered with, typed values, and the way there and back for every name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk import codes, delays, optimizers, strategies
from anyk.base.errors import BadInput
from anyk.base.registries import Registry
from anyk.base.specs import parse_spec, read, show_spec

pytestmark = pytest.mark.in_process

floats = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(1e-300, 1e9)


@dataclass(frozen=True)
class Probe:
    """Everything a spec can hold.

    More than the first line is not for lists.
    """

    workers: int
    whole: int = 1
    real: float = 0.5
    flag: bool = False
    parts: tuple[float, ...] = ()
    mode: Literal["slow", "fast"] = "slow"
    maybe: int | None = 3
    either: int | float = 0
    text: str = "x"


def build_needy(workers: int, *, load: int, wait: str | None = None) -> tuple[int, int, str | None]:
    """Has a key that must be given."""
    return workers, load, wait


def build_bare(workers: int) -> int:
    """Takes no key."""
    return workers


@pytest.fixture
def registry() -> Registry[Any]:
    registry: Registry[Any] = Registry("thing", supplied=("workers",))
    registry.register("probe")(Probe)
    registry.register("needy")(build_needy)
    registry.register("bare")(build_bare)
    return registry


# ------------------------------------------------------------------------------------------- grammar


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("frc", "frc", {}),
        ("frc:", "frc", {}),
        (" frc : load = 3 , wait= 11 ", "frc", {"load": "3", "wait": "11"}),
        ("trace:a/b.npz", "trace", {"": "a/b.npz"}),
        ("trace:b.csv,by=round", "trace", {"": "b.csv", "by": "round"}),
        ("frc:wait=5%|0.5s&3", "frc", {"wait": "5%|0.5s&3"}),
        ("trace:file=C:/x=1.csv", "trace", {"file": "C:/x=1.csv"}),
        ("x:two-words=1", "x", {"two_words": "1"}),
    ],
)
def test_a_spec_is_split_into_name_and_keys(text: str, name: str, values: dict[str, str]) -> None:
    assert parse_spec(text) == (name, values)


@pytest.mark.parametrize("text", ["", "   ", None, 3])
def test_what_is_no_spec_is_told_what_one_looks_like(text: Any) -> None:
    with pytest.raises(BadInput, match=r"a spec looks like name:key=value,key=value, got "):
        parse_spec(text)


@pytest.mark.parametrize(
    ("text", "item"),
    [("frc:load=", "load="), ("frc:load=3,11", "11"), ("frc:load=3,", ""), ("frc:load=3,,wait=2", ""), ("x:=3", "=3")],
)
def test_a_broken_item_is_shown_with_the_rule(text: str, item: str) -> None:
    with pytest.raises(BadInput, match=rf"'{item}' in '{text}' should be key=value, as in name:key=value,key=value"):
        parse_spec(text)


@pytest.mark.parametrize("text", ["frc:load=3,load=4", "frc:load=3,load=3", "frc:two-words=1,two_words=2"])
def test_a_doubled_key_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=rf"is given twice in '{text}'; keep one"):
        parse_spec(text)


def test_a_first_value_and_its_key_may_not_both_be_given(registry: Registry[Any]) -> None:
    with pytest.raises(BadInput, match="'load' is given twice in 'needy:3,load=4'; keep one"):
        registry.build("needy:3,load=4", workers=2)


# ------------------------------------------------------------------------------------------- registries


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("prob", "did you mean 'probe'?"),
        ("nedy", "did you mean 'needy'?"),
        ("zzz", "known: probe, needy, bare"),
        ("frc", "it is a strategy; known: probe, needy, bare"),
        ("adam", "it is an optimizer; known: probe, needy, bare"),
        ("proces", "known: probe, needy, bare"),  # it resembles a cluster more than "probe"
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(registry: Registry[Any], name: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        registry.build(f"{name}:load=3", workers=2)
    assert str(caught.value) == f"no thing '{name}'; {hint}"


def test_an_unknown_key_is_answered_with_the_nearest(registry: Registry[Any]) -> None:
    with pytest.raises(BadInput, match=r"thing 'needy' has no key 'laod'; did you mean 'load'\?"):
        registry.build("needy:laod=3", workers=2)
    with pytest.raises(BadInput, match=r"thing 'needy' has no key 'xyz'; its keys: load, wait$"):
        registry.build("needy:xyz=3", workers=2)
    with pytest.raises(BadInput, match=r"thing 'bare' has no key 'load'; its keys: none$"):
        registry.build("bare:load=3", workers=2)
    with pytest.raises(BadInput, match=r"thing 'bare' takes no value, got '3' in 'bare:3'"):
        registry.build("bare:3", workers=2)


def test_what_the_caller_supplies_is_no_key(registry: Registry[Any]) -> None:
    with pytest.raises(BadInput, match="thing 'needy' has no key 'workers'"):
        registry.build("needy:workers=3,load=1", workers=2)


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("frc:load=3", ["frc:load=2", "frc:load=5", "9 workers", "12 workers"]),
        ("agc:load=3,wait=5", ["agc:load=2,wait=5", "agc:load=5,wait=5", "9 workers", "12 workers"]),
        ("bibd:load=3", ["7 workers"]),
        ("k-sync:k=20", ["k-sync:k=10", "20 workers"]),
        ("tree:children=3", ["tree:children=10", "3 workers", "12 workers"]),
        ("m-sgc:B=1,W=2,lambda=40", ["m-sgc:B=1,W=2,lambda=10"]),
        ("compressed:of=(frc:load=3)", ["9 workers", "12 workers"]),
    ],
)
def test_a_spec_that_does_not_fit_gets_the_nearest_that_do(spec: str, near: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        strategies.strategy(spec, workers=10)
    _, _, nearest = str(caught.value).rpartition("; nearest: ")
    *specs, counts = nearest.split(", or ") if "workers" in nearest else (nearest, "")
    alternatives = specs[0].split(", ") if specs and specs[0] else []
    alternatives += [f"{count} workers" for count in counts.removesuffix(" workers").split(" or ") if count]
    assert alternatives == near
    for alternative in alternatives:
        count = alternative.removesuffix(" workers")
        asked = (spec, int(count)) if count.isdigit() else (alternative, 10)
        assert strategies.strategy(asked[0], workers=asked[1]).layout.workers == asked[1]


@pytest.mark.parametrize("spec", ["frc:load=three", "frc:lod=3", "frc:load=2,stragglers=1", "frc:load=2,wait=x"])
def test_a_spec_that_fits_no_workers_gets_no_suggestion(spec: str) -> None:
    with pytest.raises(BadInput) as caught:
        strategies.strategy(spec, workers=10)
    assert "nearest" not in str(caught.value)


def test_a_missing_key_is_answered_with_the_usage(registry: Registry[Any]) -> None:
    with pytest.raises(BadInput, match=r"thing 'needy' needs load=…, as in needy:load=…,wait=…$"):
        registry.build("needy:wait=3", workers=2)


def test_usage_and_summary(registry: Registry[Any]) -> None:
    entry = registry.entry("probe")
    assert entry.summary == "Everything a spec can hold."
    assert entry.usage() == "probe:whole=1,real=0.5,flag=false,parts=,mode=slow,maybe=3,either=0,text=x"
    assert registry.entry("bare").usage() == "bare"
    assert "probe" in registry and "prob" not in registry
    assert [entry.name for entry in registry] == ["probe", "needy", "bare"]


def test_every_known_thing_has_a_summary_and_says_its_keys() -> None:
    for registry in (codes.registry, delays.registry, optimizers.registry, optimizers.schedules, strategies.registry):
        for entry in registry:
            assert entry.summary.endswith("."), entry.name
            assert all(f"{key.rstrip('_')}=" in entry.usage() for key in entry.parameters()), entry.name


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: strategies.strategy("asinc", workers=4), "no strategy 'asinc'; did you mean 'async'?"),
        (lambda: strategies.strategy("uncodd", workers=4), "no strategy 'uncodd'; did you mean 'uncoded'?"),
        (lambda: strategies.strategy("frc:laod=2", workers=4), "code 'frc' has no key 'laod'; did you mean 'load'?"),
        (
            lambda: strategies.strategy("frc:2", workers=4),
            "'2' in 'frc:2' should be key=value, as in name:key=value,key=value",
        ),
        (
            lambda: strategies.strategy("frc:scaling=mean", workers=4),
            "scaling in 'frc:scaling=mean' should be one of none, marginal, conditional, got 'mean'",
        ),
        (lambda: codes.code("cycic", workers=4), "no code 'cycic'; did you mean 'cyclic'?"),
        (
            lambda: codes.code("frc:wait=2", workers=4),
            "code 'frc' has no key 'wait'; its keys: load, stragglers, partitions",
        ),
        (
            lambda: delays.parse("runs/times.csv"),
            "no delay model 'runs/times.csv'; to replay the times in that file, give trace:runs/times.csv",
        ),
        (lambda: delays.parse("expo:mean=1"), "no delay model 'expo'; did you mean 'exp'?"),
        (
            lambda: delays.parse("exp"),
            "delay model 'exp' needs mean=…, as in exp:mean=…,by=task,per=task,uninterruptible=false",
        ),
        (lambda: delays.parse("exp:mean=fast"), "mean in 'exp:mean=fast' should be a number, got 'fast'"),
        (lambda: delays.parse("exp:mean=nan"), "mean in 'exp:mean=nan' should be a number, got 'nan'"),
        (
            lambda: delays.parse("exp:mean=1,by=day"),
            "by in 'exp:mean=1,by=day' should be one of task, round, item, got 'day'",
        ),
        (lambda: optimizers.optimizer("nestrov", lr=1), "no optimizer 'nestrov'; did you mean 'nesterov'?"),
        (
            lambda: optimizers.learning_rate("exponental:start=1,decay=1"),
            "no learning-rate schedule 'exponental'; did you mean 'exponential'?",
        ),
    ],
)
def test_typos_are_answered_by_name(build: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        build()
    assert str(caught.value).endswith(sentence) or str(caught.value).startswith(sentence)


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", int, 3),
        ("-3", int, -3),
        ("3", float, 3.0),
        ("1e-3", float, 0.001),
        ("inf", float, math.inf),
        ("TRUE", bool, True),
        ("yes", bool, True),
        ("No", bool, False),
        ("0.1/2/3e1", tuple[float, ...], (0.1, 2.0, 30.0)),
        ("7", tuple[int, ...], (7,)),
        ("fast", Literal["slow", "fast"], "fast"),
        ("none", int | None, None),
        ("None", str | None, None),
        ("4", int | None, 4),
        ("4", int | float, 4),
        ("4.5", int | float, 4.5),
        ("none", str, "none"),
        ("11", str | None, "11"),
    ],
)
def test_values_are_read_as_annotated(text: str, annotation: Any, value: Any) -> None:
    got = read(text, annotation, "key in 'spec'")
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation", "sentence"),
    [
        ("3.5", int, "key in 'spec' should be a whole number, got '3.5'"),
        ("three", int, "key in 'spec' should be a whole number, got 'three'"),
        ("none", int, "key in 'spec' should be a whole number, got 'none'"),
        ("three", float, "key in 'spec' should be a number, got 'three'"),
        ("nan", float, "key in 'spec' should be a number, got 'nan'"),
        ("1", bool, "key in 'spec' should be true or false, got '1'"),
        ("1//2", tuple[float, ...], "key in 'spec' should be a number, got ''"),
        ("Fast", Literal["slow", "fast"], "key in 'spec' should be one of slow, fast, got 'Fast'"),
        ("x", int | None, "key in 'spec' should be a whole number, got 'x'"),
        ("x", int | float, "key in 'spec' should be a number, got 'x'"),
    ],
)
def test_values_of_the_wrong_type_are_named(text: str, annotation: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(text, annotation, "key in 'spec'")
    assert str(caught.value) == sentence


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    whole=st.integers(),
    real=floats,
    flag=st.booleans(),
    parts=st.lists(floats, min_size=1, max_size=4).map(tuple),
    mode=st.sampled_from(["slow", "fast"]),
    maybe=st.none() | st.integers(),
    text=st.text("abcxyz./%|&123456789", min_size=1, max_size=12),
)
def test_what_is_shown_is_read_back(**values: Any) -> None:
    registry: Registry[Probe] = Registry("thing", supplied=("workers",))
    registry.register("probe")(Probe)
    assert registry.build(show_spec("probe", values), workers=5) == Probe(5, **values)


def test_defaults_are_left_out() -> None:
    assert show_spec("x", {"a": 1, "b": 2.0}, {"a": 1, "b": 3.0}) == "x:b=2"
    assert show_spec("x", {"a": 1}, {"a": 1}) == "x"
    assert show_spec("x", {}) == "x"


# ------------------------------------------------------------------------------------------- there and back

CODES = (
    ["uncoded", "frc", "frc:load=2", "frc:stragglers=3", "frc:load=2,partitions=6", "frc:stragglers=1,partitions=9"]
    + ["cyclic", "cyclic:stragglers=2", "cyclic:stragglers=0", "cyclic:stragglers=2,seed=5"]
    + ["partial", "partial:stragglers=2", "partial:stragglers=1,load=5,inner=cyclic"]
    + ["mds", "mds:stragglers=3", "binary", "binary:stragglers=2", "nested", "nested:stragglers=2,kind=cyclic,seed=1"]
    + ["progress", "progress:load=3,placement=random,seed=2", "bcc", "bcc:batches=2,seed=3", "tree"]
    + [
        "comm-efficient",
        "comm-efficient:stragglers=2,blocks=3,seed=4",
        "draco",
        "draco:byzantine=2,stragglers=1,kind=cyclic",
    ]
    + ["bgc", "bgc:load=3,seed=1", "rbgc", "rbgc:load=2,seed=2", "sbc", "sbc:load=3,block=4,inside=0.5,seed=2"]
    + ["expander", "expander:load=5,seed=1", "biregular", "biregular:load=3,seed=2", "graph", "graph:load=2,seed=1"]
    + ["bibd", "bibd:family=hadamard-complement", "kronecker", "kronecker:left=(frc:load=2),right=(cyclic),split=4"]
    + ["hetero", "hetero:probability=0.2,load=3,relearn=0", "hetero:probability=0.1/0.2/0.1/0.2/0.1/0.2/0.1/0.2,load=3"]
)


def fleet(spec: str) -> int:
    """Workers for which a code exists."""
    return 7 if spec.startswith("bibd") else 8


DELAYS = (
    [
        "none",
        "constant:value=0.25",
        "uniform:low=0,high=2",
        "exp:mean=0.5",
        "shifted-exp:shift=0.1,mean=2",
        "pareto:minimum=0.3,alpha=2.5",
    ]
    + ["bimodal:fast=1,slow=10", "bimodal:fast=0,slow=10,probability=0.3", "hetero:means=0.1/0.25/3"]
    + ["trace:file=t.csv", "trace:file=t.csv,slope=1.5,load=0.25", "trace:file=t.csv,unit=ms,max_gb=2"]
    + ["mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1", "scipy:law=gamma,args=2,scale=0.5"]
    + ["bursts:normal=(exp:mean=0.5),slow=(scipy:law=gamma,args=2,scale=0.5),share=0.2,length=5"]
)
OPTIMIZERS = ["gd", "momentum", "momentum:momentum=0.5", "nesterov", "nesterov:momentum=0.8", "accelerated", "adam"] + [
    "adam:beta1=0.8,beta2=0.99,epsilon=1e-06",
    "adamw",
    "adamw:weight_decay=0.1",
    "slowmo",
    "slowmo:momentum=0.7",
    "clip",
    "clip:of=(adam:beta1=0.8),norm=0.5",
    "torch:SGD,momentum=0.5,nesterov=true",
    "torch:method=AdamW,betas=0.8/0.95",
    "optax:adamw,weight_decay=0.1",
]
SCHEDULES = ["0.1", "constant:start=0.1", "exponential:start=0.1,decay=0.99", "inverse:start=0.1,decay=0.01"]
STRATEGIES = (
    [
        *CODES,
        "anytime",
        "anytime:deadline=0.25,parts=3,batch=5,seed=2",
        "async",
        "async:lr_scale=0.25",
        "agc",
        "agc:load=2,wait=3,scaling=marginal,cancel=discard",
        "uncoded:wait=4",
    ]
    + ["frc:load=2,wait=3,scaling=none", "frc:wait=5%|0.5s", "cyclic:stragglers=2,wait=5&2s", "uncoded:cancel=discard"]
    + ["frc:load=2,wait=4,scaling=marginal,cancel=discard", "partial:wait=all", "frc:wait=decodable"]
    + ["sync", "sync:batch=8", "k-sync", "k-sync:k=3,batch=4", "k-batch-sync", "k-batch-sync:k=9,cancel=discard"]
    + [
        "k-async",
        "k-async:k=2,batch=4,stale=sqrt,cutoff=3",
        "async:stale=distance,bound=0.5",
        "k-batch-async",
        "k-batch-async:k=12,lr_scale=0.5",
    ]
    + ["gradual", "gradual:base=k-sync,k=2,every=5,by=2,last=3", "async:compensate=0.5", "adasync:rule=noise,k=3"]
    + ["pasgd", "pasgd:tau=3,wait=2,outer=(slowmo:momentum=0.7),rate=0.5,inner=adamw,keep=true", "pasgd:speeds=true"]
    + [
        "fedavg",
        "fedavg:clients=2,seed=3",
        "slowmo",
        "diloco:tau=20",
        "adacomm",
        "adacomm:tau=9,interval=2,least=2,batch=3",
    ]
    + ["fedbuff", "fedbuff:tau=2,k=3,rate=0.5,stale=inverse,outer=(nesterov:momentum=0.9)", "ad-psgd:tau=2,seed=4"]
    + ["dpsgd", "dpsgd:graph=(regular:degree=2),tau=2,barrier=global", "matcha:budget=0.7,seed=2", "easgd:alpha=0.1"]
    + [
        "hierarchical",
        "hierarchical:groups=3,tau=2,every=5",
        "coop",
        "coop:matrix=(regular:degree=2),auxiliary=2,tau=3,barrier=global",
    ]
    + ["compressed", "compressed:of=(k-sync:k=2),by=(top-k:share=0.2)", "compressed:of=frc,by=half"]
    + [
        "gc:stragglers=1",
        "gc:stragglers=1,strict=true,wait=minimal,mu=0.5",
        "m-sgc:B=1,W=2,lambda=2,models=5,inner=frc",
    ]
    + ["sr-sgc:B=2,W=3,lambda=2,jobs=7", "m-sgc:B=1,W=3,lambda=1,wait=feasible", "frc:load=2,models=3"]
    + ["adasync", "adasync:base=k-batch-sync,k=2,interval=5,loss_floor=0.1,batch=3"]
    + ["frc:batch=5", "bgc:decoder=one-step", "uncoded:wait=4&3mad", "frc:load=2,wait=2.5mad|5"]
)


def known(registry: Registry[Any]) -> set[str]:
    return {entry.name for entry in registry if entry.build.__module__.startswith("anyk.")}


def test_every_registered_name_is_among_the_examples() -> None:
    for registry, examples in (
        (codes.registry, CODES),
        (delays.registry, DELAYS),
        (optimizers.registry, OPTIMIZERS),
        (optimizers.schedules, SCHEDULES[1:]),
        (strategies.registry, STRATEGIES),
        (codes.registry, STRATEGIES),
    ):
        assert known(registry) - {"matrix"} <= {parse_spec(spec)[0] for spec in examples}, registry.kind


@pytest.mark.parametrize("spec", CODES)
def test_a_code_is_built_again_from_its_spec(spec: str) -> None:
    code = codes.code(spec, workers=fleet(spec))
    rebuilt = codes.code(code.spec, workers=fleet(spec))
    assert rebuilt == code and rebuilt.spec == code.spec and hash(rebuilt) == hash(code)
    assert (rebuilt.encoding != code.encoding).nnz == 0


@pytest.mark.parametrize("spec", DELAYS)
def test_a_delay_model_is_built_again_from_its_spec(spec: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")
    monkeypatch.chdir(tmp_path)
    for options in ["", "by=round", "by=item,uninterruptible=true"] + ["per=load"] * (not spec.startswith("trace")):
        full = spec + ("," if ":" in spec else ":") * bool(options) + options
        model = delays.parse(full)
        rebuilt = delays.parse(model.spec)
        assert rebuilt == model and rebuilt.spec == model.spec and hash(rebuilt) == hash(model)
        assert (model == delays.parse(spec)) == (not options)


@pytest.mark.parametrize("spec", OPTIMIZERS)
def test_an_optimizer_is_built_again_from_its_spec(spec: str) -> None:
    optimizer = optimizers.optimizer(spec, lr="inverse:start=0.1,decay=0.5")
    rebuilt = optimizers.optimizer(optimizer.spec, lr="inverse:start=0.1,decay=0.5")
    assert rebuilt == optimizer and rebuilt.spec == optimizer.spec
    assert optimizers.optimizer(spec, lr=3) != optimizer


@pytest.mark.parametrize("spec", SCHEDULES)
def test_a_schedule_is_built_again_from_its_spec(spec: str) -> None:
    schedule = optimizers.learning_rate(spec)
    assert optimizers.learning_rate(schedule.spec) == schedule


@pytest.mark.parametrize("spec", STRATEGIES)
def test_a_strategy_is_built_again_from_its_spec(spec: str) -> None:
    built: Any = strategies.strategy(spec, workers=fleet(spec))
    rebuilt: Any = strategies.strategy(built.spec, workers=fleet(spec))
    assert rebuilt.spec == built.spec and type(rebuilt) is type(built)
    assert rebuilt.layout == built.layout
    if isinstance(built, strategies.Rounds):
        assert (rebuilt.code, rebuilt.scaling_used, rebuilt.cancel) == (built.code, built.scaling_used, built.cancel)
        assert (rebuilt.enough, rebuilt.work, rebuilt.changes) == (
            built.enough,
            built.work,
            built.changes,
        )
    else:
        assert rebuilt.summary == built.summary
        # a number that is left to be chosen stands in the spec as it was chosen, a strategy or compressor as its spec
        chosen = {"models": "trained", "alpha": "pull", "by": "compressor"}
        names = [chosen.get(f.name, f.name) for f in fields(built) if f.name not in ("of", "code", "wait")]
        assert names and {name: getattr(rebuilt, name) for name in names} == {
            name: getattr(built, name) for name in names
        }


@settings(deadline=None, max_examples=100)
@given(positive, positive, st.floats(1e-6, 1 - 1e-6))
def test_numbers_keep_every_digit_in_the_specs_of_delays(a: float, b: float, p: float) -> None:
    models = [delays.Exponential(a), delays.ShiftedExponential(a, b), delays.Pareto(a, max(b, 0.1)), delays.Constant(b)]
    models += [delays.Heterogeneous((a, b, a)), delays.Bimodal(0.0, b, p)]
    for model in models:
        assert delays.parse(model.spec) == model


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-12, 1e6), st.floats(0.0, 1.0, exclude_max=True))
def test_numbers_keep_every_digit_in_the_specs_of_optimizers(epsilon: float, momentum: float) -> None:
    for optimizer in (optimizers.Momentum(0.1, momentum), optimizers.Adam(0.1, momentum, momentum / 2, epsilon)):
        assert optimizers.optimizer(optimizer.spec, lr=0.1) == optimizer


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-12, 1e6), st.floats(1e-12, 1.0))
def test_numbers_keep_every_digit_in_the_specs_of_schedules(start: float, decay: float) -> None:
    """A run is resumed and replayed from its learning rate's spec, so a digit lost is another model."""
    for optimizer in (
        optimizers.ExponentialRate(start, decay),
        optimizers.InverseTimeRate(start, decay),
        optimizers.ConstantRate(start),
    ):
        assert optimizers.learning_rate(optimizer.spec) == optimizer


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-9, 1e6))
def test_numbers_keep_every_digit_in_the_spec_of_asynchronous(step: float) -> None:
    rebuilt: Any = strategies.strategy(strategies.KFamily(4, lr_scale=step).spec, workers=4)
    assert rebuilt.lr_scale == step


def test_numpy_numbers_are_shown_as_numbers() -> None:
    """A mean computed with NumPy is a numpy.float64, whose repr is not its digits."""
    assert delays.Exponential(np.float64(0.5)).spec == "exp:mean=0.5"
    assert optimizers.Momentum(0.1, np.float64(0.5)).spec == "momentum:momentum=0.5"
    assert show_spec("x", {"a": np.int64(3), "b": np.float32(0.5)}) == "x:a=3,b=0.5"


def test_text_keeps_its_ending() -> None:
    assert show_spec("x", {"file": "data.v2.0"}) == "x:file=data.v2.0"


def test_two_names_for_one_thing_expand_to_it() -> None:
    agc: Any = strategies.strategy("agc:load=3,wait=11", workers=30)
    frc: Any = strategies.strategy("frc:load=3,wait=11", workers=30)
    assert agc.spec == frc.spec == "frc:load=3,wait=11" and agc.code == frc.code
    default: Any = strategies.strategy("agc:load=3", workers=30)
    assert default.spec == "frc:load=3,wait=11"  # one reply more than the ten groups


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: anyk.cluster("uncoded", workers=4), "no cluster 'uncoded'; it is a strategy; known: processes"),
        (lambda: anyk.cluster("uncodedd", workers=4), "no cluster 'uncodedd'; known: processes"),
        (lambda: anyk.strategy("simulated", workers=4), "no strategy 'simulated'; it is a cluster; known: sync"),
        (lambda: codes.code("dpsgd", workers=4), "no code 'dpsgd'; it is a strategy; known: "),
        (lambda: delays.parse("frc"), "no delay model 'frc'; it is a strategy; known: none"),
        (lambda: optimizers.optimizer("exp", lr=1), "no optimizer 'exp'; it is a delay model; known: gd"),
    ],
)
def test_a_name_of_another_kind_is_no_suggestion(build: Callable[[], object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        build()
