"""Notices that a user's code computes something else than it did when workers received their copies of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anyk.arrays import Vector
from anyk.errors import BadInput
from anyk.problems.replicas import Trial, sketch
from anyk.problems.surroundings import Variables, differences

DATA = "the data"  # the name of the arrays of samples, every change of which is one of the objective
_NAMED = 3  # variables that a sentence names at most
_REMEDY = (
    "workers compute with the copies that they got then: name a number or array that changes in values= of the "
    "problem, which lets it travel with the model (in a loop: step.values)"
)


class Watch:
    """Compares a gradient of a few samples, and the variables that are read for it, with those at the start.

    ``variables`` returns the present variables, ``gradient`` computes with what the user's objects are now. Variables
    that computing itself changes, such as counters, are ignored. So are others that change without an effect on the
    gradient, unless the gradient is random or cannot be computed. ``limit``: the relative difference that rounding may
    cause.
    """

    def __init__(self, variables: Callable[[], Variables], gradient: Callable[[], Vector], limit: float) -> None:
        self._variables, self._gradient = variables, gradient
        before = variables()
        self._trial = Trial.of(gradient, limit, replicas=False)
        moving = {name for name, *_ in differences(before, variables())}
        self._before = {name: value for name, value in before.items() if name not in moving}

    def check(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` if something has changed since the start, and name it."""
        different = list(differences(self._before, self._variables()))
        moved = self._trial is not None and self._moved(self._trial)
        if self._trial is not None and not moved:
            different = [change for change in different if change[0].startswith(DATA)]
        if different:
            raise BadInput(_sentence(different))
        if moved:
            raise BadInput(
                f"the loss, the module or the data set compute something else than when the run began; {_REMEDY}"
            )

    def _moved(self, trial: Trial) -> bool:
        try:
            gradient = self._gradient()
        except Exception:  # such as an object that has lost an attribute
            return True
        return not (np.isfinite(sketch(gradient)).all() and trial.apart(gradient) <= trial.limit)


def _sentence(different: Sequence[tuple[str, str, str]]) -> str:
    named = [f"{name} was {before} when the run began and is {now} now" for name, before, now in different[:_NAMED]]
    more = f", and {len(different) - _NAMED} more variables changed" if len(different) > _NAMED else ""
    return f"{', '.join(named)}{more}; {_REMEDY}"
