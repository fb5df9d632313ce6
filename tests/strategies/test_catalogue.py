"""Every key of a strategy's or code's spec reaches the object that is built: a value of it changes the object's spec."""

import typing
from collections.abc import Iterator
from typing import Any

import pytest

import anyk
from anyk.codes import registry as codes
from anyk.strategies import registry as strategies

pytestmark = pytest.mark.in_process

OTHERS = {  # settings that a strategy needs, or without which a key does nothing
    "gc": ["stragglers=1"],
    "sr-sgc": ["B=1", "W=2", "lambda=2"],
    "m-sgc": ["B=1", "W=2", "lambda=1"],
    ("async", "bound"): ["stale=distance"],
    ("k-async", "bound"): ["stale=distance"],
    ("k-batch-async", "bound"): ["stale=distance"],
    ("fedbuff", "bound"): ["stale=distance"],
    ("pasgd", "rate"): ["outer=nesterov"],
    ("adacomm", "rate"): ["outer=nesterov"],
    ("sr-sgc", "B"): ["W=3"],
    ("m-sgc", "B"): ["W=3"],
}
TEXTS = {"shares": "2/1/1/1/1/1", "graph": "complete", "matrix": "exp", "decoder": "one-step", "of": "async"}
VALUES = ["1", "2", "3", "4", "6", "0.5", "0.25", "0.1", "true", "false", "sign"]
WORKERS = {"bibd": 7}
ELSEWHERE = {("bibd", "load"), ("kronecker", "left"), ("kronecker", "right")}  # a value needs others with it


def literals(kind: Any) -> Iterator[str]:
    """The words that a key may have as its value."""
    for inner_kind in typing.get_args(kind):
        if typing.get_origin(kind) is typing.Literal:
            yield str(inner_kind)
        else:
            yield from literals(inner_kind)


def spec_with(name: str, settings: list[str]) -> str | None:
    """What the object of a spec says that its spec is; None for one that does not exist."""
    spec, workers = f"{name}:{','.join(settings)}".rstrip(":"), WORKERS.get(name, 6)
    try:
        return (anyk.strategy if name in strategies else anyk.code)(spec, workers=workers).spec
    except anyk.BadInput:
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"),
    [
        (entry.name, key)
        for entry in [*strategies, *codes]
        if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"
        for key in entry.parameters()
        if (entry.name, key) not in ELSEWHERE
    ],
)
def test_a_key_reaches_what_is_built(name: str, key: str) -> None:
    entry = (strategies if name in strategies else codes).entry(name)
    chosen = dict(other.split("=", 1) for of in (name, (name, key)) for other in OTHERS.get(of, []))
    others = [f"{other}={value}" for other, value in chosen.items()]
    values = [TEXTS[key]] if key in TEXTS else [*literals(entry.parameters()[key].annotation), *VALUES]
    without = [other for other in others if not other.startswith(f"{key}=")]
    default, different = spec_with(name, others), set[str | None]()
    for value in values:
        different |= {spec_with(name, [*without, f"{key}={value}"])} - {None, default}
        if different:
            return
    pytest.fail(f"no value of {key} changes '{default}'")
