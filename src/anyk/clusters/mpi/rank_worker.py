"""The worker in a rank, run after run."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from numpy.typing import NDArray

from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.mpi.link import (
    BYE,
    CLOSE,
    END,
    LONG,
    RECEIVED,
    RUN,
    TEXT,
    VECTOR,
    WIRE,
    WIRE_FORM,
    Inbox,
    Pause,
    Sends,
)
from anyk.clusters.remote.networked import NetworkedWorker
from anyk.clusters.remote.worker import Disconnected, RunSetup


class _MpiWorker(NetworkedWorker):
    """The worker in a rank, for one run."""

    def __init__(self, inbox: Inbox, sends: Sends, run: int, *what: Any) -> None:
        super().__init__(*what)
        self._inbox, self._sends, self._run = inbox, sends, run
        self.ended = False  # whether there will be no further run

    def transmit(self, report: Report, vector: NDArray[Any] | None) -> None:
        text = report.text.encode()
        if len(text) > TEXT:
            text = text[: TEXT - 3] + "…".encode()
        size, single = (-1, 0) if vector is None else (vector.size, ord(vector.dtype.char))
        data = bytearray(WIRE_FORM.pack(*report[:-1], self._run, size, len(text), single, text))
        self._sends(0, WIRE, data)
        if vector is not None:
            self._sends(0, VECTOR, vector)

    def leave(self) -> None:
        """Say that this was all."""
        self.transmit(Report(BYE, 0), None)

    def _look(self) -> bool:
        """Take in one parcel, if there is one; raises :class:`Disconnected` at the last."""
        self._sends.tidy()
        parcel = self._inbox.take()
        if parcel is None:
            return False
        kind, body, vectors = parcel
        if kind in (CLOSE, END):
            self.ended = kind == END
            raise Disconnected
        number, needs, fresh, size = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        keys: list[tuple[Key, ...]] = [tuple((first, second) for first, second in some) for some in (needs, fresh)]
        self.receive(Envelope(number, body[-size:], *keys), dict(zip(keys[1], vectors, strict=True)))
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


def serve(world: Any) -> None:
    """Be a worker, run after run, until the driver ends."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)  # ranks share their machine
    inbox, sends = Inbox(world), Sends(world)
    pause = Pause()
    ended = False
    while not ended:
        parcel = inbox.take()
        sends.tidy()
        if parcel is None:
            pause()
            continue
        pause = Pause()
        kind, body, vectors = parcel
        ended = kind == END
        if kind != RUN:
            continue
        run, worker, setup, held = json.loads(body)
        os.environ["ANYK_WORKER"] = str(worker)
        made = _MpiWorker(inbox, sends, run, worker, RunSetup.from_plain(setup), [part.data for part in vectors], held)
        made.run()
        made.leave()
        ended = made.ended
    while sends.left:
        time.sleep(LONG)
