"""The work of a round: the messages of workers, and the step made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from anyk.codes import Code, Method, Selection
from anyk.codes.decoders import METHODS
from anyk.protocol import Command, Dispatch, Layout, LossEvaluated, StrategyFacts, Task
from anyk.strategies.rounds.scaling import Scaling
from anyk.strategies.rounds.state import Ending, RoundState
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import WaitLike

OWN_DECODERS = (METHODS["own"], METHODS["exact"])  # replies are decoded in the code's own way


class RoundWork(ABC):
    """The messages of workers in a round, and the step made of them: gradients or local steps.

    ``models``: number of models that are trained simultaneously. ``speeds``: whether the times of replies are noted.
    ``fewest_replies``: the number of replies with which a step can be taken; None if it depends on the code.
    """

    State: ClassVar[type[Any]]
    fewest_replies: ClassVar[int | None] = None
    models: int = 1
    speeds: bool = False

    @abstractmethod
    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if these rounds cannot do this work."""

    @abstractmethod
    def show(self, rounds: RoundTerms) -> str:
        """Return the spec of these rounds of this work."""

    # ------------------------------------------------------------------------------------------- facts

    @abstractmethod
    def facts(self, rounds: RoundTerms) -> StrategyFacts:
        """Return the facts of these rounds that depend on the work."""

    @abstractmethod
    def summary(self, rounds: RoundTerms) -> str:
        """Return a short description of these rounds."""

    @abstractmethod
    def layout(self, of_code: Layout) -> Layout:
        """Return the layout of a code's rounds with what depends on the work."""

    @property
    def method(self) -> Method:
        """Method that decodes replies."""
        return METHODS["own"]

    @property
    def usual_wait(self) -> WaitLike:
        """The wait rule if none is given; None if it is that of the code."""
        return None

    def scaling_under(self, code: Code) -> Scaling:
        """Return how sums under a code are corrected if partitions are missing."""
        return "none"

    # ------------------------------------------------------------------------------------------- one round

    @abstractmethod
    def start(self, s: RoundState) -> tuple[Any, list[Command]]:
        """Return the state of the work at the start of a run, and the first commands."""

    def tasks(self, code: Code, batch: int) -> tuple[tuple[Task, ...], ...]:
        """Return the tasks per model and worker, as far as they are the same in each round."""
        return ()

    def participants(self, s: RoundState, workers: Sequence[int]) -> Sequence[int]:
        """Return those of the ``workers`` that take part in this round."""
        return workers

    @abstractmethod
    def dispatch(self, s: RoundState, first: int, workers: Sequence[int], batch: int) -> Dispatch:
        """Return the command that gives these workers their tasks, of which ``first`` is the number of the first."""

    def note_reply(self, s: RoundState, worker: int) -> None:
        """Note the time of a reply, if the work measures."""
        return

    def ending(self, rounds: RoundTerms, s: RoundState) -> Ending | None:
        """Return the condition that ends the present round in place of the wait rule; None: the wait rule."""
        return None

    @abstractmethod
    def step(self, s: RoundState, decoding: Selection) -> tuple[Command, Sequence[int]]:
        """Return the step of a round that is over, and the tasks to be cancelled after it."""

    def before_round(self, s: RoundState) -> list[Command]:
        """Return requests whose answers the next round waits for; none if it may start."""
        return []

    def on_loss(self, s: RoundState, event: LossEvaluated) -> list[Command] | None:
        """Return the commands before the next round, which waited for this loss; None if it has started already."""
        return None

    # ------------------------------------------------------------------------------------------- workers that are lost

    def forget(self, s: RoundState, worker: int) -> None:
        """Forget what a lost worker had stored."""
        return

    def replacements(self, s: RoundState) -> list[int]:
        """Return workers that can take the place of participants that have been given up."""
        return []

    def complete_without(self, s: RoundState) -> bool:
        """Return whether a step is to be taken without those that have not replied, as none can any more."""
        return False
