"""Strategies built from specs: the registry of strategies, and rounds of any code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal

from anyk import codes
from anyk.base import specs
from anyk.base.checks import Share, check_value
from anyk.base.errors import BadInput
from anyk.base.registries import Entry, Registry, build_or_suggest, with_files
from anyk.base.specs import Spec
from anyk.protocol import CancelMode, Strategy, Workers
from anyk.strategies.compressed import Compressed
from anyk.strategies.rounds.balance import Balance
from anyk.strategies.rounds.checked_rounds import CheckedRounds
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.rounds.elastic import Elastic
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.on_demand import ProgressRounds
from anyk.strategies.rounds.scaling import Scaling
from anyk.strategies.rounds.snapshot import Snapshot
from anyk.strategies.rounds.tree_rounds import TreeRounds

registry: Registry[Strategy] = Registry("strategy", supplied=("workers",), beside=codes.registry)
codes.registry.beside = registry  # the spec of a code is a strategy
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
        checks=CheckedRounds(check_value(check, Share, "check")) if check else None,
        **of_gradients,
    )
    return Rounds(code, work=work, changes=balance_of(balance), **keys)


def resolve_paths(spec: str, change: Callable[[str], str] = specs.absolute) -> Spec:
    """Return a strategy's spec that is valid in any folder: files have absolute paths, or the results of ``change``."""
    return with_files(spec, change, registry, codes.registry)


def complete_spec(spec: str, built: Strategy) -> Spec:
    """Return a spec with absolute paths, and with the numbers that it omits taken from the strategy built from it.

    >>> complete_spec("k-sync", strategy("k-sync", workers=30)), complete_spec("frc", strategy("frc", workers=30))
    ('k-sync:k=15', 'frc:load=3')
    """
    given, chosen = resolve_paths(spec), Spec(built.spec)
    if given.name == "k-sync":
        return given.with_keys({"k": usual_k(built.layout.workers, None)})
    if given.name != chosen.name or "" in given.keys or "" in chosen.keys:
        return given
    return given.with_keys({key: value for key, value in chosen.keys.items() if value.isdigit()})


def check_recorded(built: Strategy) -> None:
    """Raise :class:`~anyk.BadInput` if the spec of a user's strategy, or code, omits a setting that it has.

    A run folder stores the spec, so that a resumed run would train with another strategy. Compared are settings that
    are numbers, text or tuples of these; a spec whose name is not registered is not built.
    """
    spec = Spec(built.spec)
    if spec.name not in registry.entries and spec.name not in codes.registry.entries:
        return
    try:
        rebuilt = strategy(spec, workers=Workers.of_layout(built.layout))
    except BadInput:
        return
    _check_settings("strategy", built, rebuilt)
    _check_settings("code", getattr(built, "code", None), getattr(rebuilt, "code", None))


def _check_settings(kind: str, owner: Any, rebuilt: Any) -> None:
    """Raise BadInput if two values of a class that is not anyk's, one built from the other's spec, differ."""
    own_class: type[Any] = type(owner)
    if own_class is not type(rebuilt) or not is_dataclass(own_class) or own_class.__module__.startswith("anyk."):
        return
    for setting in fields(own_class):
        value, other = getattr(owner, setting.name), getattr(rebuilt, setting.name)
        if setting.init and _is_plain(value) and _is_plain(other) and value != other:
            raise BadInput(
                f"the spec '{owner.spec}' of the {kind} {own_class.__name__} omits its setting {setting.name} = "
                f"{value!r}: a resumed run would train with {other!r}; add it to the spec"
            )


def _is_plain(value: object) -> bool:
    """Return whether a value is a number, text or a tuple of these."""
    return isinstance(value, (int, float, str)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def strategy(
    spec: str | Strategy | codes.Code,
    *,
    workers: int | tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
) -> Strategy:
    """Return the strategy of a spec for ``workers`` workers, or of a code; a strategy is returned unchanged.

    ``workers``: a number, or a range such as ``(4, 16)`` for a strategy whose workers join and leave, which has
    ``partitions`` of the data (by default 4 for each worker). The spec of a code is a strategy of rounds, with the
    further keys ``wait``, ``scaling``, ``cancel`` and ``decoder``. Raises :class:`~anyk.errors.BadInput` if the spec
    is wrong, if a code or strategy is for another number of workers, or cannot follow workers that join and leave.

    >>> strategy("agc:load=3,wait=11", workers=30).spec, strategy("frc:stragglers=2", workers=(4, 16)).layout.partitions
    ('frc:load=3,wait=11', 64)
    """
    if isinstance(spec, str):
        given = Workers.of(workers, partitions)

        def build(spec: str, workers: int) -> Strategy:
            return from_spec(spec, replace(given, most=workers))

        return build_or_suggest(build, Spec(spec), given.most)
    built = rounds(spec) if isinstance(spec, codes.Code) else spec
    if not all(hasattr(built, name) for name in ("layout", "start", "on", "spec")):
        raise BadInput(f"strategy must be a spec such as 'frc:load=3', a strategy or a code, got {spec!r}")
    if workers is None:
        return built
    given = Workers.of(workers, partitions)
    if built.layout.workers != given.most:
        raise BadInput(f"the strategy is for {built.layout.workers} workers, the cluster has {given.most}")
    return built if given.fewest is None else _changing(built, given)


def _changing(strategy: Strategy, workers: Workers) -> Strategy:
    """Return a strategy whose workers join and leave; raise :class:`~anyk.BadInput` if it cannot."""
    if Workers.of_layout(strategy.layout) == workers:
        return strategy
    if isinstance(strategy, Compressed):
        return Compressed(_changing(strategy.of, workers), strategy.by)
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
    assert workers.fewest is not None and workers.partitions is not None
    return replace(strategy, changes=Elastic(workers.fewest, workers.partitions))


def from_spec(spec: str, workers: Workers) -> Strategy:
    """Return the strategy of a spec, as :func:`strategy` does, but without suggestions if that fails."""
    spec = Spec(spec)
    built = _of_entry(spec, workers.most)
    if workers.fewest is None:
        return built
    if "partitions" in spec.keys:
        raise BadInput(
            f"'{spec}' has its own partitions, which are for a fixed number of workers; leave them out, and give those "
            "of the run: partitions=…, or --partitions"
        )
    return _changing(built, workers)


def _of_entry(spec: Spec, workers: int) -> Strategy:
    """Return the strategy of a spec for a fixed number of workers: a registered one, or rounds of a registered code."""
    name, keys = spec.name, dict(spec.keys)
    if name in registry.entries or (name not in codes.registry.entries and name in registry):
        _refuse_range(spec, registry.entries[name], workers)
        return registry.build(spec, workers=workers)
    if name not in codes.registry:
        registry.entry(name, also=tuple(codes.registry.entries))
    _refuse_range(spec, codes.registry.entries[name], workers)
    if "" in keys:
        raise BadInput(f"'{keys['']}' in '{spec}' should be key=value, as in name:key=value,key=value")
    of_rounds: dict[str, Any] = {
        key: specs.read(keys.pop(key), kind, f"{key} in '{spec}'") for key, kind in _KEYS.items() if key in keys
    }
    return rounds(codes.registry.build_parsed(spec, name, keys, workers=workers), **of_rounds)


def _refuse_range(spec: Spec, entry: Entry[Any], workers: int) -> None:
    """Raise for a range of workers, or partitions, in a spec: they are settings of the run."""
    instead = {
        "fewest": "workers=({0}, {1}), or --workers {0}..{1}",
        "partitions": "partitions={0}, or --partitions {0}",
    }
    for key, words in instead.items():
        if key in spec.keys and key not in entry.parameters():
            setting = words.format(spec.keys[key], workers)
            raise BadInput(f"{key} in '{spec}' is a setting of the run, not of its strategy; give {setting}")
