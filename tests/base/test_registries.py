"""Every value of every option arrives: a spec builds what the same values in Python do, and each choice tells."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from inspect import Parameter
from typing import Any

import pytest

import anyk
from anyk import clusters, codes, compression, delays, graphs, optimizers, strategies
from anyk.base.errors import BadInput
from anyk.base.registries import Entry, Registry
from anyk.base.specs import show_value
from anyk.optimizers import schedules
from anyk.strategies.sequential import patterns

N = 12
REGISTRIES: list[tuple[Registry[Any], dict[str, Any]]] = [
    (codes.registry, {"workers": N}),
    (strategies.registry, {"workers": N}),
    (delays.registry, {}),
    (compression.registry, {}),
    (optimizers.registry, {"lr": 0.5}),
    (schedules, {}),
    (graphs.registry, {"workers": N}),
    (clusters.registry, {"workers": 4, "delays": None, "seed": 3, "communication": None}),
    (patterns.registry, {}),
]
NEEDED: dict[str, dict[str, Any]] = {  # good values of what has no default, and of what others hang on
    "kronecker": {"split": 4},
    "uniform": {"low": 0.5, "high": 2.0},
    "mixture": {"laws": "exp:mean=1/constant:value=1", "weights": (0.5, 0.5)},
    "bursts": {"normal": "exp:mean=1", "slow": "constant:value=5"},
    "m-sgc": {"B": 1, "W": 3, "lambda_": 2},
    "sr-sgc": {"B": 1, "W": 2, "lambda_": 2},
    "bursty": {"burst": 1, "window": 3, "most": 2},
    "pareto": {"minimum": 1.0, "alpha": 2.0},
    "scipy": {"law": "gamma", "args": (2.0,)},
}
ELSEWHERE = (
    "trace",
    "file",
    "matrix",
    "torch",
    "optax",
    "mpi",
)  # these need a file, seconds to import, or open MPI for good
STRINGS = {  # good values of keys that take text
    "wait": ["5", "0.5s", "all"], "outer": ["adam", "gd"], "inner": ["adam", "cyclic"], "graph": ["complete", "ring"], "matrix": ["complete", "ring"],
    "of": ["k-sync", "sync"], "by": ["half", "sign"], "left": ["uncoded", "cyclic"], "right": ["uncoded", "cyclic"],
    "address": ["auto"], "nodes": ["a", "b"], "law": ["norm"], "of_": ["gd"], "schedule": ["constant:lr=1"], "late": ["drop"], "decoder": ["one-step"],
}  # fmt: skip
PLAIN: dict[Any, list[Any]] = {int: [1, 2, 3, 7], float: [0.25, 0.5, 1.0, 2.0], bool: [True, False]}


def values(name: str, annotation: Any) -> list[Any]:
    """Values to give an option, of all kinds that it takes."""
    origin, options = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return [value for option in options for value in values(name, option)]
    if annotation is type(None):
        return [None]
    if origin is typing.Literal:
        return [option for option in options if option != ""]  # which stands for a key that is left out
    if origin is tuple:
        inside = values(name, options[0])
        return [tuple(inside[:2]), (inside[0],) * N] if inside else []
    return STRINGS.get(name, []) if annotation is str else PLAIN.get(annotation, [])


def options() -> Iterator[Any]:
    for registry, arguments in REGISTRIES:
        for entry in registry:
            if entry.build.__module__.startswith("anyk."):
                for key, parameter in entry.parameters().items() if entry.name not in ELSEWHERE else ():
                    yield pytest.param(
                        registry, arguments, entry, key, parameter, id=f"{registry.kind} {entry.name}:{key}"
                    )


def made(build: Any) -> str:
    """What was built, or why not."""
    try:
        thing = build()
    except BadInput as error:
        return f"refused: {error}"
    if isinstance(thing, graphs.Mixing):
        return f"{thing.spec} {[matrix.tolist() for matrix in thing.rounds]}"
    return f"{type(thing).__name__} {thing.spec if hasattr(thing, 'spec') else thing!r}"


@pytest.mark.slow
@pytest.mark.parametrize(("registry", "given", "entry", "key", "parameter"), list(options()))
def test_every_value_arrives(
    registry: Registry[Any], given: dict[str, Any], entry: Entry[Any], key: str, parameter: Parameter
) -> None:
    needed = dict(NEEDED.get(entry.name, {}))
    for name, other in entry.parameters().items():
        if other.default is Parameter.empty and name not in needed:
            needed[name] = values(name, other.annotation)[0]
    outcomes: dict[Any, str] = {}
    for value in values(key, parameter.annotation):
        keys = needed | {key: value}
        parts = ",".join(
            f"{name.rstrip('_')}={_bracketed(show_value(option_value))}" for name, option_value in keys.items()
        )
        spec = f"{entry.name}:{parts}"
        outcomes[value] = made(lambda spec=spec: registry.build(spec, **given))
        direct = made(lambda keys=keys: entry.build(**keys, **given))
        assert outcomes[value] == direct or (
            direct.startswith("refused: ") and outcomes[value].startswith("refused: ")
        ), spec
    choices = [
        value for value in outcomes if isinstance(value, str | bool) and not outcomes[value].startswith("refused: ")
    ]
    distinct = {outcomes[value] for value in choices}
    if registry is not clusters.registry and key != "strict":  # 'strict' is written down where it is not the default
        assert len(distinct) == len(choices), f"{entry.name}:{key} tells {len(distinct)} of {choices} apart"


def _bracketed(text: str) -> str:
    return f"({text})" if ":" in text else text


@pytest.mark.parametrize("scaling", ["none", "conditional", "marginal"])
def test_scaling_none_is_not_left_out(scaling: str) -> None:
    strategy = anyk.strategy(f"agc:load=3,wait=11,scaling={scaling}", workers=30)
    assert strategy.work.scaling == scaling  # type: ignore[attr-defined]


def test_scaling_none_counts_every_group_that_replied_once() -> None:
    """ErasureHead's Algorithm 1."""
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=3)
    run = anyk.train(problem, "agc:load=2,wait=3,scaling=none", cluster, steps=20)
    weights = {float(weight) for step in range(20) for weight in run.receipt(step + 1).weights}
    assert weights == {0.0, 1.0}
    run.close()
