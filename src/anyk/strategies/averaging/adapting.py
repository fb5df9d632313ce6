"""The rule that adapts the number of local steps to the loss."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from math import ceil, floor, sqrt
from typing import Annotated, Any

from msgspec import Meta

from anyk.base.checks import AtLeastOne, PositiveNumber, Share, check_range, typed
from anyk.base.errors import BadInput
from anyk.base.plain import values_of
from anyk.protocol import (
    Command,
    EvaluateLoss,
    LossEvaluated,
    Mix,
    Note,
)
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms

_START, _BEST = "initial model", "best probed"  # slots of adacomm with probe


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
    """Return AdaComm's next number of local steps (Wang and Joshi 2019).

    It is ``ceil(sqrt(F / (F_0 r)) tau_0)``, with r the learning rate over the initial one, if that is less than
    ``tau``; else ``floor(gamma tau)`` if the loss has ``stalled``. At least ``least``, and never more than ``tau``.

    >>> [adapted_tau(20, 2.3, loss, 20) for loss in (1.6, 1.0, 0.5, 0.2, 0.05)]
    [17, 14, 10, 6, 3]
    """
    if not (first_loss > 0.0 and loss >= 0.0 and rate > 0.0):
        return tau
    wanted = ceil(sqrt(loss / first_loss / rate) * first_tau - 1e-9)
    if wanted >= tau:
        wanted = floor(gamma * tau) if stalled else tau
    return min(tau, max(least, wanted))


@dataclass(slots=True)
class AdaptingState:
    """AdaComm's record of losses."""

    due: float  # when the loss is evaluated next
    tried: list[float] = field(default_factory=list)  # final losses of the numbers probed so far
    origin: tuple[float, float] | None = None  # loss and learning rate at the start
    last_loss: float = float("inf")


@typed
@dataclass(frozen=True)
class AdaptingSteps:
    """AdaComm's rule: the number of local steps falls with the loss (Wang and Joshi 2019).

    At the first averaging after every ``interval`` seconds the objective is evaluated and ``tau`` set by
    :func:`adapted_tau`: averaging seldom at first is fast, averaging often later is accurate. If this does not lower
    ``tau`` although the loss has stalled (it is above ``guard`` times the loss one interval before), ``tau`` is
    multiplied by ``gamma``. ``guard=0`` is the published rule, which counts every loss as stalled. ``loss_floor`` is
    the least possible value of the objective, ``least`` the smallest ``tau``. Each change is a note in the run's log.

    ``probe``: numbers of local steps, as 1/5/20/100, that are tried first, one interval each from the same initial
    model. Training continues with the number of the least loss (in place of ``tau``), and with its model.
    """

    State = AdaptingState

    _: KW_ONLY
    interval: PositiveNumber = 60.0
    gamma: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    guard: Share = 0.99
    loss_floor: float = 0.0
    least: int = 1
    probe: tuple[AtLeastOne, ...] = ()

    def check(self, rounds: RoundTerms, tau: int, *, outer: str | None) -> None:
        """Raise :class:`~anyk.BadInput` if the rule cannot adapt local steps of these rounds."""
        if self.probe and outer is not None:
            raise BadInput(
                "probe of 'adacomm' starts again and again, which an outer optimiser's state would outlive; "
                "leave out one of them"
            )
        check_range("least of 'adacomm'", self.least, 1, tau, " (tau) local steps")
        if rounds.changes is not None and rounds.changes.measures:
            raise BadInput(
                f"{rounds.changes.name} compares the seconds of rounds, in which 'adacomm' changes the number of local "
                "steps; leave out either"
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the model and of the further models that probing needs."""
        return ("model", _START, _BEST) if self.probe else ("model",)

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a spec for this rule."""
        return values_of(self, *(f.name for f in fields(self)))

    @property
    def usual_keys(self) -> dict[str, Any]:
        """The defaults of those keys that a spec may omit."""
        return {f.name: f.default for f in fields(self) if f.name != "interval"}

    def start(self, now: float, tau: int) -> tuple[AdaptingState, int, list[Command]]:
        """Return the state at the start of a run, the first number of steps, and the request for the loss."""
        first = self.probe[0] if self.probe else tau
        return AdaptingState(now + self.interval), first, [EvaluateLoss("model", 0)]

    def before_round(self, s: RoundState) -> list[Command]:
        """Return requests that the next round waits for; none if it may start."""
        adapting: AdaptingState = s.work.adapt
        if adapting.origin is None or s.now < adapting.due:
            return []
        while adapting.due <= s.now:
            adapting.due += self.interval
        return [EvaluateLoss("model", s.work.iterations)]

    def on_loss(self, s: RoundState, event: LossEvaluated) -> list[Command] | None:
        """Adapt tau; return the commands before the next round, None if that has started already."""
        adapting: AdaptingState = s.work.adapt
        loss = event.loss - self.loss_floor
        if adapting.origin is None:
            adapting.origin, adapting.last_loss = (loss, event.rate), loss
            return None
        if len(adapting.tried) < len(self.probe):
            return self._probed(s, loss)
        rate = event.rate / adapting.origin[1]
        stalled = loss > self.guard * adapting.last_loss
        tau = adapted_tau(
            self.probe[adapting.tried.index(min(adapting.tried))] if self.probe else s.work.first_tau,
            adapting.origin[0],
            loss,
            s.work.tau,
            rate=rate,
            stalled=stalled,
            gamma=self.gamma,
            least=self.least,
        )
        if loss == loss:
            adapting.last_loss = loss
        notes: list[Command] = [Note(f"tau = {tau} at an excess loss of {loss:.4g}")] if tau != s.work.tau else []
        s.work.tau = tau
        return notes

    def _probed(self, s: RoundState, loss: float) -> list[Command]:
        """Try the next number after an interval with one, or choose the best after the last."""
        tried: list[float] = s.work.adapt.tried
        loss = loss if loss == loss else float("inf")
        commands: list[Command] = []
        if loss < min(tried, default=float("inf")) or not tried:
            commands.append(Mix(_BEST, (), (), others=(("model", 1.0),)))
        tried.append(loss)
        if len(tried) < len(self.probe):
            s.work.tau = self.probe[len(tried)]
            commands.append(Mix("model", (), (), others=((_START, 1.0),)))
        else:
            best = tried.index(min(tried))
            s.work.tau = self.probe[best]
            s.work.adapt.last_loss = tried[best]
            commands.append(Mix("model", (), (), others=((_BEST, 1.0),)))
            losses = ", ".join(f"{tau}: {tried_loss:.4g}" for tau, tried_loss in zip(self.probe, tried, strict=True))
            commands.append(Note(f"tau = {s.work.tau} of those probed (excess losses {losses})"))
        s.version += 1
        return commands
