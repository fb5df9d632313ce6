"""Strategies built from specs: the registry of strategies, and rounds of any code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from anyk import codes
from anyk.base import specs
from anyk.base.checks import Share
from anyk.base.checks import check as checked
from anyk.base.errors import BadInput
from anyk.protocol import CancelMode, Strategy
from anyk.strategies.rounds.balance import Balance
from anyk.strategies.rounds.checked_rounds import CheckedRounds
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.rounds.elastic import PARTITIONS, Elastic
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.on_demand import ProgressRounds
from anyk.strategies.rounds.scaling import Scaling
from anyk.strategies.rounds.snapshot import Snapshot
from anyk.strategies.rounds.tree_rounds import TreeRounds

registry: specs.Registry[Strategy] = specs.Registry("strategy", supplied=("workers",))
register = registry.register
StrategySpec = Annotated[str, registry, codes.registry]
Auto = Literal["auto"] | None
_ROUNDS: dict[str, Any] = {"coded": Rounds, "progress": ProgressRounds, "tree": TreeRounds}  # by the policy of a code


def balance_of(how: Auto) -> Balance | None:
    """Return the rule of the setting ``balance``."""
    return None if how is None else Balance()


def usual_k(workers: int, k: int | None) -> int:
    """Return k; by default half the workers."""
    return max(1, workers // 2) if k is None else k


# keys that a code's spec may have in addition as a strategy
_KEYS = {
    "wait": str,
    "scaling": Scaling,
    "cancel": CancelMode,
    "decoder": str,
    "batch": int,
    "models": int,
    "snapshot": int,
    "balance": Auto,
    "check": float,
    "order": Literal["random", "epoch"],
}


def rounds(code: codes.Code, **keys: Any) -> Strategy:
    """Return the strategy that runs a code: :class:`Rounds`, or the kind of rounds in its policy.

    ``keys``: those that the spec of a code may have in addition as a strategy.

    >>> type(rounds(codes.NestedCode(8))).__name__
    'ProgressRounds'
    >>> rounds(codes.Uncoded(8), wait=6, models=2).spec
    'uncoded:wait=6,models=2'
    """
    kind = _ROUNDS[code.policy().rounds]
    names = _KEYS if kind is Rounds else {f.name for f in fields(kind)}
    for key in keys:
        if key not in names:
            raise BadInput(f"'{code.spec}' does not support '{key}'")
    strategy: Strategy = _coded_rounds(code, **keys) if kind is Rounds else kind(code, **keys)
    return strategy


def _coded_rounds(
    code: codes.Code, *, balance: Auto = None, snapshot: int = 0, check: float = 0.0, **keys: Any
) -> Rounds:
    """Return rounds of gradients."""
    of_gradients = {key: keys.pop(key) for key in ("scaling", "decoder", "models", "order") if key in keys}
    work = Gradients(
        snapshot=Snapshot(snapshot) if snapshot else None,
        checks=CheckedRounds(checked(check, Share, "check")) if check else None,
        **of_gradients,
    )
    return Rounds(code, work=work, changes=balance_of(balance), **keys)


def resolve_paths(spec: str, change: Callable[[str], str] = specs.absolute) -> str:
    """Return a strategy's spec that is valid in any folder: files have absolute paths, or the results of ``change``."""
    return specs.with_files(spec, change, registry, codes.registry)


def complete_spec(spec: str, built: Strategy) -> str:
    """Return a spec with absolute paths, and with the numbers that it omits taken from the strategy built from it.

    >>> complete_spec("k-sync", strategy("k-sync", workers=30)), complete_spec("frc", strategy("frc", workers=30))
    ('k-sync:k=15', 'frc:load=3')
    """
    spec = resolve_paths(spec)
    (name, values), (built_name, chosen_values) = specs.parse(spec), specs.parse(built.spec)
    if name == "k-sync":
        return specs.with_keys(spec, {"k": usual_k(built.layout.workers, None)})
    if name != built_name or "" in values or "" in chosen_values:
        return spec
    return specs.with_keys(spec, {key: value for key, value in chosen_values.items() if value.isdigit()})


def strategy(spec: str | Strategy | codes.Code, *, workers: int | None = None) -> Strategy:
    """Return the strategy of a spec for ``workers`` workers, or of a code; a strategy is returned unchanged.

    The spec of a code is a strategy of rounds, with the further keys ``wait``, ``scaling``, ``cancel`` and ``decoder``.
    Raises :class:`~anyk.BadInput` if the spec is wrong, or if a code or strategy is for another number of
    workers.

    >>> strategy("agc:load=3,wait=11", workers=30).spec
    'frc:load=3,wait=11'
    """
    if not isinstance(spec, str):
        built = rounds(spec) if isinstance(spec, codes.Code) else spec
        if not all(hasattr(built, part) for part in ("layout", "start", "on", "spec")):
            raise BadInput(f"strategy must be a spec such as 'frc:load=3', a strategy or a code, got {spec!r}")
        if workers is not None and built.layout.workers != workers:
            raise BadInput(f"the strategy is for {built.layout.workers} workers, the cluster has {workers}")
        return built
    return specs.build_or_suggest(from_spec, spec, checked(workers, int, "workers"))


def for_fleet(strategy: Strategy, fewest: int, partitions: int | None = None) -> Rounds:
    """Return a strategy whose workers join and leave: from ``fewest`` to the number that it was made for.

    ``partitions``: m, by default 4 for each worker. Raises :class:`~anyk.BadInput` if the strategy cannot.

    >>> for_fleet(strategy("frc:stragglers=2", workers=16), fewest=4).spec
    'frc:stragglers=2,fewest=4,partitions=64'
    """
    if not isinstance(strategy, Rounds):
        raise BadInput(
            f"'{strategy.spec}' is for a fixed number of workers; for a fleet that changes use rounds of uncoded, "
            "frc:stragglers=s, bgc, k-sync or pasgd"
        )
    if strategy.changes is not None:
        raise BadInput(
            f"'{strategy.spec}' has a rule by which its code changes already; leave out that, or the range and "
            "partitions"
        )
    partitions = PARTITIONS * strategy.layout.workers if partitions is None else partitions
    return replace(strategy, changes=Elastic(fewest, partitions))


def with_fleet(spec: str, workers: int | tuple[int, int], partitions: int | None = None) -> tuple[str, int]:
    """Return a spec for a number or a range of workers, and the (largest) number.

    ``partitions``: m, whatever the number of workers; by default 4 for each worker of a range. Raises
    :class:`~anyk.BadInput` if the spec has a range or partitions of its own.

    >>> with_fleet("uncoded", (4, 16))
    ('uncoded:fewest=4,partitions=64', 16)
    """
    if isinstance(workers, int):
        if partitions is None:
            return spec, workers
        workers = workers, workers
    fewest, most = workers
    given = specs.parse(spec)[1]
    if "fewest" in given or (partitions is not None and "partitions" in given):
        raise BadInput(f"'{spec}' has its own range of workers or partitions; leave out either")
    partitions = PARTITIONS * most if partitions is None else partitions
    return specs.with_keys(spec, {"fewest": fewest, "partitions": partitions}), most


def fleet_keys(spec: str) -> dict[str, str]:
    """Return the range of workers and the partitions in a spec; empty for a fixed number of workers."""
    values = specs.parse(spec)[1]
    return {key: values[key] for key in ("fewest", "partitions") if key in values and "fewest" in values}


def from_spec(spec: str, workers: int) -> Strategy:
    """Return the strategy of a spec, as :func:`strategy` does, but without suggestions if that fails."""
    name, values = specs.parse(spec)
    if "fewest" in values:
        fewest = specs.read(values.pop("fewest"), int, f"fewest in '{spec}'")
        partitions = specs.read(values.pop("partitions", "none"), int | None, f"partitions in '{spec}'")
        return for_fleet(from_spec(specs.show(name, values), workers), fewest, partitions)
    if name in registry.entries or (name not in codes.registry.entries and name in registry):
        return registry.build(spec, workers=workers)
    if name not in codes.registry:
        registry.entry(name, also=tuple(codes.registry.entries))
    if "" in values:
        raise BadInput(f"'{values['']}' in '{spec}' should be key=value, as in name:key=value,key=value")
    own: dict[str, Any] = {
        key: specs.read(values.pop(key), kind, f"{key} in '{spec}'") for key, kind in _KEYS.items() if key in values
    }
    return rounds(codes.registry.build_parsed(spec, name, values, workers=workers), **own)
