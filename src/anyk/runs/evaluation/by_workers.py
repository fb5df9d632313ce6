"""A run's objective as its workers compute it, each on its own data."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput
from anyk.clusters.contract import Cluster
from anyk.clusters.remote.remote import Remote
from anyk.problems.base import Problem, abilities_of, penalty_of
from anyk.problems.many import ManyProblems, each_of
from anyk.runs.evaluation.evaluate import Evaluate
from anyk.runs.limits import first_metrics

_MOMENT = 0.01  # seconds


def by_workers(evaluate: Evaluate, problem: Problem, cluster: Cluster) -> tuple[Problem, Asking | None]:
    """Return the problem that the ``cluster``'s workers evaluate, and the object that asks them.

    On a virtual clock, whose workers compute in the driver, there is no such object. Raises
    :class:`~anyk.BadInput` if workers cannot evaluate the problem.
    """
    samples, evaluated = evaluate.samples, problem
    if samples is not None and (cluster.virtual or first_metrics(problem)):
        if not cluster.virtual and abilities_of(problem).evaluated_on != "train":
            raise BadInput(
                "samples= picks training and held-out samples together, so that the driver would read training data; "
                "omit samples or the held-out data, or evaluate where='aside'"
            )
        evaluated = abilities_of(problem).sampled(samples)
    if cluster.virtual:
        return evaluated, None
    if samples is not None and any(abilities_of(member).uneven is not None for member in each_of(problem)):
        raise BadInput(
            "split=… puts samples into another order, in which workers would pick others than the driver; omit samples "
            "or split, or evaluate where='driver' or 'aside'"
        )
    asking = Asking(problem, evaluated, cluster, samples)
    return asking.problem, asking


class Asking:
    """Lets the workers of a run evaluate its objective while the cluster is open.

    ``problem``: a problem whose objective comes from the workers, and everything else from ``evaluated``. While the run
    is driven another thread may ask, and the driver passes the question on between two events; the driver's own thread
    may ask when the run has ended. ``samples``: the number of samples to evaluate on, None for all.

    Raises :class:`~anyk.BadInput` if this cluster's workers cannot be asked.
    """

    def __init__(self, problem: Problem, evaluated: Problem, cluster: Cluster, samples: int | None) -> None:
        if not isinstance(cluster, Remote):
            raise BadInput(f"workers of cluster '{cluster.spec}' cannot be asked; evaluate where='driver' or 'aside'")
        self._cluster, self._samples = cluster, samples
        self._total = problem.samples if samples is None else min(samples, problem.samples)
        self._driver = threading.current_thread()
        self._events: Iterator[Any] | None = None
        self._closed = False
        self.interrupted: Callable[[], bool] = lambda: False  # whether the run must end soon
        self.problem: Problem = _EvaluatedByWorkers(evaluated, self, "")
        if isinstance(evaluated, ManyProblems):
            self.problem = ManyProblems(
                [_EvaluatedByWorkers(member, self, slot) for slot, member in evaluated.by_slot.items()]
            )

    def loss(self, slot: str, w: Vector) -> float:
        """Return the mean loss over the samples at ``w``, which must not change before the method returns.

        Raises :class:`~anyk.clusters.remote.losses.LossUnknown` if no worker has the data.
        """
        question = self._cluster.losses.ask(slot, w, self._samples)
        while threading.current_thread() is self._driver and not question.done():
            self.pass_on()
        return question.result() / self._total

    def pass_on(self) -> None:
        """Pass questions and answers on for a moment; called in the driver's thread when the run has ended."""
        if self._closed:
            clock.sleep(_MOMENT)
            return
        if self._events is None:
            self._events = self._cluster.events()
            self._cluster.losses.forgive()
        next(self._events)
        self._cluster.losses.exclude_silent(interrupted=self.interrupted())

    def close(self) -> None:
        """End all questions without an answer, as the workers have ended."""
        self._closed = True
        self._cluster.losses.close()


@dataclass(eq=False)
class _EvaluatedByWorkers:
    """A problem whose objective is evaluated by workers, and everything else by the problem itself."""

    _problem: Problem
    _asking: Asking
    _slot: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def loss(self, w: Vector) -> float:
        return self._asking.loss(self._slot, w) + 0.5 * float((penalty_of(self._problem) * w) @ w)
