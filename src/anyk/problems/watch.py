"""Notices that a user's code computes something else than it did when workers received their copies of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from anyk.arrays import Vector
from anyk.errors import BadInput
from anyk.problems.replicas import ROWS, Trial, sketch
from anyk.problems.surroundings import Variables, differences

DATA = "the data"  # the name of the arrays of samples, every change of which is one of the objective
DATA_SET = "the data set"  # the name of a map-style data set
_EVERY_STEP = 64  # first steps, at each of which a watch glances at variables; then at every seventh:
_STRIDE = 7
_OFTEN = 3  # changes without an effect after which a glance ignores a variable
_MANY = 1024  # samples, from all parts of the data, whose gradient shows whether a changed variable has an effect
_SECONDS = 0.25  # that this gradient may take; otherwise it is one of fewer samples
_NAMED = 3  # variables that a sentence names at most
_REMEDY = (
    "workers compute with the copies that they got then: name a number or array that changes in values= of the "
    "problem, which lets it travel with the model (in a loop: step.values)"
)
_ANEW = "make the problem anew after the change, from the module as it is"


def is_glanced_at(step: int) -> bool:
    """Return whether a watch glances at the variables before a step.

    7 and the period of a value, as of a term that counts in every tenth step, rarely have a common divisor: so one of
    these steps is looked at sooner or later, as it need not be among the powers of two.
    """
    return step < _EVERY_STEP or step % _STRIDE == 0


class Copied(NamedTuple):
    """The problem's copies of the user's objects: the variables of the copies, and the gradient that they give."""

    variables: Callable[[], Variables]
    gradient: Callable[[], Vector]


class Watch:
    """Compares a gradient of a few samples, and the variables that are read for it, with those at the start.

    ``variables`` returns the present variables (``arrays=False``: without arrays), ``gradient`` computes with what the
    user's objects are now, and of at most as many samples as it is given. Variables that computing itself changes, such
    as counters, are ignored. So are others that change without an effect on the gradient of more samples, unless the
    gradient is random or cannot be computed, or they are arrays and elements of the data, of which not all samples are
    looked at. ``limit``: the relative difference that
    rounding may cause. ``copied``: raise :class:`~anyk.errors.BadInput` if the copies that workers will get give
    another gradient already.
    """

    def __init__(
        self,
        variables: Callable[..., Variables],
        gradient: Callable[[int], Vector],
        limit: float,
        *,
        copied: Copied | None = None,
    ) -> None:
        self._variables, self._gradient = variables, gradient
        before = variables()
        if copied is not None:
            self._compare_copies(copied, before, limit)
        began = time.perf_counter()
        self._trial = Trial.of(partial(gradient, ROWS), limit, replicas=False)
        seconds = (time.perf_counter() - began) / 2  # a trial computes the gradient twice
        self._many = min(_MANY, int(ROWS * _SECONDS / seconds))
        self._larger_trial: Trial | None = None
        if self._trial is not None and self._many > ROWS:
            self._larger_trial = Trial.of(partial(gradient, self._many), limit, replicas=False)
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
        moved = self._trial is not None and self._moved(self._trial, ROWS)
        if self._trial is not None and not moved:
            of_samples = [change for change in different if _is_of_samples(*change)]
            others = len(different) > len(of_samples)
            if not (others and self._larger_trial is not None and self._moved(self._larger_trial, self._many)):
                different = of_samples
        if different:
            raise BadInput(f"{_named(different, 'the run began')}; {_REMEDY}")
        if moved:
            raise BadInput(
                f"the loss, the module or the data set compute something else than when the run began; {_REMEDY}"
            )

    def _compare_copies(self, copied: Copied, now: Variables, limit: float) -> None:
        trial = Trial.of(copied.gradient, limit, replicas=False)
        if trial is None or not self._moved(trial, ROWS):
            return
        different = list(differences(copied.variables(), now))
        what = _named(different, "the problem was made") if different else "the module has changed since then"
        raise BadInput(f"the problem trains the copy of the module that it was made with, and {what}; {_ANEW}")

    def _moved(self, trial: Trial, samples: int) -> bool:
        try:
            gradient = self._gradient(samples)
        except Exception:  # such as an object that has lost an attribute
            return True
        return not (np.isfinite(sketch(gradient)).all() and trial.apart(gradient) <= trial.limit)


def _is_of_samples(name: str, before: str, _: str) -> bool:
    """Return whether a variable is an array or an element of the data, and was there before."""
    if not any(of in name for of in (DATA_SET, f"{DATA}[", f"{DATA}'s ")):
        return False
    return name.startswith(DATA) or before.startswith("an array") or (name.endswith("]") and before != "None")


def _named(different: Sequence[tuple[str, str, str]], since: str) -> str:
    named = [f"{name} was {before} when {since} and is {now} now" for name, before, now in different[:_NAMED]]
    more = f", and {len(different) - _NAMED} more variables changed" if len(different) > _NAMED else ""
    return f"{', '.join(named)}{more}"
