"""Rounds of local work: workers step on their own for a while, then their models are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, sqrt
from typing import Any

from anyk import keyed
from anyk.checks import typed
from anyk.codes import Selection, Uncoded
from anyk.errors import BadInput
from anyk.protocol import (
    CancelMode,
    Chunk,
    Command,
    Dispatch,
    EvaluateLoss,
    Event,
    Fleet,
    LossEvaluated,
    Lost,
    Mix,
    Note,
    Reply,
)
from anyk.specs import bracketed, show
from anyk.strategies.rounds import CodedRounds
from anyk.strategies.wait import WaitLike

_START, _BEST = "initial model", "best probed"  # slots of adacomm with probe


@typed
class LocalRounds(CodedRounds):
    """Periodic averaging: each worker takes ``tau`` steps of its own from the newest version, then models are averaged.

    Worker i holds partition i and steps with the run's optimiser and learning rate, or with ``inner`` (an optimiser's
    spec) in its place. ``tau=1`` with gradient descent is synchronous SGD, to rounding. Known as local SGD, FedAvg
    (McMahan et al. 2017), PASGD (Wang and Joshi 2018).

    - ``clients``: only so many workers, drawn by (seed, round), take part in a round; ``weighted``: their models count
      by their samples.
    - ``wait``, ``cancel``: as for rounds of a code. A step is taken with whoever is in; the others are cut off.
    - ``outer``: an optimiser's spec; it steps by the change of the mean model as if that were a gradient, with learning
      rate ``rate``: ``slowmo:momentum=0.5`` is SlowMo (Wang et al. 2020), ``nesterov:momentum=0.9`` with rate 0.7
      DiLoCo's (Douillard et al. 2023).
    - ``keep``: workers keep the inner optimiser's state from round to round (it is never averaged; a worker that dies
      begins with a fresh one); else it begins afresh.
    - ``speeds``: a worker's steps are in proportion to its speed so far, the fastest takes ``tau`` (at least one each).

    >>> LocalRounds(8, tau=10).spec, LocalRounds(8, tau=5, outer="slowmo", rate=1.0).spec
    ('pasgd:tau=10', 'pasgd:tau=5,outer=slowmo')
    """

    def __init__(
        self,
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
    ) -> None:
        if tau < 1:
            raise BadInput(f"tau (local steps) must be at least 1, got {tau}")
        if clients is not None and not 1 <= clients <= workers:
            raise BadInput(f"clients must be 1 to {workers} workers, got {clients}")
        if not 0.0 < rate < float("inf"):
            raise BadInput(f"rate (the outer learning rate) must be above 0, got {rate:g}")
        if rate != 1.0 and outer is None:
            raise BadInput("rate is the learning rate of an outer optimiser; give outer=gd, or leave it out")
        if clients is not None and wait is None:
            wait = clients
        super().__init__(Uncoded(workers), wait=wait, cancel=cancel, batch=batch, scaling="none")
        self._asked_wait = None if wait is None else str(wait)
        self.tau, self.clients, self.weighted, self.speeds = tau, clients, weighted, speeds
        self.outer, self.rate, self.inner, self.keep, self.seed = outer, rate, inner, keep, seed
        # what changes:
        self.iterations = 0  # local steps of all rounds so far, of the worker that took most
        self._most = 0  # of this round
        self._left: dict[int, int] = {}  # the task that left a worker's optimiser state
        self._taken: dict[int, int] = {}  # worker -> local steps of this round
        self._speed: dict[int, float] = {}  # local steps a second

    @property
    def spec(self) -> str:
        """The short form."""
        return show("pasgd", self._keys(), _DEFAULTS)

    @property
    def covers(self) -> Sequence[tuple[int, ...]]:
        """A message is a whole model."""
        return ((),) * self.workers

    def _keys(self) -> dict[str, Any]:
        wait = self._asked_wait if self.clients is None or self._asked_wait != str(self.clients) else None
        return {
            "tau": self.tau, "wait": wait, "cancel": self.cancel, "batch": self.batch, "clients": self.clients,
            "weighted": self.weighted, "outer": bracketed(self.outer), "rate": self.rate,
            "inner": bracketed(self.inner), "keep": self.keep, "speeds": self.speeds, "seed": self.seed,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.iterations = self._most = 0
        self._left, self._taken, self._speed = {}, {}, {}
        return super().start(fleet)

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Reply) and self.speeds and event.time > self._began and event.task in self._open:
            self._speed[event.worker] = self._taken[event.worker] / (event.time - self._began)
        elif isinstance(event, Lost):
            self._left.pop(event.worker, None)
            self._speed.pop(event.worker, None)
        return super().on(event)

    def _stuck(self) -> list[Command]:
        """In place of a client that has been given up another one is drawn; what cannot be replaced is done without."""
        if self.clients is not None:
            busy = set(self._open.values())
            idle = [i for i in sorted(self._present) if i not in busy and not self._has_replied(i)]
            others = self._dispatch([i for i in idle if i not in self._failures])
            if others:
                return others
            waited_for = set(self._chosen(range(self.workers))) - set(self._task_of) - set(self._failures)
            if self._task_of and not waited_for:
                return self._step()
        return super()._stuck()

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        chosen = self._chosen(workers)
        if not chosen:
            return []
        task, self._next = self._next, self._next + len(chosen)
        self._expect(task, chosen)
        chunks = []
        for worker in chosen:
            steps = self._taken[worker] = self._steps(worker)
            self._most = max(self._most, steps)
            chunks.append((
                Chunk((worker,), (1.0,), batch=self.batch, repeat=self.iterations, steps=steps,
                      state=self._left.get(worker, -1) if self.keep else -1),
            ))  # fmt: skip
        return [Dispatch(task, chosen, chunks)]

    def _chosen(self, workers: Sequence[int]) -> tuple[int, ...]:
        """Those of the workers that take part in this round."""
        if self.clients is None:
            return tuple(workers)
        random = keyed.generator(self.seed, "clients", self.version)
        order = [i for i in random.permutation(self.workers).tolist() if i not in self._gone]
        part = set(order[: self.clients])
        return tuple(worker for worker in workers if worker in part)

    def _steps(self, worker: int) -> int:
        """A worker's local steps of this round."""
        if not self.speeds or worker not in self._speed:
            return self.tau
        return max(1, floor(self.tau * self._speed[worker] / max(self._speed.values()) + 1e-9))

    def _combined(self, used: Sequence[tuple[int, int]], decoding: Selection) -> Command:
        if self.speeds:  # who was cut off is at most this fast
            for worker in self._open.values():
                most = self._taken[worker] / max(self._now - self._began, 1e-9)
                self._speed[worker] = min(self._speed.get(worker, most), most)
        if self.keep:
            self._left |= {reply: task for reply, task in self._task_of.items() if (task, 0) in set(used)}
        weight = 1.0 / len(used)
        outer = None if self.outer is None else (self.outer, self.rate)
        mix = Mix("model", used, [weight] * len(used), by_samples=self.weighted, outer=outer, number=self.iterations)
        self.iterations += self._most
        self._most = 0
        return mix

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return super().state() | {
            "iterations": self.iterations,
            "most": self._most,
            "left": list(self._left.items()),
            "taken": list(self._taken.items()),
            "speed": list(self._speed.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self.iterations, self._most = state["iterations"], state["most"]
        self._left, self._taken, self._speed = dict(state["left"]), dict(state["taken"]), dict(state["speed"])


_DEFAULTS: dict[str, Any] = {
    "wait": None, "cancel": "preempt", "batch": 0, "clients": None, "weighted": False, "outer": None, "rate": 1.0,
    "inner": "", "keep": False, "speeds": False, "seed": 0,
}  # fmt: skip


def adapted_tau(
    first_tau: int,
    first_loss: float,
    loss: float,
    tau: int,
    *,
    rate: float = 1.0,
    stalled: bool = True,
    gamma: float = 0.5,
    least: int = 1,
) -> int:
    """AdaComm's next number of local steps (Wang and Joshi 2019).

    ``ceil(sqrt(F / (F_0 r)) tau_0)``, with r the learning rate over that at the beginning, where that is less than
    ``tau``; else ``floor(gamma tau)`` where the loss has ``stalled``. At least ``least``, and never more than ``tau``.

    >>> [adapted_tau(20, 2.3, loss, 20) for loss in (1.6, 1.0, 0.5, 0.2, 0.05)]
    [17, 14, 10, 6, 3]
    """
    if not (first_loss > 0.0 and loss >= 0.0 and rate > 0.0):
        return tau
    wanted = ceil(sqrt(loss / first_loss / rate) * first_tau - 1e-9)
    if wanted >= tau:
        wanted = floor(gamma * tau) if stalled else tau
    return min(tau, max(least, wanted))


@typed
class AdaComm(LocalRounds):
    """AdaComm: periodic averaging whose number of local steps falls with the loss.

    At the first averaging after every ``interval`` seconds the objective is looked at and ``tau`` set by
    :func:`adapted_tau`: first averaging seldom is best, for speed, and later often, for accuracy. ``gamma`` is the
    factor where that asks for no fewer steps and the loss has stalled: it is above ``guard`` times what it was an
    interval ago. ``guard=0`` is the published rule, which counts every loss as stalled. ``floor`` is the least value
    that the objective can have, ``least`` that of ``tau``. Each change is a note in the run's log.

    ``probe``: numbers of local steps, as 1/5/20/100, that are tried first, an interval each from the same initial
    model; the one with the least loss is where it begins (in place of ``tau``), from the model that it came to.

    All else as for ``pasgd``; ``outer=(slowmo:momentum=0.3)`` is the paper's block momentum.

    >>> AdaComm(8, tau=20, interval=5.0).spec
    'adacomm:tau=20,interval=5'
    """

    def __init__(
        self,
        workers: int,
        *,
        tau: int = 20,
        interval: float = 60.0,
        gamma: float = 0.5,
        guard: float = 0.99,
        floor: float = 0.0,
        least: int = 1,
        probe: tuple[int, ...] = (),
        wait: WaitLike = None,
        cancel: CancelMode = "preempt",
        batch: int = 0,
        outer: str | None = None,
        rate: float = 1.0,
    ) -> None:
        if any(tried < 1 for tried in probe):
            raise BadInput(
                f"probe of 'adacomm' must be local steps of at least 1 each, got {'/'.join(map(str, probe))}"
            )
        if probe and outer is not None:
            raise BadInput("probe of 'adacomm' starts again and again, which an outer optimiser's state would outlive; "
                           "leave out one of them")  # fmt: skip
        if not 0.0 < interval < float("inf"):
            raise BadInput(f"interval of 'adacomm' must be above 0 s, got {interval:g}")
        if not 0.0 < gamma < 1.0:
            raise BadInput(f"gamma of 'adacomm' must be between 0 and 1, got {gamma:g}")
        if not 0.0 <= guard <= 1.0:
            raise BadInput(f"guard of 'adacomm' must be 0 to 1, got {guard:g}")
        if not 1 <= least <= tau:
            raise BadInput(f"least of 'adacomm' must be 1 to tau = {tau} local steps, got {least}")
        super().__init__(workers, tau=tau, wait=wait, cancel=cancel, batch=batch, outer=outer, rate=rate)
        self.first_tau, self.interval, self.gamma, self.guard = tau, interval, gamma, guard
        self.floor, self.least = floor, least
        self.probe = probe
        if probe:
            self.slots, self.auxiliary = ("model", _START, _BEST), (_START, _BEST)
        self._tried: list[float] = []  # losses that the numbers probed so far came to
        self._origin: tuple[float, float] | None = None  # loss and learning rate
        self._last_loss = float("inf")
        self._due = interval

    @property
    def spec(self) -> str:
        """The short form."""
        rest = self._keys()
        del rest["tau"]
        values: dict[str, Any] = {"tau": self.first_tau, "interval": self.interval, "gamma": self.gamma}
        values |= {"guard": self.guard, "floor": self.floor, "least": self.least, "probe": self.probe}
        return show(
            "adacomm",
            values | rest,
            _DEFAULTS | {"gamma": 0.5, "guard": 0.99, "floor": 0.0, "least": 1, "probe": ()},
        )

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.tau, self._origin, self._last_loss = self.first_tau, None, float("inf")
        self._tried = []
        if self.probe:
            self.tau = self.probe[0]
        self._due = fleet.time + self.interval
        return [EvaluateLoss("model", 0), *super().start(fleet)]

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if not isinstance(event, LossEvaluated):
            return super().on(event)
        loss = event.loss - self.floor
        if self._origin is None:
            self._origin, self._last_loss = (loss, event.rate), loss
            return ()
        if len(self._tried) < len(self.probe):
            return [*self._probed(loss), *super()._begin()]
        rate = event.rate / self._origin[1]
        stalled = loss > self.guard * self._last_loss
        first_tau = self.probe[self._tried.index(min(self._tried))] if self.probe else self.first_tau
        tau = adapted_tau(
            first_tau, self._origin[0], loss, self.tau, rate=rate, stalled=stalled, gamma=self.gamma,
            least=self.least,
        )  # fmt: skip
        if loss == loss:
            self._last_loss = loss
        notes = [Note(f"tau = {tau} at an excess loss of {loss:.4g}")] if tau != self.tau else []
        self.tau = tau
        return [*notes, *super()._begin()]

    def _probed(self, loss: float) -> list[Command]:
        """After an interval with one of the numbers that are tried: the next, or the best of all."""
        loss = loss if loss == loss else float("inf")
        commands: list[Command] = []
        if loss < min(self._tried, default=float("inf")) or not self._tried:
            commands.append(Mix(_BEST, (), (), others=(("model", 1.0),)))
        self._tried.append(loss)
        if len(self._tried) < len(self.probe):
            self.tau = self.probe[len(self._tried)]
            commands.append(Mix("model", (), (), others=((_START, 1.0),)))
        else:
            best = self._tried.index(min(self._tried))
            self.tau = self.probe[best]
            # as if it had begun there: what follows is compared with the loss of the beginning
            self._last_loss = self._tried[best]
            commands.append(Mix("model", (), (), others=((_BEST, 1.0),)))
            losses = ", ".join(f"{tau}: {tried:.4g}" for tau, tried in zip(self.probe, self._tried, strict=True))
            commands.append(Note(f"tau = {self.tau} of those probed (excess losses {losses})"))
        self.version += 1
        return commands

    def _begin(self) -> list[Command]:
        if self._origin is None or self._now < self._due:
            return super()._begin()
        while self._due <= self._now:
            self._due += self.interval
        return [EvaluateLoss("model", self.iterations)]  # and begins when it knows

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        own = {
            "tau": self.tau,
            "tried": list(self._tried),
            "first_seen": self._origin,
            "last_loss": self._last_loss,
            "due": self._due,
        }
        return super().state() | own

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self.tau, self._last_loss, self._due = state["tau"], state["last_loss"], state["due"]
        self._tried = list(state["tried"])
        self._origin = None if state["first_seen"] is None else (state["first_seen"][0], state["first_seen"][1])
