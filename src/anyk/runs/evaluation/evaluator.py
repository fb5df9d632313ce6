"""Loss and metric of model versions, off the clock: kept while the run goes on, evaluated when nobody waits for it."""

from __future__ import annotations

import tempfile
import threading
import time as clock
from collections.abc import Callable

import numpy as np

from anyk.clusters.available import give_back
from anyk.clusters.contract import PINNED
from anyk.clusters.remote.losses import Unheld
from anyk.errors import BadInput, RunFailed, describe_error
from anyk.problems.base import Problem, Vector
from anyk.problems.many import problem_of
from anyk.runs.evaluation.evaluate import USUAL, Evaluate
from anyk.runs.log.schema import Evaluation

_POINTS = 256  # versions kept of a slot before every second one is left out
_AFTER = 0.01  # seconds after a new version, while the driver hands it out, in which not to take the processor from it
_APART = 0.05  # seconds that versions kept on a real clock are apart at least: keeping one costs a copy
_LARGE = 1 << 20  # bytes of a version from which on it is kept in a file
_SHARE = 0.05  # of a real run's time at most goes to evaluating while it runs


class Evaluator:
    """Keeps versions and evaluates them.

    On a virtual clock that happens at once. On a real one versions are kept at most every 0.05 s, a thread looks at the
    newest now and then, for at most 5 % of the time unless it is evaluated aside (with a target, in the driver, after a
    second at the latest), and the rest is evaluated after the run; large ones wait in a temporary file without a name,
    not in memory. Of a long run every 2nd, 4th, 8th, … version is kept, a few hundred in all, unless ``evaluate`` says
    otherwise; with None nothing is kept. ``problem``: what is evaluated
    (:func:`~anyk.runs.evaluation.evaluate.evaluating`); while the driver waits for the thread, it calls ``meanwhile``,
    so that workers' answers come in. ``target`` is a value of the metric (without held-out data, of the loss);
    ``reached`` is the earliest version known to have it.
    """

    def __init__(
        self,
        problem: Problem,
        evaluate: Evaluate | None = USUAL,
        *,
        target: float | None = None,
        background: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.target, self._meanwhile = target, meanwhile
        self.problem, self._off = problem, evaluate is None
        evaluate = evaluate or USUAL
        self._share = 1.0 if evaluate.where == "aside" else _SHARE
        self._asks = evaluate.where == "workers"  # whose steps wait
        self._loss = evaluate.on != "held_out"
        self._apart = evaluate.seconds
        self.done: dict[tuple[str, int], Evaluation] = {}
        self.latest: Evaluation | None = None  # the newest version evaluated so far
        self.reached: Evaluation | None = None
        self.unknown: Unheld | None = None  # why the loss of the last version is not known whose loss is not
        self._metrics: dict[str, tuple[int, dict[str, float]]] = {}  # the newest of each slot, with its version
        self._fresh: list[tuple[Evaluation, Vector]] = []
        self._kept: dict[tuple[str, int], tuple[float, Vector]] = {}
        self._borrowed: list[tuple[str, int]] = []
        self._returned: list[tuple[str, int]] = []
        self._fixed = evaluate.every is not None or evaluate.seconds is not None
        self._last: dict[str, float] = {}  # when the newest version kept of a slot was made
        self.every = evaluate.every or 1
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if background and not self._off:
            self._thread = threading.Thread(target=self._look_now_and_then, name="anyk evaluation", daemon=True)
            self._thread.start()

    def recall(self, evaluation: Evaluation) -> None:
        """An evaluation that an earlier part of the run has made."""
        slot, time = evaluation.slot, evaluation.time
        self.done[slot, evaluation.version] = evaluation
        self._note(evaluation)
        self._last[slot] = max(time, self._last.get(slot, time))

    def go_on(self, every: int) -> None:
        """Go on leaving out as many versions as an earlier part of the run did, unless an interval was asked for."""
        if not self._fixed:
            self.every = every

    def _note(self, evaluation: Evaluation) -> None:
        if self.latest is None or evaluation.version >= self.latest.version:
            self.latest = evaluation
        if self._good(evaluation) and (self.reached is None or evaluation.time < self.reached.time):
            self.reached = evaluation

    def _good(self, evaluation: Evaluation) -> bool:
        if self.target is None:
            return False
        if evaluation.metric is None:
            return evaluation.loss is not None and evaluation.loss <= self.target
        return evaluation.metric >= self.target if self.problem.better == "higher" else evaluation.metric <= self.target

    @property
    def hopeless(self) -> Unheld | None:
        """Why the target, a loss, will never be known to be reached; None where it may."""
        by_loss = self.target is not None and self.latest is not None and self.latest.metric is None
        return self.unknown if by_loss and self.unknown is not None and self.unknown.forever else None

    def keep(self, slot: str, version: int, time: float, w: Vector, *, last: bool = False) -> bool:
        """A new version; returns whether ``w`` itself is kept for now, until :meth:`let_go` names it."""
        key = (slot, version)
        if self._off or (version % self.every and not last) or key in self.done:
            return False
        if not last and version and time - self._last.get(slot, -np.inf) < self._pause:
            return False
        self._last[slot] = time
        borrowed = False
        if self._thread is None:
            self._evaluate(slot, version, time, w)
        with self._lock:
            if self._thread is not None:
                borrowed = len(self._borrowed) < PINNED and not last
                self._kept[key] = time, w if borrowed else _copy(w)
                if borrowed:
                    self._borrowed.append(key)
            if not self._fixed and len(self._kept) + len(self.done) > _POINTS * (1 + self.every.bit_length()):
                self.every *= 2
                for old in [old for old in self._kept if old[1] % self.every and old not in self._borrowed]:
                    del self._kept[old]
        self._news.set()
        return borrowed

    @property
    def _pause(self) -> float:
        """Seconds that versions kept are apart at least."""
        if self._apart is not None:
            return self._apart
        return 0.0 if self._thread is None or self._fixed else _APART

    def fresh(self) -> list[tuple[Evaluation, Vector]]:
        """The evaluations made since last asked, each with the model that was evaluated."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
        return fresh

    def let_go(self) -> list[tuple[str, int]]:
        """The (slot, version) whose vectors were kept and are needed no more."""
        with self._lock:
            returned, self._returned = self._returned, []
        return returned

    def _copy_borrowed(self) -> None:
        """Take copies, in the thread: fresh memory is what keeping a version costs."""
        while True:
            with self._lock:
                if not self._borrowed:
                    return
                key = self._borrowed[0]
                time, w = self._kept[key]
            copied = _copy(w)
            with self._lock:
                self._kept[key] = time, copied
                self._returned.append(self._borrowed.pop(0))

    def _evaluate(self, slot: str, version: int, time: float, w: Vector) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a model about to diverge is worth what it is worth
            problem = problem_of(self.problem, slot)
            metrics, loss = dict[str, float](), None
            try:
                metrics = problem.metrics(w)
                loss = problem.loss(w) if self._loss else None
            except Unheld as unheld:
                self.unknown = unheld
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
            self._fresh.append((evaluation, w))
            self._kept.pop((slot, version), None)

    def metrics(self, slot: str, version: int, w: Vector) -> dict[str, float]:
        """Return all metrics of the newest version of a slot; computed if an earlier part of the run evaluated it."""
        known, metrics = self._metrics.get(slot, (-1, {}))
        if known == version or self._off:
            return metrics
        with np.errstate(over="ignore", invalid="ignore"):
            return problem_of(self.problem, slot).metrics(w)

    def _look_now_and_then(self) -> None:
        pause_until = 0.0  # until when only to take copies
        while not self._over.is_set():
            self._news.wait()
            self._news.clear()
            clock.sleep(_AFTER)
            self._copy_borrowed()
            pause = pause_until - clock.perf_counter()
            if pause > 0.0:
                self._over.wait(min(1.0, pause))
                self._news.set()
                continue
            with self._lock:
                owned = self._kept.keys() - set(self._borrowed)
                newest = max(owned, key=lambda key: key[1], default=None)
                if newest is None or self._over.is_set():
                    continue
                time, w = self._kept[newest]
            began = clock.perf_counter()
            try:
                self._evaluate(*newest, time, w)
            except (BadInput, RunFailed):
                pause_until = float("inf")  # it is said when the run has ended and all is evaluated that is left
                continue
            ended = clock.perf_counter()
            pause_until = ended + (ended - began) * (1.0 / self._share - 1.0)
            if self.target is not None and not self._asks:  # reached, it is to end the run soon, whatever that takes
                pause_until = min(pause_until, ended + 1.0)

    def finish(self, tell: Callable[[int, int], None] = lambda done, total: None) -> list[Evaluation]:
        """Evaluate what was kept and return all, oldest first; before each ``tell`` gets (its number, how many)."""
        self.stop()
        remaining = sorted(self._kept, key=lambda key: key[1])
        for number, (slot, version) in enumerate(remaining):
            tell(number + 1, len(remaining))
            self._evaluate(slot, version, *self._kept[slot, version])
        return sorted(self.done.values(), key=lambda e: (e.version, e.slot))

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._news.set()
        if self._thread is None:
            return
        while self._meanwhile is not None and self._thread.is_alive():
            self._meanwhile()
        self._thread.join()


def _copy(w: Vector) -> Vector:
    """A copy that takes no memory of the process's own, if it is large: the file goes when nobody reads it any more."""
    if w.nbytes < _LARGE:
        return w.copy()
    try:
        with tempfile.TemporaryFile() as file:
            w.tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, dtype=w.dtype, mode="c", shape=w.shape))
    except OSError:  # no room there
        return w.copy()
