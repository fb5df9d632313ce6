"""Strategies: when to wait, when to step."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

from anyk import codes, specs
from anyk.checks import check
from anyk.errors import BadInput
from anyk.protocol import CancelMode, Strategy
from anyk.strategies.buffered import FedBuff
from anyk.strategies.compressed import Compressed
from anyk.strategies.gossip import DecentralisedSGD, ElasticSGD, Gossip, MatchaSGD, PairwiseGossip
from anyk.strategies.growing import AdaSync, Gradual, adapted_k, k_for_delays, k_for_noise
from anyk.strategies.kfamily import KFamily, Kind
from anyk.strategies.local import AdaComm, LocalRounds, adapted_tau
from anyk.strategies.observed import Durations, order_means
from anyk.strategies.patterns import (
    Arbitrary,
    Bursty,
    GilbertElliott,
    PerRound,
    StragglerModel,
    smallest_arbitrary,
    smallest_bursty,
    stragglers,
)
from anyk.strategies.progress import ProgressRounds
from anyk.strategies.rounds import CodedRounds, Scaling
from anyk.strategies.sequential import GradientCodingRounds, Multiplexed, SelectiveRepetition, SequentialRounds
from anyk.strategies.tree import TreeRounds
from anyk.strategies.wait import (
    Adaptive,
    AllOf,
    AnyOf,
    Count,
    Deadline,
    Decodable,
    Predicate,
    ResidualBelow,
    Wait,
    Waiting,
)

registry: specs.Registry[Strategy] = specs.Registry("strategy", given=("workers",))
register = registry.register
StrategySpec = typing.Annotated[str, registry, codes.registry]


@register("sync")
def _sync(workers: int, *, batch: int = 0) -> Strategy:
    """Synchronous SGD: every worker's gradient, every step (the same as uncoded)."""
    return CodedRounds(codes.Uncoded(workers), batch=batch)


@register("k-sync")
def _k_sync(workers: int, *, k: int | None = None, batch: int = 0, cancel: CancelMode = "preempt") -> Strategy:
    """K-sync SGD: the k gradients that come first, the others are cut off (the same as uncoded:wait=k)."""
    return CodedRounds(codes.Uncoded(workers), wait=_usual_k(workers, k), batch=batch, cancel=cancel)


_STALENESS = ("stale", "cutoff", "bound", "compensate")


def _member(kind: Kind, summary: str, *, without: tuple[str, ...]) -> None:
    """Register one of the K family: the parameters of :class:`KFamily` that mean something for its kind."""

    def build(workers: int, **keys: Any) -> Strategy:
        if "k" not in without:
            keys["k"] = _usual_k(workers, keys.get("k"))
        return KFamily(workers, kind=kind, **keys)

    known = inspect.signature(KFamily).parameters.values()
    kept = [p.replace(default=None) if p.name == "k" else p for p in known if p.name not in ("kind", *without)]
    build.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    build.__annotations__ = typing.get_type_hints(KFamily.__init__)
    build.__doc__ = summary
    register(kind)(build)


_member(
    "k-batch-sync",
    "K-batch-sync SGD: the k mini-batches that come first, a worker may give several; the others are cut off.",
    without=_STALENESS,
)
_member(
    "async",
    "Asynchronous SGD: each reply steps the model at once; its worker goes on from the newest version.",
    without=("k", "cancel"),
)
_member(
    "k-async",
    "K-async SGD: a step for every k gradients; their workers wait for it, the others go on.",
    without=("cancel",),
)
_member(
    "k-batch-async",
    "K-batch-async SGD: a step for every k gradients; nobody waits.",
    without=("cancel",),
)
register("adasync")(AdaSync)
register("gradual")(Gradual)
register("pasgd")(LocalRounds)
register("adacomm")(AdaComm)
register("fedbuff")(FedBuff)
register("dpsgd")(DecentralisedSGD)
register("matcha")(MatchaSGD)
register("easgd")(ElasticSGD)
register("ad-psgd")(PairwiseGossip)
register("gc")(GradientCodingRounds)
register("sr-sgc")(SelectiveRepetition)
register("m-sgc")(Multiplexed)


@register("fedavg")
def _fedavg(
    workers: int, *, tau: int = 10, clients: int | None = None, wait: str | None = None, batch: int = 0, seed: int = 0
) -> Strategy:
    """FedAvg: periodic averaging weighted by samples, of some clients drawn each round (the same as pasgd)."""
    return LocalRounds(workers, tau=tau, clients=clients, wait=wait, batch=batch, seed=seed, weighted=True)


@register("slowmo")
def _slowmo(
    workers: int, *, tau: int = 10, alpha: float = 1.0, beta: float = 0.5, wait: str | None = None, batch: int = 0
) -> Strategy:
    """SlowMo: periodic averaging with slow momentum beta and slow rate alpha (the same as pasgd:outer=…)."""
    return LocalRounds(workers, tau=tau, outer=f"slowmo:momentum={beta!r}", rate=alpha, wait=wait, batch=batch)


@register("diloco")
def _diloco(
    workers: int,
    *,
    tau: int = 500,
    rate: float = 0.7,
    momentum: float = 0.9,
    inner: str = "adamw",
    wait: str | None = None,
    batch: int = 0,
) -> Strategy:
    """DiLoCo: hundreds of AdamW steps on each worker, then one Nesterov step by the mean change (pasgd:outer=…)."""
    outer = f"nesterov:momentum={momentum!r}"
    return LocalRounds(workers, tau=tau, outer=outer, rate=rate, inner=inner, keep=True, wait=wait, batch=batch)


@register("compressed")
def _compressed(workers: int, *, of: StrategySpec = "sync", by: str = "qsgd") -> Strategy:
    """A strategy whose messages are compressed: of=(SPEC), by=(SPEC of 'anyk compression')."""
    return Compressed(strategy(of, workers=workers), by)


def _usual_k(workers: int, k: int | None) -> int:
    """k, or half the workers."""
    return max(1, workers // 2) if k is None else k


@register("agc")
def _approximate(
    workers: int,
    *,
    load: int | None = None,
    partitions: int | None = None,
    wait: str | None = None,
    scaling: Scaling | None = None,
    cancel: CancelMode = "preempt",
    decoder: str = "own",
    batch: int = 0,
) -> Strategy:
    """ErasureHead's approximate gradient coding: frc stopped early (one reply more than groups, by default)."""
    code = codes.FractionalRepetition(workers, load=load, partitions=partitions)
    early = wait or min(code.groups + 1, workers)
    return CodedRounds(code, wait=early, scaling=scaling, cancel=cancel, decoder=decoder, batch=batch)


# the keys that a code's spec gains as a strategy
_ROUNDS = {"wait": str, "scaling": Scaling, "cancel": CancelMode, "decoder": str, "batch": int, "models": int}


def rounds(code: codes.Code, **keys: Any) -> Strategy:
    """The strategy that runs a code: :class:`CodedRounds`, or rounds of its own where it has a protocol of its own.

    >>> type(rounds(codes.NestedCode(8))).__name__
    'ProgressRounds'
    """
    made: Any = CodedRounds
    if isinstance(code, codes.ProgressCode):
        made = ProgressRounds
    elif isinstance(code, codes.TreeCode):
        made = TreeRounds
    known = inspect.signature(made).parameters
    for key in keys:
        if key not in known:
            raise BadInput(f"'{code.spec}' takes no {key}: its rounds have a protocol of their own")
    strategy: Strategy = made(code, **keys)
    return strategy


def settled(spec: str, change: Callable[[str], str] = specs.absolute) -> str:
    """A strategy's spec that means the same in any folder: files have absolute paths (or what ``change`` makes)."""
    return specs.with_files(spec, change, registry, codes.registry)


def completed(spec: str, made: Strategy) -> str:
    """A spec with the numbers that it leaves to be chosen, as they were chosen for a strategy made from it.

    Files in it get their absolute paths.

    >>> completed("k-sync", strategy("k-sync", workers=30)), completed("frc", strategy("frc", workers=30))
    ('k-sync:k=15', 'frc:load=3')
    """
    spec = settled(spec)
    (name, given), (meant, chosen) = specs.parse(spec), specs.parse(made.spec)
    if name == "k-sync":
        return specs.with_keys(spec, {"k": _usual_k(made.layout.workers, None)})
    if name != meant or "" in given or "" in chosen:
        return spec
    return specs.with_keys(spec, {key: value for key, value in chosen.items() if value.isdigit()})


def strategy(spec: str | Strategy | codes.Code, *, workers: int | None = None) -> Strategy:
    """Build a strategy from its spec for ``workers`` workers, or of a code; a strategy is taken as it is.

    Every code is a strategy of rounds and then also takes ``wait``, ``scaling``, ``cancel`` and ``decoder``.
    Raises :class:`~anyk.errors.BadInput` when the spec is wrong, and when a code or strategy is for another number of
    workers.

    >>> strategy("agc:load=3,wait=11", workers=30).spec
    'frc:load=3,wait=11'
    """
    if not isinstance(spec, str):
        made = rounds(spec) if isinstance(spec, codes.Code) else spec
        if not all(hasattr(made, part) for part in ("layout", "start", "on", "spec")):
            raise BadInput(f"strategy must be a spec such as 'frc:load=3', a strategy or a code, got {spec!r}")
        if workers is not None and made.layout.workers != workers:
            raise BadInput(f"the strategy is for {made.layout.workers} workers, the cluster has {workers}")
        return made
    workers = check(workers, int, "workers")
    name, values = specs.parse(spec)
    if name in registry:
        return registry.build(spec, workers=workers)
    codes_known = tuple(entry.name for entry in codes.registry)
    if name not in codes_known:
        registry.entry(name, also=codes_known)
    if "" in values:
        raise BadInput(f"'{values['']}' in '{spec}' should be key=value, as in name:key=value,key=value")
    own: dict[str, Any] = {
        key: specs.read(values.pop(key), kind, f"{key} in '{spec}'") for key, kind in _ROUNDS.items() if key in values
    }
    return rounds(codes.registry.build_parsed(spec, name, values, workers=workers), **own)


__all__ = [
    "SequentialRounds",
    "SelectiveRepetition",
    "Multiplexed",
    "GradientCodingRounds",
    "stragglers",
    "smallest_bursty",
    "smallest_arbitrary",
    "StragglerModel",
    "PerRound",
    "GilbertElliott",
    "Bursty",
    "Arbitrary",
    "PairwiseGossip",
    "Compressed",
    "adapted_tau",
    "completed",
    "MatchaSGD",
    "LocalRounds",
    "Gossip",
    "FedBuff",
    "ElasticSGD",
    "DecentralisedSGD",
    "AdaComm",
    "AdaSync",
    "Adaptive",
    "AllOf",
    "AnyOf",
    "CodedRounds",
    "Count",
    "Deadline",
    "Decodable",
    "Durations",
    "Gradual",
    "KFamily",
    "Predicate",
    "ProgressRounds",
    "ResidualBelow",
    "TreeRounds",
    "Wait",
    "Waiting",
    "adapted_k",
    "k_for_delays",
    "k_for_noise",
    "order_means",
    "register",
    "registry",
    "rounds",
    "settled",
    "strategy",
]
