"""The worker in an MPI rank, which serves one run after another."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from anyk.base.arrays import Array
from anyk.clusters.contract import Envelope, Report
from anyk.clusters.mpi.link import (
    BYE,
    CLOSE,
    END,
    RECEIVED,
    REPORT_TAG,
    RUN,
    TEXT_LENGTH,
    VECTOR_TAG,
    WORKER_PAUSE,
    Pause,
    Sends,
    take_parcel,
)
from anyk.clusters.remote.channel import Disconnected
from anyk.clusters.remote.networked import NetworkedWorker
from anyk.clusters.remote.wire import form_of
from anyk.clusters.remote.worker import RunSetup

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class _RankWorker(NetworkedWorker):
    """The worker in a rank during one run."""

    def __init__(self, world: Intracomm, sends: Sends, run: int, **life: Any) -> None:
        super().__init__(**life)
        self._world, self._sends, self._run = world, sends, run
        self.ended = False  # whether the driver has ended, so that no run follows

    def transmit(self, report: Report, vector: Array | None) -> None:
        if len(report.text) > TEXT_LENGTH:
            report = report._replace(text=f"{report.text[: TEXT_LENGTH - 1]}…")
        self._sends(0, REPORT_TAG, msgspec.json.encode((self._run, report, form_of(vector))) + b"\n")
        if vector is not None:
            self._sends(0, VECTOR_TAG, vector)

    def _look(self) -> bool:
        """Take in one parcel and return True, or False if there is none; raise :class:`Disconnected` at the last."""
        self._sends.tidy()
        parcel = take_parcel(self._world)
        if parcel is None:
            return False
        kind, values, orders, vectors = parcel
        if kind in (CLOSE, END):
            self.ended = kind == END
            raise Disconnected
        number, *keys = values
        needs, fresh = (tuple((first, second) for first, second in some) for some in keys)
        self.receive(Envelope(number, orders, needs, fresh), dict(zip(fresh, vectors, strict=True)))
        self.transmit(Report(RECEIVED, number), None)
        return True

    def changed(self) -> bool:
        while self._look():
            pass
        return super().changed()

    def listen(self, until: float | None) -> None:
        pause = Pause()
        while not self.changed() and (until is None or time.monotonic() < until):
            pause(until)


def serve(world: Intracomm) -> None:
    """Work in one run after another, until the driver ends."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)  # ranks share their machine
    sends = Sends(world)
    pause = Pause()
    ended = False
    while not ended:
        parcel = take_parcel(world)
        sends.tidy()
        if parcel is None:
            pause()
            continue
        pause = Pause()
        kind, values, _, vectors = parcel
        ended = kind == END
        if kind != RUN:
            continue
        run, number, setup, assigned = values
        os.environ["ANYK_WORKER"] = str(number)
        shipped = [buffer.data.toreadonly() for buffer in vectors]
        worker = _RankWorker(
            world,
            sends,
            run,
            worker=number,
            setup=msgspec.convert(setup, RunSetup),
            shipped=shipped,
            assigned=assigned,
        )
        worker.run()
        worker.transmit(Report(BYE, 0), None)
        ended = worker.ended
    while sends.pending:
        time.sleep(WORKER_PAUSE)
