"""Notices that a user's code computes something else than it did when workers received their copies of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import DType, Floats, Vector, read_only
from anyk.base.errors import BadInput
from anyk.problems.base import Partitions, Problem, abilities_of, penalty_of
from anyk.problems.generators import preserved_generators, seed_all
from anyk.problems.given import ANEW, named
from anyk.problems.replicas import ROWS, Sketch, Trial, model_like, scales_of, trial_rows
from anyk.problems.separate_copy import copied
from anyk.problems.surroundings import Variables, differences, variables_of

DATA = "the data"  # the name of the arrays of samples, every change of which is one of the objective
DATA_SET = "the data set"  # the name of a map-style data set
_EVERY_STEP = 64  # first steps, at each of which a watch glances at variables; then at every seventh:
_STRIDE = 7
_LISTED = 3  # names that a sentence lists at most
_OFTEN = 3  # changes without an effect after which a glance ignores a variable
_MANY = 1024  # samples, from all parts of the data, whose gradient shows whether a changed variable has an effect
_SECONDS = 0.25  # that this gradient may take; otherwise it is one of fewer samples
_REMEDY = (
    "workers compute with the copies that they got then: name a number or array that changes in values= of the "
    "problem, which lets it travel with the model (in a loop: step.values)"
)
_REMEDY_OF_DATA = (
    "workers compute with the samples that they got then: to train on other ones, continue in a run of a new problem "
    "(begin=…); what the loss does not need, such as a record of losses, must be kept outside of the data"
)
REMEDY_OF_PROBLEM = (
    "workers compute with the partitions that they got then: to train with the change, continue in a run of its own "
    "(begin=…)"
)
_REMEDY_OF_REGULARISER = (
    "workers that take steps have the one from the start, and so has the run's record: to train with another, continue "
    "in a run of its own (begin=…)"
)
_MARKED = 10_000_000  # parameters up to which a run's folder has a mark of the gradient
_MARKS = 3  # numbers of a mark besides the norm
_ROUNDINGS = 16.0  # by which two gradients of the same samples may differ in the same process


def is_glanced_at(step: int) -> bool:
    """Return whether a watch glances at the variables before a step.

    7 and the period of a value, as of a term that counts in every tenth step, rarely have a common divisor: so one of
    these steps is looked at sooner or later, as it need not be among the powers of two.
    """
    return step < _EVERY_STEP or step % _STRIDE == 0


class Computing(NamedTuple):
    """The user's objects, or a problem's copies of them: their variables, and the gradient that they give.

    ``variables`` omits arrays with ``arrays=False``; ``sketch`` returns sums that represent the gradient of at most as
    many samples as it is given (:class:`~anyk.problems.replicas.Sketch`).
    """

    variables: Callable[..., Variables]
    sketch: Callable[[int], Floats]


def compare_copies(copies: Computing, present: Computing, limit: float, of: str) -> None:
    """Raise :class:`~anyk.BadInput` if a problem's copies of the user's objects compute something else.

    If variables differ without an effect on the gradient of a few samples, that of more samples is looked at, if that
    takes a quarter of a second at most. A random gradient shows nothing; then the variables must be equal. ``limit``:
    the relative difference that rounding may cause. ``of``: what the user calls the objects.
    """
    before, now = copies.variables(), present.variables()
    began = time.perf_counter()
    try:
        trial = Trial(copies.sketch(ROWS), limit, {})
    except Exception:  # the run reports what fails
        return
    many = _more_samples(time.perf_counter() - began)
    if not np.isfinite(trial.sketch).all():
        return
    moving = {name for name, *_ in differences(before, copies.variables())}
    different = [change for change in differences(before, now) if change[0] not in moving]
    if _moved(trial, partial(present.sketch, ROWS)):
        random = Trial.of(partial(copies.sketch, ROWS), limit, replicas=False) is None
        if random and not different:
            return
    else:
        larger = None
        if different and many > ROWS:
            larger = Trial.of(partial(copies.sketch, many), limit, replicas=False)
        if larger is None or not _moved(larger, partial(present.sketch, many)):
            return
    what = named(different, "the problem was made") if different else f"{of} has changed since then"
    raise BadInput(f"the problem trains the copy of {of} that it was made with, and {what}; {ANEW}")


def other_numbers(names: Sequence[str], of: str) -> str:
    """Return the sentence on arrays of a model that have changed since its problem was made."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (
        f"{', '.join(names[:_LISTED])}{more} of {of} had other numbers when the problem was made, with which it is "
        "trained; make the problem anew to train from the present ones"
    )


def _more_samples(seconds: float) -> int:
    """Return the number of samples whose gradient is worth its time, if that of a few takes ``seconds``."""
    return min(_MANY, int(ROWS * _SECONDS / seconds))


def _moved(trial: Trial, compute: Callable[[], Floats]) -> bool:
    """Return whether a sketch is of another gradient than that of a trial."""
    try:
        sketch = compute()
    except Exception:  # such as an object that has lost an attribute
        return True
    return not (np.isfinite(sketch).all() and trial.apart(sketch) <= trial.limit)


class CodeWatch:
    """Compares a gradient of a few samples, and the variables that are read for it, with those at the start.

    ``present`` computes with what the user's objects are now. Variables that computing itself changes, such as
    counters, are ignored. So are others that change without an effect on the gradient, also of more samples if that
    takes a quarter of a second at most, unless the gradient is random or cannot be computed, or they are arrays and
    elements of the data, of which not all samples are looked at. ``limit``: the relative difference that rounding may
    cause. ``is_read``: whether samples may be computed from a variable of the data, by its name. ``of``: what computes;
    ``remedy``: what the user can do about a change that is not one of the data.
    """

    def __init__(
        self,
        present: Computing,
        limit: float,
        *,
        is_read: Callable[[str], bool] = lambda name: True,
        of: str = "the loss, the module or the data set",
        remedy: str = _REMEDY,
    ) -> None:
        self._present, self._is_read, self._of, self._remedy = present, is_read, of, remedy
        before = present.variables()
        began = time.perf_counter()
        self._trial = Trial.of(partial(present.sketch, ROWS), limit, replicas=False)
        self._many = _more_samples((time.perf_counter() - began) / 2)  # a trial computes the gradient twice
        self._larger_trial: Trial | None = None
        if self._trial is not None and self._many > ROWS:
            self._larger_trial = Trial.of(partial(present.sketch, self._many), limit, replicas=False)
        moving = {name for name, *_ in differences(before, present.variables())}
        self._before = {name: value for name, value in before.items() if name not in moving}
        self._moving = moving
        self._harmless: Counter[str] = Counter()  # how often a variable's change has had no effect
        self._without_effect: set[str] = set()  # variables that have changed while the gradient has not

    @property
    def compares_gradients(self) -> bool:
        """Whether there is a gradient to compare with, neither random nor one that cannot be computed here."""
        return self._trial is not None

    def glance(self) -> None:
        """Do :meth:`check`, but only if a variable has changed that is quick to read, and had an effect or is new."""
        now = self._present.variables(arrays=False)
        new = {name: now[name] for name in now.keys() - self._before.keys() - self._moving}
        # such as an instance's own value of a class attribute; elements count together, as caches grow
        changed = {name for name, *_ in differences(self._before, now)} | {name.partition("[")[0] for name in new}
        changed = {name for name in changed if self._harmless[name] < _OFTEN}
        if changed:
            self.check()
            self._harmless.update(changed)
            self._before |= new

    def check(self) -> None:
        """Raise :class:`~anyk.BadInput` if something has changed since the start, and name it."""
        different = list(differences(self._before, self._present.variables()))
        moved = False
        if self._trial is not None:
            moved = _moved(self._trial, partial(self._present.sketch, ROWS))
            of_samples = [change for change in different if _is_of_samples(*change) and self._is_read(change[0])]
            if not moved and len(different) > len(of_samples) and self._larger_trial is not None:
                moved = _moved(self._larger_trial, partial(self._present.sketch, self._many))
            if moved:  # not by what changed before without an effect, such as a counter
                different = [change for change in different if change[0] not in self._without_effect] or different
            else:
                self._without_effect.update(name for name, *_ in different)
                different = of_samples
        if different:
            remedy = _REMEDY_OF_DATA if all(_is_of_samples(*change) for change in different) else self._remedy
            raise BadInput(f"{named(different, 'the run began')}; {remedy}")
        if moved:
            raise BadInput(f"{self._of} would compute something else than when the run began; {self._remedy}")


class ProblemWatch:
    """Notices if a problem is changed while a run computes with it: its regulariser, its code and its data."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._l2, self._penalty = problem.l2, np.array(penalty_of(problem))
        self._code = watch_of(problem)

    def glance(self) -> None:
        """Do :meth:`check` for what is quick to read."""
        self._check_regulariser()
        if self._code is not None:
            self._code.glance()

    def check(self) -> None:
        """Raise :class:`~anyk.BadInput` if something has changed since the run began, and name it."""
        self._check_regulariser()
        if self._code is not None:
            self._code.check()

    def _check_regulariser(self) -> None:
        changed = ""
        if self._problem.l2 != self._l2:
            changed = f"l2 of the problem was {self._l2} when the run began and is {self._problem.l2} now"
        elif not np.array_equal(self._penalty, penalty_of(self._problem)):
            changed = "penalty of the problem has changed since the run began"
        if changed:
            raise BadInput(f"{changed}; {_REMEDY_OF_REGULARISER}")


def gradient_mark(problem: Problem) -> list[float]:
    """Return a few numbers that differ if the gradient of the first samples does; none if it cannot be compared.

    The gradient, with that of the regulariser, is at a model that does not depend on the initial one, with which a run
    that continues does not begin.
    """
    if problem.dimension > _MARKED or abilities_of(problem).endless:
        return []
    w = model_like([(problem.dimension, 0.0, 0.1)], problem.dtype)

    def sketch() -> Floats:
        gradient = _gradient_of_few(partitions, w, ROWS, problem.samples)
        return Sketch.of(gradient / min(ROWS, problem.samples) + penalty_of(problem) * w)

    try:
        partitions = (copied(problem) if abilities_of(problem).watch_code is None else problem).split(1)
        mark = _repeated(sketch, problem.dtype)
    except Exception:  # it is random, needs load, or rows are not in memory
        return []
    if not np.isfinite(mark).all():
        return []
    signs = np.where(np.random.default_rng(0).random((_MARKS, mark.size)) < 0.5, -1.0, 1.0)
    return [float(problem.dimension), float(np.linalg.norm(mark)), *(signs @ mark).tolist()]


def same_gradient(before: Sequence[float], now: Sequence[float], dtype: DType) -> bool:
    """Return whether two marks are of the same gradient, up to the rounding of unlike machines.

    Also if one is empty, or they are of models of unlike sizes, which is refused elsewhere.

    >>> [same_gradient([4.0, 1.0, 0.5], now, np.dtype(float)) for now in ([4.0, 1.0, 0.5 + 1e-9], [4.0, 1.0, 0.6])]
    [True, False]
    """
    if not before or not now or before[0] != now[0]:
        return True
    limit = 8.0 * float(np.finfo(dtype).eps) ** 0.5 * max(before[1], now[1])
    return all(abs(a - b) <= limit for a, b in zip(before[1:], now[1:], strict=True))


def watch_of(problem: Problem) -> CodeWatch | None:
    """Return an object that notices if a problem computes something else than now; None if nothing can be compared.

    A problem of the user's own class is watched by its attributes and a gradient of its first samples, unless that is
    random or cannot be computed in this process.
    """
    make = abilities_of(problem).watch_code
    if make is not None:
        watch: CodeWatch | None = make()
        return watch
    if type(problem).__module__.startswith("anyk."):
        return None
    watch = CodeWatch(
        Computing(partial(variables_of, {"the problem": problem}), partial(_sketch_of_copy, problem)),
        rounding(problem.dtype),
        of="the problem",
        remedy=REMEDY_OF_PROBLEM,
    )
    return watch if watch.compares_gradients else None


def _sketch_of_copy(problem: Problem, most: int) -> Floats:
    """Return the sums of :func:`sketch_of_problem` for a copy; raise ArithmeticError for a random gradient.

    A problem may record what is asked of it, and keep its latest partitions: its own must be those of the run.
    """
    copy = copied(problem)  # once, as a generator of the problem's own draws other numbers at the second time
    return _repeated(partial(sketch_of_problem, copy, most), problem.dtype)


def _repeated(sketch: Callable[[], Floats], dtype: DType) -> Floats:
    """Return a sketch that is computed twice; raise ArithmeticError if the two differ."""
    trial = Trial(sketch(), rounding(dtype), {})
    if trial.apart(sketch()) > trial.limit:
        raise ArithmeticError("two gradients of the same samples differ")
    return trial.sketch


def sketch_of_problem(problem: Problem, most: int) -> Floats:
    """Return sums that represent the gradient of at most so many samples, of partitions that are made anew."""
    partitions = problem.split(1)
    initial = problem.initial()
    like_initial = model_like(scales_of([initial]), problem.dtype)
    for model in (like_initial, initial):  # logarithms, for one, are not finite everywhere
        gradient = _gradient_of_few(partitions, model, most, problem.samples)
        if np.isfinite(gradient).all() and gradient.any():
            break
    return Sketch.of(gradient)


def _gradient_of_few(partitions: Partitions, w: Vector, most: int, samples: int) -> Vector:
    """Return the gradient of at most so many of the samples, all in one partition, with numbers drawn by one seed."""
    with preserved_generators(()) as generators:
        seed_all(generators, 0)
        return partitions.partial_gradient(0, read_only(w), trial_rows(most, samples))  # as it is for workers


def rounding(dtype: DType) -> float:
    """Return the relative difference that two gradients of the same samples may have in the same process."""
    return _ROUNDINGS * float(np.finfo(dtype).eps)


def _is_of_samples(name: str, before: str, _: str) -> bool:
    """Return whether a variable is an array or an element of the data, and was there before."""
    if not any(of in name for of in (DATA_SET, f"{DATA}[", f"{DATA}'s ")):
        return False
    return name.startswith(DATA) or before.startswith("an array") or (name.endswith("]") and before != "None")
