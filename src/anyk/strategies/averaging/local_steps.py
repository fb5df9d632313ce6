"""Local steps of workers before their models are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from math import floor
from typing import Any

from anyk.base.checks import AtLeastOne, PositiveNumber, check_range, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.plain import part
from anyk.base.specs import bracketed, show_spec
from anyk.codes import Selection
from anyk.protocol import (
    Chunk,
    Command,
    CompressorFacts,
    DelayLaw,
    Dispatch,
    Layout,
    LossEvaluated,
    Mix,
    Pace,
    StrategyFacts,
)
from anyk.strategies.averaging.adapting import AdaptingSteps
from anyk.strategies.rounds.elastic import ElasticState
from anyk.strategies.rounds.round_work import RoundWork
from anyk.strategies.rounds.shares import shares_of
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import Decodable, WaitLike


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
    adapt: Any = part()  # state of the rule that adapts their number


@typed
@dataclass(frozen=True)
class LocalSteps(RoundWork):
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
    - ``adapt``: a rule that adapts ``tau`` during the run.

    >>> import anyk
    >>> anyk.strategies.Rounds(anyk.codes.Uncoded(4), work=LocalSteps(tau=5, outer="slowmo")).spec
    'pasgd:tau=5,outer=slowmo'
    """

    State = LocalState
    fewest_replies = 1  # a single model can be averaged

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
    adapt: AdaptingSteps | None = None

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if these rounds cannot be rounds of these local steps."""
        if not rounds.code.own_messages:
            raise BadInput(
                f"local steps under '{rounds.code.spec}' have been tested as rounds of uncoded; leave out work"
            )
        if self.rate != 1.0 and self.outer is None:
            raise BadInput("rate is the learning rate of an outer optimiser; give outer=gd, or leave rate out")
        if self.clients is not None:
            check_range("clients", self.clients, 1, rounds.code.workers, " workers")
            if rounds.changes is not None:
                raise BadInput(
                    "clients are sampled from all workers of a fixed fleet, and the others have no times in the round; "
                    f"leave out clients, or {rounds.changes.name}"
                )
        if self.adapt is not None:
            self.adapt.check(rounds, self.tau, outer=self.outer)
            if shares_of(rounds.code):
                raise BadInput("'adacomm' has been tested with equal shares of the data only; leave out shares")
            if self.keep or self.speeds or self.weighted or self.inner:
                raise BadInput(
                    "'adacomm' has been tested with tau, outer, rate and clients of local work only; leave out the rest"
                )

    def show(self, rounds: RoundTerms) -> str:
        """Return the spec of these rounds."""
        wait = rounds.wait_shown
        own_keys = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tau", "adapt")}
        values = {
            "wait": None if self.clients is not None and wait == str(self.clients) else wait,
            "cancel": rounds.cancel,
            "batch": rounds.batch,
            "shares": shares_of(rounds.code),
            **rounds.keys_of_changes,
            **own_keys,
            "outer": bracketed(self.outer),
            "inner": bracketed(self.inner),
        }
        usual = {"wait": None, "cancel": "preempt", "batch": 0, "shares": (), **LOCAL_DEFAULTS}
        if self.adapt is None:
            return show_spec("pasgd", {"tau": self.tau, **values}, usual)
        return show_spec("adacomm", {"tau": self.tau, **self.adapt.keys, **values}, usual | self.adapt.usual_keys)

    # ------------------------------------------------------------------------------------------- facts

    def facts(self, rounds: RoundTerms) -> StrategyFacts:
        """Return the facts of these rounds that depend on the work."""
        return StrategyFacts(
            pace=partial(self._pace, rounds), check_compressor=partial(self._check_compressor, rounds.spec)
        )

    def _pace(self, rounds: RoundTerms, delays: DelayLaw) -> Pace:
        if self.adapt is not None:
            return Pace(None, 0.0, "tau changes with the loss")
        everyone = self.clients is None and rounds.rule == Decodable() and not self.speeds
        seconds = delays.longest_sum(self.tau, rounds.code.workers) if everyone else None
        return Pace(seconds, 0.0, "mean of the largest of n sums of tau delays, exponential, else simulate")

    def _check_compressor(self, spec: str, by: CompressorFacts) -> None:
        """Raise :class:`~anyk.BadInput` if these models must not be compressed by this compressor."""
        if self.keep:
            raise BadInput(f"'{spec}' keeps the inner optimiser's state; with '{by.spec}' leave out keep")

    def summary(self, rounds: RoundTerms) -> str:
        """Return a short description of these rounds."""
        return "workers take steps of their own, then their models are averaged"

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the model, and of the further models that the adapting rule needs."""
        return ("model",) if self.adapt is None else self.adapt.slots

    def layout(self, of_code: Layout) -> Layout:
        """Return the layout of a code's rounds with what local steps need; messages cover no partitions."""
        return replace(
            of_code,
            slots=self.slots,
            auxiliary=self.slots[self.models :],
            covers=((),) * of_code.workers,
            inner=self.inner,
            losses=self.adapt is not None,
            stateful=self.keep,
        )

    @property
    def usual_wait(self) -> WaitLike:
        """The wait rule if none is given: for all clients."""
        return self.clients

    # ------------------------------------------------------------------------------------------- one round

    def start(self, s: RoundState) -> tuple[LocalState, list[Command]]:
        """Return the state at the start of a run, and the request for the loss if the steps adapt to it."""
        if self.adapt is None:
            return LocalState(self.tau, self.tau), []
        adapting, first_tau, commands = self.adapt.start(s.now, self.tau)
        return LocalState(self.tau, first_tau, adapt=adapting), commands

    def participants(self, s: RoundState, workers: Sequence[int]) -> Sequence[int]:
        """Return those of the ``workers`` that take part in this round: its clients."""
        if self.clients is None:
            return workers
        random = keyed_generator(self.seed, "clients", s.version)
        order = [i for i in random.permutation(s.crew.size).tolist() if i not in s.crew.gone]
        sampled = set(order[: self.clients])
        return tuple(worker for worker in workers if worker in sampled)

    def dispatch(self, s: RoundState, first: int, workers: Sequence[int], batch: int) -> Dispatch:
        """Return the command that gives these workers their tasks."""
        partitions = s.code.assignment
        return Dispatch(first, workers, [(self._chunk(s.work, i, batch, partitions[i]),) for i in workers])

    def _chunk(self, local: LocalState, worker: int, batch: int, partitions: tuple[int, ...]) -> Chunk:
        """Return a worker's chunk in this round."""
        steps = local.tau
        if self.speeds and worker in local.speed:
            steps = max(1, floor(local.tau * local.speed[worker] / max(local.speed.values()) + 1e-9))
        local.steps_taken[worker] = steps
        local.most = max(local.most, steps)
        state = local.last_task.get(worker, -1)  # -1 unless states are kept
        return Chunk(
            partitions, (1.0,) * len(partitions), batch=batch, repeat=local.iterations, steps=steps, state=state
        )

    def note_reply(self, s: RoundState, worker: int) -> None:
        """Note the speed of a worker whose reply has arrived."""
        if self.speeds and s.now > s.began:
            s.work.speed[worker] = s.work.steps_taken[worker] / (s.now - s.began)

    def step(self, s: RoundState, decoding: Selection) -> tuple[Mix, Sequence[int]]:
        """Return the step that averages the models that have arrived, and the tasks to be cancelled after it."""
        local: LocalState = s.work
        used = [(s.task_of[worker], 0) for worker in decoding.replies]
        if self.speeds:  # an upper limit for workers that are cut off
            for worker in s.open.values():
                most = local.steps_taken[worker] / max(s.now - s.began, 1e-9)
                local.speed[worker] = min(local.speed.get(worker, most), most)
        if self.keep:
            tasks = dict(used)
            local.last_task |= {reply: task for reply, task in s.task_of.items() if task in tasks}
        weights = [1.0 / len(used)] * len(used)
        outer = None if self.outer is None else (self.outer, self.rate)
        weighted = self.weighted or bool(s.code.shares) or isinstance(s.code_rule, ElasticState)
        mix = Mix("model", used, weights, by_samples=weighted, outer=outer, number=local.iterations)
        local.iterations += local.most
        local.most = 0
        return mix, range(s.first, s.crew.next)

    def before_round(self, s: RoundState) -> list[Command]:
        """Return the request for the loss if the number of steps is due to be adapted to it."""
        return [] if self.adapt is None else self.adapt.before_round(s)

    def on_loss(self, s: RoundState, event: LossEvaluated) -> list[Command] | None:
        """Adapt the number of steps; return the commands before the next round, None if it has started already."""
        return None if self.adapt is None else self.adapt.on_loss(s, event)

    # ------------------------------------------------------------------------------------------- workers that are lost

    def forget(self, s: RoundState, worker: int) -> None:
        """Forget the optimiser state and speed of a lost worker."""
        s.work.last_task.pop(worker, None)
        s.work.speed.pop(worker, None)

    def replacements(self, s: RoundState) -> list[int]:
        """Return workers that can replace a client that has been abandoned."""
        if self.clients is None:
            return []
        busy = {*s.open.values(), *s.task_of, *s.crew.failures}
        return [i for i in sorted(s.crew.present) if i not in busy]

    def complete_without(self, s: RoundState) -> bool:
        """Return whether models are averaged without the others, as no client, or no worker of a fleet, can reply."""
        if not s.task_of:
            return False
        if isinstance(s.code_rule, ElasticState):
            return True
        if self.clients is None:
            return False
        return not set(self.participants(s, range(s.crew.size))) - set(s.task_of) - set(s.crew.failures)


LOCAL_DEFAULTS = {f.name: f.default for f in fields(LocalSteps) if f.name not in ("tau", "adapt")}
