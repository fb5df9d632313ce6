"""The K family: steps made of K gradients, which may be stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal

from anyk.checks import AtLeastOne, AtLeastZero, NonnegativeNumber, Positive, PositiveNumber, check_workers, typed
from anyk.errors import BadInput
from anyk.plain import part, values_of
from anyk.protocol import (
    Alarm,
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Commands,
    CompressorFacts,
    DelayLaw,
    Dispatch,
    DriftMeasured,
    Event,
    Failed,
    Fleet,
    Layout,
    LossEvaluated,
    MeasureDrift,
    Mix,
    NoiseMeasured,
    Pace,
    Reply,
    StrategyFacts,
    Task,
)
from anyk.specs import bracketed, show
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.closed_forms import finishing_in_vain, mean_interval
from anyk.strategies.crew import Crew, CrewStrategy, spec_of
from anyk.strategies.kfamily.growth import Growth

Kind = Literal["async", "k-sync", "k-async", "k-batch-async", "k-batch-sync"]
Base = Literal["k-sync", "k-async", "k-batch-sync", "k-batch-async"]  # kinds with a k that may grow
Stale = Literal["constant", "inverse", "sqrt", "distance"]

_WEIGHT: dict[str, Callable[[int], float]] = {
    "constant": lambda staleness: 1.0,
    "inverse": lambda staleness: 1.0 / max(1, staleness),
    "sqrt": lambda staleness: (1.0 + staleness) ** -0.5,
    "distance": lambda staleness: 1.0,
}
_ONE = (1.0,)


@dataclass(slots=True)
class KState:
    """A run of the K family: gradients under way, and gradients that wait for the next step."""

    crew: Crew
    k: int
    now: float
    steps_taken: list[int]  # local steps of each worker so far
    version: int = 0
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)  # task -> worker, version
    repeats: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # worker -> version, number of its tasks on that version
    weights: dict[int, float] = field(
        default_factory=dict
    )  # task in the buffer -> weight, if weights depend on the drift of the model
    buffer: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # worker, task and version of gradients that wait for the step
    growth: Any = part()


@typed
@dataclass(frozen=True, repr=False)
class KFamily(CrewStrategy[KState]):
    """K-async, K-batch-async and K-batch-sync SGD (Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018); K = 1 is ``async``.

    Worker i has partition i. A step takes the mean of the ``k`` gradients that come first.

    - k-async: a worker that replied before the step: waits; at the step: these k workers get the new version, the
      others continue
    - k-batch-async: a worker that replied before the step: gets the current version again; at the step: the worker
      that completed the step gets the new version
    - k-batch-sync: a worker that replied before the step: gets the same version again (a new batch); at the step: the
      others are cancelled, all get the new version

    In the asynchronous kinds nothing is cancelled, and gradients are stale: on average by ``(n - k) / k`` versions
    under k-async and ``(n - 1) / k`` under k-batch-async, whatever the delays, since each step makes n - k or n - 1
    unfinished tasks one version older. A learning rate that is stable for synchronous steps is too large by about the
    same factor; ``lr_scale`` multiplies it. The remaining two of the family are rounds: ``sync`` is ``uncoded``,
    ``k-sync:k=K`` is ``uncoded:wait=K``.

    ``batch``: samples of a mini-batch, sampled by (version, worker, number of its tasks on that version); 0: the
    complete partition.
    ``stale``: the weight of a gradient that is s versions old, ``constant`` 1, ``inverse`` 1 / max(1, s) (Zhang, Gupta,
    Lian and Liu 2016) or ``sqrt`` (1 + s)^-1/2 (as FedBuff does); or ``distance``: min(1, ``bound`` / d^2) for a model
    that has moved by d since the gradient's version, so that steps shrink with the distance (Dutta et al. 2018, with
    bound = C / eta_max). ``cutoff``: a gradient of this staleness or more is dropped, and its worker starts on the
    newest version (0: no limit; Maranjyan, Tyurin and Richtarik 2025). ``compensate``: lambda of delay compensation; a
    stale gradient g counts as ``g + lambda g g (w - w_old)``, elementwise, a first-order estimate of its value at the
    newest model, with the squared gradient for the curvature (DC-ASGD-c, Zheng et al. 2017).

    ``growth``: a rule by which k grows (:class:`~anyk.strategies.kfamily.growth.AdaSync`,
    :class:`~anyk.strategies.kfamily.growth.Gradual`). ``work``: k-batch-async whose workers send the change made by
    local steps, which is FedBuff (Nguyen et al. 2022); the model moves by ``rate`` times the mean of the k changes, or
    takes a step of the optimiser ``outer`` by it.

    If no worker is left to wait for, because workers have been given up, a step is taken with fewer than k gradients.

    >>> KFamily(8, kind="k-async", k=3).spec, KFamily(4, kind="async", lr_scale=0.25).spec
    ('k-async:k=3', 'async:lr_scale=0.25')
    """

    State = KState

    workers: int
    _: KW_ONLY
    kind: Kind = "async"
    k: AtLeastOne = 1
    lr_scale: PositiveNumber = 1.0
    batch: AtLeastZero = 0
    stale: Stale = "constant"
    cutoff: AtLeastZero = 0
    bound: Positive | None = None
    compensate: NonnegativeNumber = 0.0
    cancel: CancelMode = "preempt"
    growth: Growth | None = None
    work: LocalSteps | None = None

    def __post_init__(self) -> None:
        kind, k, bound = self.kind, self.k, self.bound
        check_workers(self.workers)
        single = kind in ("k-async", "k-sync")
        if self.growth is not None:
            self.growth.check(self)
        if single and k > self.workers:
            most = f"{self.workers}; the batch kinds take more gradients than workers"
            raise BadInput(f"k of '{kind}' must be 1 to {most}, got {k}")
        if (self.stale == "distance") != (bound is not None):
            raise BadInput(
                "stale=distance needs bound=…, the squared distance up to which a gradient counts fully, above 0; "
                f"got stale={self.stale}, bound={bound}"
            )
        if self.growth is not None and (self.stale != "constant" or self.cutoff or self.compensate or self.work):
            raise BadInput(
                f"'{self.growth.name}' has been tested with plain gradients only; leave out stale, cutoff, "
                "compensate and local steps"
            )
        if self.work is not None:
            tested = LocalSteps(self.work.tau, outer=self.work.outer, rate=self.work.rate)
            if kind != "k-batch-async" or self.work != tested or self.compensate or self.lr_scale != 1.0:
                raise BadInput(
                    "without waiting, local steps are tested as k-batch-async with tau, outer and rate; "
                    "leave out the rest"
                )

    # ------------------------------------------------------------------------------------------- settings

    @property
    def synchronous(self) -> bool:
        """Whether a step cancels the tasks under way."""
        return self.kind in ("k-sync", "k-batch-sync")

    @property
    def batches(self) -> bool:
        """Whether a worker may contribute several gradients to a step."""
        return self.kind in ("k-batch-sync", "k-batch-async")

    @cached_property
    def _one(self) -> bool:
        """Whether a step is one gradient of a complete partition, as in most asynchronous runs: the fast path."""
        plain = not self.batch and self.stale == "constant" and not self.compensate
        return self.k == 1 and not self.synchronous and plain and self.growth is None and self.work is None

    @cached_property
    def _full_tasks(self) -> list[tuple[Task]]:
        """Task of each worker with its complete partition."""
        return [((Chunk((i,), (1.0,)),),) for i in range(self.workers)]

    @cached_property
    def _batch_tasks(self) -> dict[tuple[int, int], Task]:
        """Tasks with a mini-batch so far, by worker and repeat."""
        return {}

    @cached_property
    def _far(self) -> float:
        """Residual of a step with one gradient."""
        return float((self.workers - 1.0) ** 0.5)

    @cached_property
    def layout(self) -> Layout:
        n, local = self.workers, self.work is not None
        return Layout(
            n,
            n,
            tuple((i,) for i in range(n)),
            covers=((),) * n if local else None,
            inner="" if local else None,
            losses=self.growth is not None and self.growth.losses,
            minibatches=self.batch > 0,
        )

    @cached_property
    def spec(self) -> str:
        if self.growth is not None:
            return self.growth.show(self)
        if self.work is not None:
            values = {"tau": self.work.tau, "k": self.k, "rate": self.work.rate}
            values |= values_of(self, "batch", "stale", "cutoff", "bound")
            usual = {"rate": 1.0, "batch": 0, "stale": "sqrt", "cutoff": 0, "bound": None, "outer": None}
            return show("fedbuff", values | {"outer": bracketed(self.work.outer)}, usual)
        first = {} if self.kind == "async" else {"k": self.k}
        return spec_of(self.kind, self, first, omit=("workers", "kind", "k"))

    @property
    def summary(self) -> str:
        few = "every gradient" if self.k == 1 else f"every {self.k} gradients"
        return f"takes a step at {few}, however old its version; waits for nobody"

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(pace=self._pace, check_compressor=self._check_compressor)

    def _check_compressor(self, by: CompressorFacts) -> None:
        if self.compensate:
            raise BadInput("delay compensation needs uncompressed gradients; leave out compensate")

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> tuple[KState, Commands]:
        s = KState(Crew.of(fleet), self.k, fleet.time, [0] * self.workers)
        first: list[Command] = []
        if self.growth is not None:
            s.growth, first = self.growth.start(s)
        return s, [*first, *self._dispatch(s, sorted(s.crew.present))]

    def on(self, state: KState, event: Event) -> Commands:
        s = state
        if self._one and type(event) is Reply:
            worker, version = s.under_way.pop(event.task, (-1, 0))
            if worker == -1:
                return ()
            if self.cutoff and s.version - version >= self.cutoff:
                return [Cancel((event.task,), self.cancel), *self._dispatch(s, [worker])]
            crew = s.crew
            task, crew.next = crew.next, crew.next + 1
            s.version += 1
            s.under_way[task] = worker, s.version
            combine = Combine("model", ((event.task, 0),), _ONE, "counted", self.lr_scale, self._far, self.workers)
            return (combine, Dispatch(task, (worker,), self._full_tasks[worker]))
        s.now = event[0]
        return self.handlers[type(event)](self, s, event)

    def on_reply(self, state: KState, event: Reply) -> Commands:
        if self.bound is None:
            return self._arrived(state, event.task)
        return (MeasureDrift(event.worker, event.task, event.chunk),) if event.task in state.under_way else ()

    def on_drift(self, state: KState, event: DriftMeasured) -> Commands:
        assert self.bound is not None
        state.weights[event.task] = min(1.0, self.bound / event.value) if event.value > 0.0 else 1.0
        return self._arrived(state, event.task)

    def on_alarm(self, state: KState, event: Alarm | LossEvaluated | NoiseMeasured) -> Commands:
        return () if self.growth is None else self.growth.on(self, state, event)

    on_loss = on_noise = on_alarm

    def on_failed(self, state: KState, event: Failed) -> Commands:
        return () if state.under_way.pop(event.task, None) is None else self._dispatch(state, [event.worker])

    def worker_returned(self, state: KState, worker: int) -> Commands:
        if not self.batches and any(other == worker for other, _, _ in state.buffer):
            return self._short_of(state)  # its gradient has arrived: it waits for the step like the others
        return self._dispatch(state, [worker])

    def worker_left(self, state: KState, worker: int) -> Commands:
        state.under_way = {task: at for task, at in state.under_way.items() if at[0] != worker}
        return super().worker_left(state, worker) or self._short_of(state)

    def _arrived(self, s: KState, task: int) -> Commands:
        if self.growth is not None and task in s.under_way:
            self.growth.ended(s, task, whole=True)
        worker, version = s.under_way.pop(task, (-1, 0))
        if worker == -1:
            return ()
        if self.cutoff and s.version - version >= self.cutoff:
            s.weights.pop(task, None)
            return [Cancel((task,), self.cancel), *self._dispatch(s, [worker])]
        s.buffer.append((worker, task, version))
        if len(s.buffer) >= s.k:
            return self._step(s, worker)
        return self._dispatch(s, [worker]) if self.batches else self._short_of(s)

    def _short_of(self, s: KState) -> Commands:
        """Take a step with fewer gradients than k when no more can come before it."""
        if s.under_way or not s.buffer or not s.crew.complete:
            return ()
        return self._step(s, s.buffer[-1][0])

    def _step(self, s: KState, last: int) -> list[Command]:
        growth = self.growth
        if growth is not None and self.synchronous:
            for task in s.under_way:
                growth.ended(s, task, whole=False)
        used = sorted(s.buffer)
        s.buffer = []
        messages = [(task, 0) for _, task, _ in used]
        first = [] if growth is None else growth.stepping(s, messages)
        rule = _WEIGHT[self.stale]
        weights = [s.weights.pop(task, rule(s.version - version)) for _, task, version in used]
        update = self._mixed(s, messages, weights) if self.work is not None else self._combined(used, messages, weights)
        s.version += 1
        commands: list[Command] = [*first, update]
        if self.synchronous:
            cut = tuple(s.under_way)
            s.under_way = {}
            if cut:
                commands.append(Cancel(cut, self.cancel))
            commands += self._dispatch(s, sorted(s.crew.present))
        else:
            again = [last] if self.kind == "k-batch-async" else [worker for worker, _, _ in used]
            commands += self._dispatch(s, [worker for worker in again if worker in s.crew.present])
        return commands if growth is None else commands + growth.stepped(self, s)

    def _combined(
        self, used: Sequence[tuple[int, int, int]], messages: list[tuple[int, int]], weights: list[float]
    ) -> Command:
        """Return the step made of gradients."""
        m, count = self.workers, len(used)
        coefficients = [0.0] * m
        for (worker, _, _), weight in zip(used, weights, strict=True):
            coefficients[worker] += weight * m / count
        residual = (sum((c - 1.0) ** 2 for c in coefficients) / m) ** 0.5
        gain = sum((weight * m / count) ** 2 for weight in weights) ** 0.5
        if self.synchronous:  # an estimate of the complete sum, as in rounds
            weights = [weight * (1.0 / (count / m)) for weight in weights]
            return Combine("model", messages, weights, "all", self.lr_scale, residual, gain)
        return Combine("model", messages, weights, "counted", self.lr_scale, residual, gain, self.compensate)

    def _mixed(self, s: KState, messages: list[tuple[int, int]], weights: list[float]) -> Command:
        """Return the step made of the changes by local steps."""
        work = self.work
        assert work is not None
        scale = (1.0 if work.outer else work.rate) / len(messages)
        outer = None if work.outer is None else (work.outer, work.rate)
        scaled = [scale * weight for weight in weights]
        return Mix("model", messages, scaled, share=1.0, relative=True, outer=outer, number=s.version * work.tau)

    def _dispatch(self, s: KState, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first = s.crew.number(len(workers))
        if self.growth is not None:
            self.growth.dispatched(s, range(first, first + len(workers)))
        tasks = []
        for task, worker in enumerate(workers, first):
            s.under_way[task] = worker, s.version
            tasks.append(self._task(s, worker))
        return [Dispatch(first, tuple(workers), tasks)]

    def _task(self, s: KState, worker: int) -> Task:
        if self.work is not None:
            first, tau = s.steps_taken[worker], self.work.tau
            s.steps_taken[worker] += tau
            return (Chunk((worker,), (1.0,), batch=self.batch, repeat=first, steps=tau),)
        if not self.batch:
            return self._full_tasks[worker][0]
        version, count = s.repeats.get(worker, (-1, 0))
        repeat = count if version == s.version else 0
        s.repeats[worker] = s.version, repeat + 1
        key = worker, repeat
        if key not in self._batch_tasks:
            self._batch_tasks[key] = (Chunk((worker,), (1.0,), batch=self.batch, repeat=repeat),)
        return self._batch_tasks[key]

    # ------------------------------------------------------------------------------------------- pace

    def _pace(self, delays: DelayLaw) -> Pace:
        """Return the pace, in the closed forms of Dutta et al. 2018."""
        n, k, mean = self.workers, self.k, mean_interval(delays, self.workers)
        if self.growth is not None:
            return Pace(None, None, self.growth.why)
        if self.work is not None:
            seconds = None if mean is None or self.cutoff else k * self.work.tau * mean
            why = "k tau over the sum of the workers' rates, whatever the law"
            return Pace(seconds, (n - 1) / k if not self.cutoff else None, why)
        if self.kind == "k-batch-sync" and (self.cancel == "discard" or delays.uninterruptible):
            return finishing_in_vain(k, n, delays, batch=True)
        if self.kind == "k-batch-sync":
            seconds = k * mean if mean is not None and delays.memoryless else None
            return Pace(seconds, 0.0, "k E[X] / n for exponential delays, else simulate")
        if self.cutoff:
            return Pace(None, None, "no closed form with a cut-off; simulate")
        if self.kind == "k-async" and k > 1:
            seconds = delays.order_statistic(k, n) if delays.memoryless or k == n else None
            return Pace(seconds, (n - k) / k, "mean of the k-th of n delays for exponential delays, else simulate")
        seconds = None if mean is None else k * mean
        return Pace(seconds, (n - 1) / k, "k over the sum of the workers' rates, whatever the law")
