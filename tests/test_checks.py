"""Arguments of the wrong type or out of range are refused in one sentence that names them."""

import inspect

import numpy as np
import pytest

from anyk import clusters, codes, compression, delays, optimizers, problems, strategies
from anyk.checks import check
from anyk.errors import BadInput

PLAIN = {"int": 1, "float": 0.5, "str": "sync"}
GIVEN = {"X": np.eye(4), "y": [0, 1, 0, 1], "code": codes.Uncoded(6), "latency": delays.NoDelay(), "weights": (1.0,)}
NUMBERS = {"int", "float", "int | None", "float | None"}
INTERNAL = {"DelayStream", "Durations", "LinearPartitions", "Messages", "TorchPartitions", "Decoding", "Selection",
            "Fit", "InFlight", "Outage"}  # fmt: skip


def numbers():
    """Every parameter of a public class that is to be a number."""
    for room in (codes, compression, delays, optimizers, problems, strategies, clusters):
        for name in set(room.__all__) - INTERNAL:
            made = getattr(room, name)
            if inspect.isclass(made) and made.__init__ is not object.__init__ and not inspect.isabstract(made):
                for key, parameter in inspect.signature(made).parameters.items():
                    if str(parameter.annotation) in NUMBERS:
                        yield pytest.param(made, key, id=f"{name}.{key}")


@pytest.mark.parametrize(("made", "key"), sorted(numbers(), key=lambda one: one.id))
def test_a_number_must_be_a_number(made, key):
    if made.__name__ in ("JaxProblem", "TorchProblem"):
        pytest.importorskip(made.__name__.removesuffix("Problem").lower())
    required = {
        name: PLAIN.get(str(parameter.annotation), GIVEN.get(name, ()))
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    for bad, shown in (("4", "'4'"), (True, "True"), (float("nan"), "nan"), ([4], "[4]")):
        with pytest.raises(BadInput) as caught:
            made(**required | {key: bad})
        sentence = str(caught.value)
        assert sentence.startswith(f"{key.rstrip('_')} must be a ") and sentence.endswith(f"got {shown}")


def test_numbers_of_numpy_are_numbers():
    assert check(np.int64(4), int, "n") == 4 and type(check(np.int64(4), int, "n")) is int
    assert type(check(np.float32(0.5), float, "x")) is float
    assert codes.FractionalRepetition(np.int32(6), load=np.uint8(2)).spec == "frc:load=2"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: delays.Exponential(1e308), "the mean of 'exp' must be at most 1e+09 s (30 years), got 1e+308"),
        (
            lambda: delays.Pareto(1.0, 0.01),
            "the alpha of 'pareto' must be at least 0.1, got 0.01; delays would overflow",
        ),
        (lambda: clusters.cluster("simulated:cores=0", workers=4), "cores must be at least 1, got 0"),
        (
            lambda: clusters.cluster("simulated:task=-1", workers=4),
            "task (seconds of computing) must be from 0 to 1e+09, got -1",
        ),
        (lambda: clusters.Simulated(4, seed="x"), "seed must be a whole number, got 'x'"),
        (lambda: clusters.Simulated(4, liars=["1"]), "liars must be a tuple of whole numbers, got ['1']"),
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
