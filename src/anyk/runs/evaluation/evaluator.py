"""Loss and metric of model versions, computed at times that do not count on the run's clock."""

from __future__ import annotations

import math
import reprlib
import tempfile
import threading
import time as clock
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyk.base.arrays import Vector, read_only
from anyk.base.errors import BadInput, RunFailed, describe_error
from anyk.clusters.available import give_back
from anyk.clusters.contract import PINNED
from anyk.clusters.remote.losses import LossUnknown
from anyk.problems.base import Problem, with_values
from anyk.problems.many import problem_of
from anyk.problems.values import Leaves
from anyk.runs.evaluation.evaluate import USUAL, Evaluate
from anyk.runs.log.schema import Evaluation, Version

_TIMES = 1e3  # factor by which a loss may grow before a model counts as diverged
_POINTS = 256  # stored versions of a slot from which on every second one is omitted
_AFTER = 0.01  # seconds after a new version in which the driver, which distributes it, needs the processor
_APART_ELSEWHERE = 30.0  # the same if it has to be read from other machines first
_APART = 0.05  # least seconds on a real clock between two versions that are stored: storing one costs a copy
_LARGE = 1 << 20  # bytes from which on a version is stored in a file
_SHARE = 0.05  # largest share of a real run's time that evaluation takes while it runs


class Evaluator:
    """Stores versions and evaluates them.

    On a virtual clock versions are evaluated immediately. On a real clock they are stored at most every 0.05 s; a
    thread evaluates the newest from time to time, which takes at most 5 % of the time unless another process evaluates
    (with a target, after a second at the latest), and the others are evaluated after the run. Large versions wait in a
    temporary file without a name, not in memory. In a long run only every 2nd, 4th, 8th, … version is stored, a few
    hundred in all, unless ``evaluate`` specifies an interval; with None no version is stored.

    ``problem``: the problem that is evaluated (:func:`~anyk.runs.evaluation.evaluate.evaluating`). ``elsewhere``:
    whether models have to be read from other machines, which is done at most every 30 s. ``meanwhile``:
    called while the driver waits for the thread, so that workers' answers arrive. ``target``: a value of the metric
    (without held-out data, of the loss); ``reached`` is the evaluation of the earliest version that reaches it.
    """

    def __init__(
        self,
        problem: Problem,
        evaluate: Evaluate | None = USUAL,
        *,
        target: float | None = None,
        background: bool = False,
        elsewhere: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.target, self._meanwhile = target, meanwhile
        self.problem, self._off = problem, evaluate is None
        evaluate = evaluate or USUAL
        self._settings = evaluate
        self.done: dict[Version, Evaluation] = {}
        self.latest: Evaluation | None = None  # of the newest version evaluated so far
        self.reached: Evaluation | None = None
        self.unknown: LossUnknown | None = None  # why the last loss that could not be computed is unknown
        self._metrics: dict[str, tuple[int, dict[str, float]]] = {}  # version and metrics of each slot's newest
        self._unlogged: list[tuple[Evaluation, Vector]] = []  # evaluations, each with its model
        self._stored: dict[Version, tuple[float, Vector]] = {}  # time and vector by slot and version
        self._values: dict[Version, Leaves] = {}  # of stored versions that do not carry the initial ones
        self._borrowed: list[Version] = []  # stored versions whose vectors are the driver's, not copies
        self._returned: list[Version] = []  # versions that have been borrowed and copied
        self._fixed = evaluate.every is not None or evaluate.seconds is not None
        usual = _APART_ELSEWHERE if elsewhere else _APART
        self._apart = evaluate.seconds or (usual if background and not self._fixed else 0.0)
        self._last: dict[str, float] = {}  # time of a slot's newest stored version
        self.every = evaluate.every or 1
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if background and not self._off:
            self._thread = threading.Thread(target=self._evaluate_sometimes, name="anyk evaluation", daemon=True)
            self._thread.start()

    def recall(self, evaluation: Evaluation) -> None:
        """Take over an evaluation of an earlier part of the run."""
        slot, time = evaluation.slot, evaluation.time
        self.done[slot, evaluation.version] = evaluation
        self._note(evaluation)
        self._last[slot] = max(time, self._last.get(slot, time))

    def restore_interval(self, every: int) -> None:
        """Store every ``every``-th version, as the earlier part of the run did, unless an interval is specified."""
        if not self._fixed:
            self.every = every

    def _note(self, evaluation: Evaluation) -> None:
        if self.latest is None or evaluation.version >= self.latest.version:
            self.latest = evaluation
        if self._reaches_target(evaluation) and (self.reached is None or evaluation.time < self.reached.time):
            self.reached = evaluation

    def _reaches_target(self, evaluation: Evaluation) -> bool:
        value = evaluation.value
        if self.target is None or value is None:
            return False
        higher = evaluation.metric is not None and self.problem.better == "higher"
        return value >= self.target if higher else value <= self.target

    @property
    def hopeless(self) -> LossUnknown | None:
        """Why it cannot be known any more whether a target loss is reached; None if it can."""
        by_loss = self.target is not None and self.latest is not None and self.latest.metric is None
        return self.unknown if by_loss and self.unknown is not None and self.unknown.forever else None

    def store_version(
        self, slot: str, version: int, time: float, w: Vector, *, values: Leaves | None = None, last: bool = False
    ) -> bool:
        """Store a new version; return whether ``w`` itself is needed until :meth:`take_returned_versions` names it.

        ``values``: the problem's values that the version carries, if they are not the initial ones.
        """
        key = (slot, version)
        if not self.is_due(slot, version, time, last=last):
            return False
        self._last[slot] = time
        if values is not None:
            self._values[key] = values
        borrowed = False
        if self._thread is None:
            self._evaluate(slot, version, time, w)
        with self._lock:
            if self._thread is not None:
                borrowed = len(self._borrowed) < PINNED and not last
                self._stored[key] = time, w if borrowed else _copy(w)
                if borrowed:
                    self._borrowed.append(key)
            if not self._fixed and len(self._stored) + len(self.done) > _POINTS * (1 + self.every.bit_length()):
                self._double_interval()
        self._wake.set()
        return borrowed

    def is_due(self, slot: str, version: int, time: float, *, last: bool = False) -> bool:
        """Return whether a version is to be evaluated; the ``last`` one of a slot always is."""
        if self._off or (version % self.every and not last) or (slot, version) in self.done:
            return False
        return last or not version or time - self._last.get(slot, -np.inf) >= self._apart

    def _double_interval(self) -> None:
        """Evaluate every second version of those so far, and drop the others that are stored."""
        self.every *= 2
        for old in [old for old in self._stored if old[1] % self.every and old not in self._borrowed]:
            del self._stored[old]

    def take_new_evaluations(self) -> list[tuple[Evaluation, Vector]]:
        """Return the evaluations made since the last call, each with its model."""
        with self._lock:
            evaluations, self._unlogged = self._unlogged, []
        return evaluations

    def take_returned_versions(self) -> list[Version]:
        """Return slot and version of the borrowed vectors that have been copied since the last call."""
        with self._lock:
            returned, self._returned = self._returned, []
        return returned

    def _copy_borrowed(self) -> None:
        """Replace vectors by copies, in the thread: allocating memory is the cost of storing a version."""
        while True:
            with self._lock:
                if not self._borrowed:
                    return
                key = self._borrowed[0]
                time, w = self._stored[key]
            copied = _copy(w)
            with self._lock:
                self._stored[key] = time, copied
                self._returned.append(self._borrowed.pop(0))

    def _evaluate(self, slot: str, version: int, time: float, w: Vector) -> None:
        w = read_only(w)
        with np.errstate(over="ignore", invalid="ignore"):  # a model may be about to diverge
            problem = self._problem_at(slot, self._values.pop((slot, version), None))
            metrics, loss = dict[str, float](), None
            try:
                metrics = _numbers_by_name(problem.metrics(w))
                loss = None if self._settings.on == "held_out" else _number(problem.loss(w), "loss(w)")
            except LossUnknown as reason:
                self.unknown = reason
            except (BadInput, RunFailed):
                raise
            except Exception as error:  # a user's problem may raise anything
                raise RunFailed(
                    f"the problem cannot be evaluated at step {version}: {describe_error(error)}"
                ) from error
        give_back(w.nbytes)
        evaluation = Evaluation(slot, version, time, loss, next(iter(metrics.values()), None))
        with self._lock:
            self.done[slot, version] = evaluation
            if version >= self._metrics.get(slot, (0,))[0]:
                self._metrics[slot] = version, metrics
            self._note(evaluation)
            self._unlogged.append((evaluation, w))
            self._stored.pop((slot, version), None)

    def _problem_at(self, slot: str, values: Leaves | None) -> Problem:
        """Return the problem of a slot with the values that a version carries."""
        problem = problem_of(self.problem, slot)
        return problem if values is None else with_values(problem, values)

    def metrics(self, slot: str, version: int, w: Vector, values: Leaves | None = None) -> dict[str, float]:
        """Return all metrics of the newest version of a slot, computed again if it was evaluated before a resume."""
        newest, metrics = self._metrics.get(slot, (-1, {}))
        if newest == version or self._off:
            return metrics
        with np.errstate(over="ignore", invalid="ignore"):
            return _numbers_by_name(self._problem_at(slot, values).metrics(read_only(w)))

    def _evaluate_sometimes(self) -> None:
        pause_until = 0.0  # until then the thread only copies versions
        while not self._over.is_set():
            self._wake.wait()
            self._wake.clear()
            clock.sleep(_AFTER)
            self._copy_borrowed()
            pause = pause_until - clock.perf_counter()
            if pause > 0.0:
                self._over.wait(min(1.0, pause))
                self._wake.set()
                continue
            with self._lock:
                owned = self._stored.keys() - set(self._borrowed)
                newest = max(owned, key=lambda key: key[1], default=None)
                if newest is None or self._over.is_set():
                    continue
                time, w = self._stored[newest]
            began = clock.perf_counter()
            try:
                self._evaluate(*newest, time, w)
            except (BadInput, RunFailed):
                pause_until = float("inf")  # reported after the run, when all other versions are evaluated
                continue
            ended = clock.perf_counter()
            share = 1.0 if self._settings.where == "aside" else _SHARE
            pause_until = ended + (ended - began) * (1.0 / share - 1.0)
            if self.target is not None and self._settings.where != "workers":  # a target must end the run soon
                pause_until = min(pause_until, ended + 1.0)

    def finish(self, tell: Callable[[int, int], None] = lambda done, total: None) -> list[Evaluation]:
        """Evaluate the stored versions and return all evaluations, oldest first.

        ``tell`` is called before each one with its number, from 1, and the number of stored versions.
        """
        self.stop()
        remaining = sorted(self._stored, key=lambda key: key[1])
        for number, (slot, version) in enumerate(remaining):
            tell(number + 1, len(remaining))
            self._evaluate(slot, version, *self._stored[slot, version])
        return sorted(self.done.values(), key=lambda e: (e.version, e.slot))

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._wake.set()
        if self._thread is None:
            return
        while self._meanwhile is not None and self._thread.is_alive():
            self._meanwhile()
        self._thread.join()


def _number(value: Any, what: str) -> float:
    """Return what a problem's method gave as a number; raise :class:`~anyk.BadInput` if it is none."""
    if isinstance(value, (int, float)):
        return value
    try:
        if not isinstance(value, (str, complex, np.complexfloating)) and np.ndim(value) == 0:
            return float(value)
    except (TypeError, ValueError):
        pass
    raise BadInput(f"{what} of the problem must give a number, got {type(value).__name__} ({reprlib.repr(value)})")


def _numbers_by_name(metrics: Any) -> dict[str, float]:
    """Return what a problem's ``metrics`` gave; raise :class:`~anyk.BadInput` if these are no numbers by name."""
    if not isinstance(metrics, Mapping):
        raise BadInput(f"metrics(w) of the problem must give a dictionary of numbers, got {type(metrics).__name__}")
    return {str(name): _number(value, f"'{name}' in metrics(w)") for name, value in metrics.items()}


def _copy(w: Vector) -> Vector:
    """Return a copy; a large one is in a temporary file, which is removed when the copy is not used any more."""
    if w.nbytes < _LARGE:
        return w.copy()
    try:
        with tempfile.TemporaryFile() as file:
            w.tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, dtype=w.dtype, mode="c", shape=w.shape))
    except OSError:  # no space on the disk
        return w.copy()


def divergence(evaluations: Sequence[Evaluation], lr: str, metric: str = "", better: str = "higher") -> str | None:
    """Return a sentence on a model that has diverged, or None.

    A model has diverged if the loss of its last version is not finite, or is above 1,000 times the loss of the first
    version (or above 1,000, if that loss is less than 1). A metric that is to be minimised takes the place of a loss
    that is not evaluated. ``evaluations``: of all slots, oldest first.

    >>> first, last = Evaluation("model", 0, 0.0, 0.7, None), Evaluation("model", 5, 1.0, 2e63, None)
    >>> divergence([first, last], "1e+09")
    'diverged: the loss was 0.7 at step 0 and is 2e+63 at step 5; lower the learning rate (1e+09)'
    """
    by_slot: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        by_slot[evaluation.slot].append(evaluation)
    for of_slot in by_slot.values():
        first, last = of_slot[0], of_slot[-1]
        what, before, after = "loss", first.loss, last.loss
        if before is None and better == "lower":
            what, before, after = metric, first.metric, last.metric
        if before is None or after is None or not math.isfinite(before):
            continue
        if not after <= _TIMES * max(before, 1.0):
            return (
                f"diverged: the {what} was {before:.3g} at step {first.version} and is {after:.3g} at step "
                f"{last.version}; lower the learning rate ({lr})"
            )
    return None


def no_number(evaluations: Sequence[Evaluation]) -> str | None:
    """Return a sentence on a loss that is NaN at every version that was evaluated, or None.

    >>> no_number([Evaluation("model", 0, 0.0, 0.7, None), Evaluation("model", 5, 1.0, math.nan, None)])
    """
    losses = [evaluation.loss for evaluation in evaluations if evaluation.loss is not None]
    if not losses or not all(map(math.isnan, losses)):
        return None
    return (
        "the loss is not a number at any step that was evaluated, although the model is finite: a label or an index "
        "that is out of range can be the cause, or the logarithm of 0"
    )
