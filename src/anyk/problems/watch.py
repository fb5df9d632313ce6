"""Notices that a user's code computes something else than it did when workers received their copies of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anyk.arrays import Vector
from anyk.errors import BadInput
from anyk.problems.given import named
from anyk.problems.replicas import Trial, sketch
from anyk.problems.surroundings import Variables, differences

DATA = "the data"  # the name of the arrays of samples, every change of which is one of the objective
DATA_SET = "the data set"  # the name of a map-style data set
_EVERY_STEP = 64  # first steps, at each of which a watch glances at variables; then at every seventh:
_STRIDE = 7
_LISTED = 3  # names that a sentence lists at most
_OFTEN = 3  # changes without an effect after which a glance ignores a variable
_REMEDY = (
    "workers compute with the copies that they got then: name a number or array that changes in values= of the "
    "problem, which lets it travel with the model (in a loop: step.values)"
)
_REMEDY_OF_DATA = (
    "workers compute with the samples that they got then: to train on other ones, continue in a run of a new problem "
    "(begin=…); what the loss does not need, such as a record of losses, must be kept outside of the data"
)
ANEW = "make the problem anew after the change, from the module as it is"


def is_glanced_at(step: int) -> bool:
    """Return whether a watch glances at the variables before a step.

    7 and the period of a value, as of a term that counts in every tenth step, rarely have a common divisor: so one of
    these steps is looked at sooner or later, as it need not be among the powers of two.
    """
    return step < _EVERY_STEP or step % _STRIDE == 0


class Computing(NamedTuple):
    """The user's objects, or a problem's copies of them: their variables, and the gradient that they give."""

    variables: Callable[[], Variables]
    gradient: Callable[[], Vector]


def compare_copies(copies: Computing, present: Computing, limit: float) -> None:
    """Raise :class:`~anyk.errors.BadInput` if a problem's copies of the user's objects compute something else.

    A random gradient shows nothing; then the variables must be equal. ``limit``: the relative difference that rounding
    may cause.
    """
    before, now = copies.variables(), present.variables()
    try:
        trial = Trial(sketch(copies.gradient()), limit, {})
    except Exception:  # the run reports what fails
        return
    if not np.isfinite(trial.sketch).all() or not _moved(trial, present.gradient):
        return
    moving = {name for name, *_ in differences(before, copies.variables())}
    different = [change for change in differences(before, now) if change[0] not in moving]
    random = Trial.of(copies.gradient, limit, replicas=False) is None
    if random and not different:
        return
    what = named(different, "the problem was made") if different else "the module has changed since then"
    raise BadInput(f"the problem trains the copy of the module that it was made with, and {what}; {ANEW}")


def other_numbers(names: Sequence[str], of: str) -> str:
    """Return the sentence on arrays of a model that have changed since its problem was made."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (
        f"{', '.join(names[:_LISTED])}{more} of {of} had other numbers when the problem was made, with which it is "
        "trained; make the problem anew to train from the present ones"
    )


def _moved(trial: Trial, compute: Callable[[], Vector]) -> bool:
    """Return whether a gradient is another one than that of a trial."""
    try:
        gradient = compute()
    except Exception:  # such as an object that has lost an attribute
        return True
    return not (np.isfinite(sketch(gradient)).all() and trial.apart(gradient) <= trial.limit)


class Watch:
    """Compares a gradient of a few samples, and the variables that are read for it, with those at the start.

    ``variables`` returns the present variables (``arrays=False``: without arrays), ``gradient`` computes with what the
    user's objects are now. Variables that computing itself changes, such as counters, are ignored. So are others that
    change without an effect on the gradient, unless the gradient is random or cannot be computed, or they are arrays
    and elements of the data, of which the gradient shows only a few samples. ``limit``: the relative difference that
    rounding may cause. ``is_read``: whether samples may be computed from a variable of the data, by its name.
    """

    def __init__(
        self,
        variables: Callable[..., Variables],
        gradient: Callable[[], Vector],
        limit: float,
        is_read: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._variables, self._gradient, self._is_read = variables, gradient, is_read
        before = variables()
        self._trial = Trial.of(gradient, limit, replicas=False)
        moving = {name for name, *_ in differences(before, variables())}
        self._before = {name: value for name, value in before.items() if name not in moving}
        self._moving = moving
        self._harmless: Counter[str] = Counter()  # how often a variable's change has had no effect

    def glance(self) -> None:
        """Do :meth:`check`, but only if a variable has changed that is quick to read, and had an effect or is new."""
        now = self._variables(arrays=False)
        new = {name: now[name] for name in now.keys() - self._before.keys() - self._moving}
        # such as an instance's own value of a class attribute; elements count together, as caches grow
        changed = {name for name, *_ in differences(self._before, now)} | {name.partition("[")[0] for name in new}
        changed = {name for name in changed if self._harmless[name] < _OFTEN}
        if changed:
            self.check()
            self._harmless.update(changed)
            self._before |= new

    def check(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` if something has changed since the start, and name it."""
        different = list(differences(self._before, self._variables()))
        moved = self._trial is not None and _moved(self._trial, self._gradient)
        if self._trial is not None and not moved:
            different = [change for change in different if _is_of_samples(*change) and self._is_read(change[0])]
        if different:
            remedy = _REMEDY if moved or self._trial is None else _REMEDY_OF_DATA
            raise BadInput(f"{named(different, 'the run began')}; {remedy}")
        if moved:
            raise BadInput(
                f"the loss, the module or the data set compute something else than when the run began; {_REMEDY}"
            )


def _is_of_samples(name: str, before: str, _: str) -> bool:
    """Return whether a variable is an array or an element of the data, and was there before."""
    if not any(of in name for of in (DATA_SET, f"{DATA}[", f"{DATA}'s ")):
        return False
    return name.startswith(DATA) or before.startswith("an array") or (name.endswith("]") and before != "None")
