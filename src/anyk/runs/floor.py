"""The floor of a run: the seconds that its decisions take if only the injected delays take time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from anyk.base.checks import check_workers
from anyk.clusters import Cluster, Outage, Simulated
from anyk.protocol import Joined, Leaving, LossEvaluated, Lost, NoiseMeasured, Strategy
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.engine.step_record import StepRecord
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.log import queries
from anyk.runs.log.runlog import RunLog

_ANSWERS = (LossEvaluated, NoiseMeasured)  # the driver's answers, computed from models and messages
SHOWN_FROM = 1e-3  # least seconds per step of a floor to which a ratio is meaningful


class Absence(NamedTuple):
    """A worker is absent from a run from ``start`` to ``end`` (inf: for good), with ``notice`` seconds before."""

    start: float
    worker: int
    end: float
    notice: float = 0.0


def absences(log: RunLog, workers: int) -> list[Absence]:
    """Return when each worker was absent from a run."""
    return _absences(log, workers)[0]


def _absences(log: RunLog, workers: int) -> tuple[list[Absence], dict[int, float]]:
    """Return the absences of workers, and the time of notice of workers that have not left yet."""
    present = log.started()[1]
    gone = {worker: Absence(0.0, worker, inf) for worker in range(check_workers(workers)) if worker not in present}
    noticed: dict[int, float] = {}
    ended: list[Absence] = []
    for event in log.events([kind.__name__ for kind in (Leaving, Lost, Joined)]):
        match event:
            case Leaving():
                noticed[event.worker] = event.time
            case Lost():
                notice = event.time - noticed.pop(event.worker, event.time)
                gone.setdefault(event.worker, Absence(event.time, event.worker, inf, notice))
            case Joined():
                noticed.pop(event.worker, None)
                if event.worker in gone:
                    ended.append(gone.pop(event.worker)._replace(end=event.time))
    return [*ended, *gone.values()], noticed


def _absences_in_floor(log: RunLog, workers: int) -> list[Outage]:
    """Return the absences; all workers return after the run's last step, so that a floor that takes longer ends."""
    absent, noticed = _absences(log, workers)
    last = queries.totals(log).time
    leaving = [Outage(last + 1.0, worker, last + 1.0, last + 1.0 - time) for worker, time in noticed.items()]
    ends = ((absence, max(last, absence.start) if absence.end == inf else absence.end) for absence in absent)
    return [*leaving, *(Outage(absence.start, absence.worker, end, absence.notice) for absence, end in ends)]


def floor_seconds(
    strategy: Strategy,
    cluster: Cluster,
    steps: int | Mapping[str, int],
    log: RunLog | None = None,
    *,
    warm_start: WarmStart | None = None,
    on_step: Callable[[int], None] | None = None,
) -> float:
    """Return the seconds that ``strategy`` takes on the virtual clock with the delays of ``cluster``.

    ``steps``: the number of steps, or for several models the number by slot; with ``warm_start`` they include the
    earlier run's. Computing takes no time. The strategy receives the same answers on losses and gradients as in the
    run, in the same order, from its ``log``; if workers may join and leave, they do so as in the log. ``on_step`` is
    called with the number of steps after each step.

    >>> import anyk
    >>> strategy = anyk.strategy("uncoded", workers=3)
    >>> floor_seconds(strategy, anyk.cluster("processes", workers=3, delays="constant:2"), steps=5)
    10.0
    """
    first_step = 0 if warm_start is None else warm_start.step
    by_slot = steps if isinstance(steps, Mapping) else {}
    if steps == first_step or (by_slot and set(by_slot.values()) == {first_step}):
        return 0.0
    outages = () if log is None or not strategy.layout.fewest else _absences_in_floor(log, cluster.workers)
    answers = [] if log is None else _answers_in(log)
    number = None if isinstance(steps, Mapping) else steps

    def check_steps(_: StepRecord) -> None:
        if by_slot and all(driver.versions[slot] >= version for slot, version in by_slot.items()):
            driver.end()
        if on_step is not None:
            on_step(driver.step)

    virtual = _virtual_twin(cluster, outages)
    driver = Driver(strategy, virtual, steps=number, answers=answers, warm_start=warm_start, on_step=check_steps)
    with session(driver):
        driver.run()
    return driver.time


def _answers_in(log: RunLog) -> list[LossEvaluated | NoiseMeasured]:
    """Return the driver's answers to the strategy, in their order."""
    return [event for event in log.events([kind.__name__ for kind in _ANSWERS]) if isinstance(event, _ANSWERS)]


def _virtual_twin(cluster: Cluster, outages: Sequence[Outage]) -> Simulated:
    """Return a simulated cluster with the delays of another; workers are absent during ``outages``."""
    virtual = Simulated(
        cluster.workers,
        delays=cluster.delays,
        seed=cluster.seed,
        byzantine=cluster.byzantine,
        communication=cluster.communication,
        outages=outages,
    )
    # without a problem nothing is computed, but messages still have their sizes
    virtual.injection.messages = cluster.injection.messages
    return virtual
