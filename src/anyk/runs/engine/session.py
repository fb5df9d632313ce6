"""A run from the start of its workers to the last entry in its ledger."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput, RunFailed
from anyk.runs.engine.driver import Driver


@contextmanager
def session(
    driver: Driver,
    saved: tuple[Mapping[str, Any], Mapping[str, Vector]] | None = None,
    *,
    on_open: Callable[[], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Driver]:
    """Start a driver's workers, start the run or resume it from ``saved``; finally stop them and close the ledger.

    ``saved``: the results of :meth:`Driver.state` and :meth:`Driver.vectors`. ``tell`` is called with a line on the
    memory needed, before workers start, ``on_open`` when they have started and have no tasks yet. The ledger
    of a run that fails is closed as well; after any other error it stays as it is.

    >>> import anyk
    >>> with session(Driver(anyk.strategy("uncoded", workers=3), anyk.clusters.Simulated(3), steps=4)) as driver:
    ...     driver.run()
    >>> driver.step, driver.ledger.counts.counted
    (4, 12)
    """
    if driver.cluster.in_run:
        raise BadInput("the cluster is in use by another run, which has not ended; give this run a cluster of its own")
    started = False
    driver.cluster.in_run = True
    try:
        with _enough_files(driver.cluster.workers), driver.cluster:
            driver.open(tell)
            if on_open is not None:
                on_open()
            if saved is None:
                driver.begin()
            else:
                _restore(driver, *saved)
            started = True
            try:
                yield driver
            finally:
                driver.versions.keep()
    except RunFailed:
        if started:
            driver.settle()
        raise
    finally:
        driver.cluster.in_run = False
    driver.settle()


def _restore(driver: Driver, state: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
    try:
        driver.restore(state, vectors)
    except (BadInput, RunFailed):
        raise
    except Exception as error:  # of files that do not belong together
        raise BadInput(
            f"the checkpoint is not one of the run that its run.toml describes ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _enough_files(workers: int) -> Iterator[None]:
    """Explain the error if a process may not open as many files as its workers need."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise RunFailed(
            f"{workers} workers need more open files than this process may have ({most}); allow more (ulimit -n) and "
            "resume the run"
        ) from None
