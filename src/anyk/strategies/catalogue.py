"""The strategies by name, each with the settings that a plan tries."""

from __future__ import annotations

from collections.abc import Iterator

from anyk import codes
from anyk.base.checks import typed
from anyk.codes import rising
from anyk.codes.made import LEFT_OUT
from anyk.protocol import CancelMode, Strategy, Workers
from anyk.strategies.averaging.adapting import AdaptingSteps
from anyk.strategies.averaging.cooperative import CooperativeSGD
from anyk.strategies.averaging.gossip import Barrier, DecentralisedSGD, ElasticSGD, MatchaSGD
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.averaging.pairwise import PairwiseGossip
from anyk.strategies.compressed import Compressed
from anyk.strategies.construction import Auto, StrategySpec, balance_of, from_spec, register, rounds, usual_k
from anyk.strategies.kfamily.growth import AdaSync, Gradual, Rule
from anyk.strategies.kfamily.kfamily import KFamily
from anyk.strategies.kfamily.state import Base, Kind, Stale
from anyk.strategies.rounds.anytime import Anytime
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.rounds.scaling import Scaling
from anyk.strategies.sequential import GradientCodingRounds, Multiplexed, SelectiveRepetition
from anyk.strategies.wait import WaitLike


def _shares(workers: int) -> list[int]:
    """Return half, three quarters and nine tenths of the workers."""
    return sorted({max(1, round(share * workers)) for share in (0.5, 0.75, 0.9)})


def _bursty(name: str, workers: int) -> Iterator[str]:
    """Yield specs for bursts of up to 3 rounds and jobs of up to 5 rounds, with both ends of a round."""
    repeated = [(B, x * B + 1) for B in (1, 2, 3) for x in (1, 2)]
    multiplexed = [(B, W) for W in (2, 3, 4) for B in range(1, W) if W - 1 + B <= 5]
    for B, W in repeated if name == "sr-sgc" else multiplexed:
        for end in ("", ",end=decodable"):
            for number in rising(1, workers):
                yield f"{name}:B={B},W={W},lambda={number}{end}"
            for size in rising(2, workers // 2):  # the size of groups that count
                stragglers = size - 1 if name == "m-sgc" else -(-(size - 1) * (W - 1 + B) // B)
                if workers % size == 0 and stragglers <= workers:
                    yield f"{name}:B={B},W={W},lambda={stragglers},inner=frc{end}"


# ------------------------------------------------------------------------------------------- rounds


def _balanced(workers: int) -> list[str]:
    """Return specs with shares that follow the workers' speed, without and with replicas."""
    return ["uncoded:balance=auto", *(f"frc:stragglers={s},balance=auto" for s in (1, 2, 3) if s < workers)]


@register("sync", grid=_balanced)  # sync without settings is uncoded
def _sync(workers: int, *, batch: int = 0, shares: tuple[int, ...] = (), balance: Auto = None) -> Strategy:
    """Synchronous SGD: every worker's gradient, every step (the same as uncoded)."""
    return Rounds(codes.Uncoded(workers, shares), batch=batch, changes=balance_of(balance))


@register("k-sync", grid=lambda workers: (f"k-sync:k={k}" for k in _shares(workers)))
def _k_sync(
    workers: int,
    *,
    k: int | str | None = None,
    batch: int = 0,
    cancel: CancelMode = "preempt",
    shares: tuple[int, ...] = (),
    balance: Auto = None,
) -> Strategy:
    """K-sync SGD: the k gradients that come first, the others are cancelled (the same as uncoded:wait=k)."""
    code, wait = codes.Uncoded(workers, shares), k if isinstance(k, str) else usual_k(workers, k)
    return Rounds(code, wait=wait, batch=batch, cancel=cancel, changes=balance_of(balance))


@register("agc")
def agc(
    workers: int,
    *,
    load: int = LEFT_OUT,
    partitions: int = LEFT_OUT,
    wait: str | None = None,
    scaling: Scaling | None = None,
    cancel: CancelMode = "preempt",
    decoder: str = "own",
    batch: int = 0,
    snapshot: int = 0,
) -> Strategy:
    """ErasureHead's approximate gradient coding: frc stopped early (one reply more than groups, by default)."""
    code = codes.FractionalRepetition(workers, load=load, partitions=partitions)
    early = wait or min(code.groups + 1, workers)
    return rounds(code, wait=early, scaling=scaling, cancel=cancel, decoder=decoder, batch=batch, snapshot=snapshot)


# ------------------------------------------------------------------------------------------- the K family


@register("k-batch-sync", grid=lambda workers: (f"k-batch-sync:k={k}" for k in _shares(workers)))
def _k_batch_sync(
    workers: int, *, k: int | None = None, lr_scale: float = 1.0, batch: int = 0, cancel: CancelMode = "preempt"
) -> Strategy:
    """K-batch-sync SGD: the first k mini-batches, several from a fast worker; the others are cancelled."""
    k = usual_k(workers, k)
    return KFamily(workers, kind="k-batch-sync", k=k, lr_scale=lr_scale, batch=batch, cancel=cancel)


@register("async")
def _async(
    workers: int,
    *,
    lr_scale: float = 1.0,
    batch: int = 0,
    stale: Stale = "constant",
    cutoff: int = 0,
    bound: float | None = None,
    compensate: float = 0.0,
) -> Strategy:
    """Asynchronous SGD: each reply is a step immediately; its worker continues from the newest version."""
    return KFamily(
        workers,
        kind="async",
        lr_scale=lr_scale,
        batch=batch,
        stale=stale,
        cutoff=cutoff,
        bound=bound,
        compensate=compensate,
    )


def _asynchronous(kind: Kind, summary: str) -> None:
    """Register one of the asynchronous kinds that step with k gradients."""

    def build(
        workers: int,
        *,
        k: int | None = None,
        lr_scale: float = 1.0,
        batch: int = 0,
        stale: Stale = "constant",
        cutoff: int = 0,
        bound: float | None = None,
        compensate: float = 0.0,
    ) -> Strategy:
        return KFamily(
            workers,
            kind=kind,
            k=usual_k(workers, k),
            lr_scale=lr_scale,
            batch=batch,
            stale=stale,
            cutoff=cutoff,
            bound=bound,
            compensate=compensate,
        )

    build.__doc__ = summary
    register(kind)(build)


_asynchronous("k-async", "K-async SGD: a step for every k gradients; their workers wait for it, the others continue.")
_asynchronous("k-batch-async", "K-batch-async SGD: a step for every k gradients; no worker waits.")


@register("adasync")
@typed
def adasync(
    workers: int,
    *,
    base: Base = "k-async",
    k: int | None = None,
    interval: float = 60.0,
    rule: Rule = "loss",
    loss_floor: float = 0.0,
    lr_scale: float = 1.0,
    batch: int = 0,
    cancel: CancelMode = "preempt",
) -> KFamily:
    """AdaSync: one of the K family whose K grows as the loss falls, or as noise exceeds the gradient.

    See :class:`~anyk.strategies.kfamily.growth.AdaSync`.

    >>> adasync(8, base="k-async", k=2, interval=5.0).spec
    'adasync:base=k-async,k=2,interval=5'
    """
    growth = AdaSync(interval=interval, rule=rule, loss_floor=loss_floor)
    k = (2 if rule == "noise" else 1) if k is None else k
    return KFamily(workers, kind=base, k=k, lr_scale=lr_scale, batch=batch, cancel=cancel, growth=growth)


@register("gradual")
@typed
def gradual(
    workers: int,
    *,
    base: Base = "k-async",
    k: int = 1,
    every: int = 100,
    by: int = 1,
    last: int | None = None,
    lr_scale: float = 1.0,
    batch: int = 0,
    cancel: CancelMode = "preempt",
) -> KFamily:
    """A K that grows by plan, from ``k`` to ``last`` (default: all workers).

    It grows by ``by`` after every ``every`` steps.

    >>> gradual(8, base="k-sync", k=2, every=50).spec
    'gradual:base=k-sync,k=2,every=50'
    """
    growth = Gradual(every=every, by=by, last=last)
    return KFamily(workers, kind=base, k=k, lr_scale=lr_scale, batch=batch, cancel=cancel, growth=growth)


@register("fedbuff")
@typed
def fedbuff(
    workers: int,
    *,
    tau: int = 10,
    k: int = 1,
    rate: float = 1.0,
    batch: int = 0,
    stale: Stale = "sqrt",
    cutoff: int = 0,
    bound: float | None = None,
    outer: str | None = None,
) -> KFamily:
    """FedBuff (Nguyen et al. 2022): K-batch-async whose workers send the change made by ``tau`` local steps.

    The model moves by ``rate`` times the mean of the first ``k`` changes, each weighted by its staleness s,
    ``(1 + s)^-1/2`` by default; their workers continue from the newest version and no worker waits. ``k=1`` resembles
    FedAsync (Xie, Koyejo and Gupta 2019). ``outer``: the spec of an optimiser that steps by the mean change, with
    learning rate ``rate``. Mean staleness is (n - 1) / k, whatever the delays.

    >>> fedbuff(8, tau=5, k=4).spec
    'fedbuff:tau=5,k=4'
    """
    work = LocalSteps(tau, outer=outer, rate=rate)
    return KFamily(workers, kind="k-batch-async", k=k, batch=batch, stale=stale, cutoff=cutoff, bound=bound, work=work)


# ------------------------------------------------------------------------------------------- local steps


@register("pasgd", grid=lambda workers: (f"pasgd:tau={tau}" for tau in (2, 5, 10)))
@typed
def pasgd(
    workers: int,
    *,
    tau: int = 10,
    wait: WaitLike = None,
    cancel: CancelMode = "preempt",
    batch: int = 0,
    clients: int | None = None,
    weighted: bool = False,
    outer: str | None = None,
    rate: float = 1.0,
    inner: str = "",
    keep: bool = False,
    speeds: bool = False,
    seed: int = 0,
    shares: tuple[int, ...] = (),
    balance: Auto = None,
) -> Rounds:
    """Periodic averaging: each worker takes ``tau`` local steps from the newest version, then models are averaged.

    The settings are described at :class:`~anyk.strategies.averaging.local_steps.LocalSteps`, ``wait`` and ``cancel`` at
    :class:`~anyk.strategies.rounds.coded_rounds.Rounds`: a step averages the models that have arrived when ``wait`` is
    met, and cancels the others.

    >>> pasgd(8, tau=10).spec, pasgd(8, tau=5, outer="slowmo", rate=1.0).spec
    ('pasgd:tau=10', 'pasgd:tau=5,outer=slowmo')
    """
    work = LocalSteps(
        tau,
        clients=clients,
        weighted=weighted,
        outer=outer,
        rate=rate,
        inner=inner,
        keep=keep,
        speeds=speeds,
        seed=seed,
    )
    code = codes.Uncoded(workers, shares)
    return Rounds(code, wait=wait, cancel=cancel, batch=batch, work=work, changes=balance_of(balance))


@register("adacomm")
@typed
def adacomm(
    workers: int,
    *,
    tau: int = 20,
    interval: float = 60.0,
    gamma: float = 0.5,
    guard: float = 0.99,
    loss_floor: float = 0.0,
    least: int = 1,
    probe: tuple[int, ...] = (),
    wait: WaitLike = None,
    cancel: CancelMode = "preempt",
    batch: int = 0,
    clients: int | None = None,
    outer: str | None = None,
    rate: float = 1.0,
    seed: int = 0,
) -> Rounds:
    """AdaComm: periodic averaging whose number of local steps falls with the loss.

    The rule is :class:`~anyk.strategies.averaging.adapting.AdaptingSteps`; the other settings are as in ``pasgd``.
    ``outer=(slowmo:momentum=0.3)`` is the paper's block momentum.

    >>> adacomm(8, tau=20, interval=5.0).spec
    'adacomm:tau=20,interval=5'
    """
    adapt = AdaptingSteps(interval=interval, gamma=gamma, guard=guard, loss_floor=loss_floor, least=least, probe=probe)
    work = LocalSteps(tau, clients=clients, outer=outer, rate=rate, seed=seed, adapt=adapt)
    return Rounds(codes.Uncoded(workers), wait=wait, cancel=cancel, batch=batch, work=work)


@register("fedavg")
def _fedavg(
    workers: int, *, tau: int = 10, clients: int | None = None, wait: str | None = None, batch: int = 0, seed: int = 0
) -> Strategy:
    """FedAvg: periodic averaging weighted by samples, of clients sampled in each round (the same as pasgd)."""
    return pasgd(workers, tau=tau, clients=clients, wait=wait, batch=batch, seed=seed, weighted=True)


@register("hierarchical")
@typed
def hierarchical(
    workers: int,
    *,
    groups: int | None = None,
    tau: int = 10,
    every: int = 4,
    batch: int = 0,
    barrier: Barrier = "local",
) -> DecentralisedSGD:
    """Hierarchical averaging: groups average after ``tau`` local steps, and every few times all workers.

    All workers average every ``every``-th time. So most averaging stays inside a rack or a machine. It is
    ``dpsgd:graph=(groups:groups=…,every=…)``. Groups are consecutive workers, with sizes as even as possible; by
    default there are about sqrt(n) groups. With ``groups=1`` or ``every=1`` it is ``pasgd``. (PyTorch's
    ``HierarchicalModelAverager``, with two levels.)

    >>> hierarchical(8, groups=4, tau=2, every=8).spec
    'dpsgd:graph=(groups:groups=4,every=8),tau=2'
    """
    groups = max(1, round(workers**0.5)) if groups is None else groups
    graph = f"groups:groups={groups},every={every}"
    return DecentralisedSGD(workers, graph=graph, tau=tau, batch=batch, barrier=barrier)


@register("slowmo")
def _slowmo(
    workers: int, *, tau: int = 10, alpha: float = 1.0, beta: float = 0.5, wait: str | None = None, batch: int = 0
) -> Strategy:
    """SlowMo: periodic averaging with slow momentum beta and slow rate alpha (the same as pasgd:outer=…)."""
    return pasgd(workers, tau=tau, outer=f"slowmo:momentum={beta!r}", rate=alpha, wait=wait, batch=batch)


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
    return pasgd(workers, tau=tau, outer=outer, rate=rate, inner=inner, keep=True, wait=wait, batch=batch)


# ------------------------------------------------------------------------------------------- others

register("anytime", grid=lambda workers: ("anytime", "anytime:deadline=1mad"))(Anytime)
register("dpsgd")(DecentralisedSGD)
register("matcha", grid=lambda workers: ("matcha",) if workers <= 64 else ())(
    MatchaSGD
)  # larger graphs take long to set up
register("easgd")(ElasticSGD)
register("coop")(CooperativeSGD)
register("ad-psgd")(PairwiseGossip)
register("gc", grid=lambda workers: (f"gc:stragglers={s}" for s in rising(1, workers // 2)))(GradientCodingRounds)
register("sr-sgc", grid=lambda workers: _bursty("sr-sgc", workers))(SelectiveRepetition)
register("m-sgc", grid=lambda workers: _bursty("m-sgc", workers))(Multiplexed)


@register("compressed", grid=lambda workers: ())  # needs another strategy
def _compressed(workers: int, *, of: StrategySpec = "sync", by: str = "qsgd") -> Strategy:
    """A strategy whose messages are compressed: of=(SPEC), by=(SPEC of 'anyk list compressors')."""
    return Compressed(from_spec(of, Workers(most=workers)), by)
