"""Local steps of workers before their models are averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from math import floor
from typing import Any

from anyk import keyed
from anyk.checks import AtLeastOne, PositiveNumber, check_range, typed
from anyk.errors import BadInput
from anyk.protocol import Chunk, Mix
from anyk.specs import bracketed, show
from anyk.strategies.rounds.state import RoundState


@dataclass(slots=True)
class LocalState:
    """The number of local steps so far, and the speed of workers."""

    first_tau: int
    tau: int
    iterations: int = 0  # sum over past rounds of the largest number of local steps in each
    most: int = 0  # largest number of local steps in this round
    last_task: dict[int, int] = field(default_factory=dict)  # the task that saved a worker's optimiser state
    steps_taken: dict[int, int] = field(default_factory=dict)  # worker -> local steps in this round
    speed: dict[int, float] = field(default_factory=dict)  # local steps per second


@typed
@dataclass(frozen=True)
class LocalSteps:
    """Periodic averaging: each worker takes ``tau`` local steps from the newest version, then models are averaged.

    Worker i has partition i and steps with the run's optimiser and learning rate, or with the optimiser of the spec
    ``inner``. ``tau=1`` with gradient descent is synchronous SGD, up to rounding. Known as local SGD, FedAvg
    (McMahan et al. 2017), PASGD (Wang and Joshi 2018).

    - ``clients``: the number of workers that take part in a round, sampled by (seed, round); ``weighted``: models are
      weighted by the workers' samples.
    - ``outer``: the spec of an optimiser that steps by the change of the mean model as if that were a gradient, with
      learning rate ``rate``: ``slowmo:momentum=0.5`` is SlowMo (Wang et al. 2020), ``nesterov:momentum=0.9`` with rate
      0.7 is DiLoCo (Douillard et al. 2023).
    - ``keep``: workers keep the inner optimiser's state from round to round (it is never averaged; a worker that dies
      starts with a new one); otherwise each round starts with a new state.
    - ``speeds``: the number of a worker's steps is proportional to its speed so far, at least 1; the fastest worker
      takes ``tau``.

    >>> LocalSteps(tau=5, outer="slowmo").show({})
    'pasgd:tau=5,outer=slowmo'
    """

    State = LocalState

    tau: AtLeastOne = 10
    _: KW_ONLY
    clients: int | None = None
    weighted: bool = False
    outer: str | None = None
    rate: PositiveNumber = 1.0
    inner: str = ""
    keep: bool = False
    speeds: bool = False
    seed: int = 0

    def check(self, workers: int) -> None:
        """Raise :class:`~anyk.errors.BadInput` if the settings are invalid for this number of workers."""
        if self.rate != 1.0 and self.outer is None:
            raise BadInput("rate is the learning rate of an outer optimiser; give outer=gd, or leave rate out")
        if self.clients is not None:
            check_range("clients", self.clients, 1, workers, " workers")

    def values(self, rounds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a spec besides ``tau``: first the keys of the ``rounds``, then of the work."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tau"}
        return {**rounds, **own, "outer": bracketed(self.outer), "inner": bracketed(self.inner)}

    def show(self, rounds: Mapping[str, Any]) -> str:
        """Return the spec of rounds of this work."""
        return show("pasgd", {"tau": self.tau, **self.values(rounds)}, LOCAL_DEFAULTS)

    def start(self) -> LocalState:
        """Return the state at the start of a run."""
        return LocalState(self.tau, self.tau)

    # ------------------------------------------------------------------------------------------- one round

    def select_clients(self, s: RoundState, workers: Sequence[int]) -> tuple[int, ...]:
        """Return the workers that take part in this round."""
        if self.clients is None:
            return tuple(workers)
        random = keyed.generator(self.seed, "clients", s.version)
        order = [i for i in random.permutation(s.crew.size).tolist() if i not in s.crew.gone]
        sampled = set(order[: self.clients])
        return tuple(worker for worker in workers if worker in sampled)

    def chunk(self, own: LocalState, worker: int, batch: int, partitions: tuple[int, ...]) -> Chunk:
        """Return a worker's chunk in this round."""
        steps = own.tau
        if self.speeds and worker in own.speed:
            steps = max(1, floor(own.tau * own.speed[worker] / max(own.speed.values()) + 1e-9))
        own.steps_taken[worker] = steps
        own.most = max(own.most, steps)
        state = own.last_task.get(worker, -1)  # -1 unless states are kept
        return Chunk(partitions, (1.0,) * len(partitions), batch=batch, repeat=own.iterations, steps=steps, state=state)

    def note_speed(self, s: RoundState, worker: int, task: int) -> None:
        """Note the speed of a worker whose reply has arrived."""
        if self.speeds and s.now > s.began and task in s.open:
            s.work.speed[worker] = s.work.steps_taken[worker] / (s.now - s.began)

    def lost(self, own: LocalState, worker: int) -> None:
        """Forget the optimiser state and speed of a lost worker."""
        own.last_task.pop(worker, None)
        own.speed.pop(worker, None)

    def averaged(self, s: RoundState, used: Sequence[tuple[int, int]]) -> Mix:
        """Return the command that averages the models that have arrived."""
        own: LocalState = s.work
        if self.speeds:  # an upper limit for workers that are cut off
            for worker in s.open.values():
                most = own.steps_taken[worker] / max(s.now - s.began, 1e-9)
                own.speed[worker] = min(own.speed.get(worker, most), most)
        if self.keep:
            tasks = dict(used)
            own.last_task |= {reply: task for reply, task in s.task_of.items() if task in tasks}
        weights = [1.0 / len(used)] * len(used)
        outer = None if self.outer is None else (self.outer, self.rate)
        weighted = self.weighted or bool(s.code.shares) or s.elastic is not None
        mix = Mix("model", used, weights, by_samples=weighted, outer=outer, number=own.iterations)
        own.iterations += own.most
        own.most = 0
        return mix

    def others(self, s: RoundState) -> list[int]:
        """Return workers that can replace a client that has been abandoned."""
        if self.clients is None:
            return []
        busy = {*s.open.values(), *s.task_of, *s.crew.failures}
        return [i for i in sorted(s.crew.present) if i not in busy]

    def done_without(self, s: RoundState) -> bool:
        """Return whether no client is left to wait for, so that a step is taken without the others."""
        if self.clients is None or not s.task_of:
            return False
        return not set(self.select_clients(s, range(s.crew.size))) - set(s.task_of) - set(s.crew.failures)


LOCAL_DEFAULTS = {f.name: f.default for f in fields(LocalSteps) if f.name != "tau"}
