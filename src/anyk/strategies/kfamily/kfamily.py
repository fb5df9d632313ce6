"""The K family: steps made of K gradients, which may be stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from anyk.base.checks import typed
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Commands,
    Dispatch,
    DriftMeasured,
    Event,
    Failed,
    Fleet,
    LossEvaluated,
    MeasureDrift,
    Mix,
    NoiseMeasured,
    Reply,
    StrategyFacts,
    Task,
)
from anyk.strategies.crew import Crew
from anyk.strategies.kfamily.kfamily_facts import facts_of
from anyk.strategies.kfamily.kfamily_settings import KFamilySettings
from anyk.strategies.kfamily.state import KState

_WEIGHT: dict[str, Callable[[int], float]] = {
    "constant": lambda staleness: 1.0,
    "inverse": lambda staleness: 1.0 / max(1, staleness),
    "sqrt": lambda staleness: (1.0 + staleness) ** -0.5,
    "distance": lambda staleness: 1.0,
}
_ONE = (1.0,)


@typed
@dataclass(frozen=True, repr=False)
class KFamily(KFamilySettings):
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

    @property
    def facts(self) -> StrategyFacts:
        return facts_of(self)

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
            # by position, as this is done at every event
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
        state.under_way = {task: work for task, work in state.under_way.items() if work[0] != worker}
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
            next_workers = [last] if self.kind == "k-batch-async" else [worker for worker, _, _ in used]
            commands += self._dispatch(s, [worker for worker in next_workers if worker in s.crew.present])
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
            return Combine("model", messages, weights, scale=self.lr_scale, residual=residual, gain=gain)
        return Combine(
            "model",
            messages,
            weights,
            divisor="counted",
            scale=self.lr_scale,
            residual=residual,
            gain=gain,
            compensation=self.compensate,
        )

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
