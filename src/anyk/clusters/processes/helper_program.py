"""The helper program that starts the workers of a run: the driver starts, briefs, asks, hears and replaces it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.processes.memory import BROKEN, MESSAGE
from anyk.problems.data.reader_processes import python_settings

HELPER_ENDED = "the helper program that starts workers has ended"
_HELPERS, _WITHIN = 5, 60.0  # the most helper programs that may end within a time in seconds
_SILENCE = 120.0  # seconds without a sign of life after which the helper program is ended
_ENDING = 10.0  # seconds that the helper program may take to end its workers and itself
_LONGEST = 1 << 20  # bytes of a line of the helper program
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from anyk.clusters.processes import forkserver; "
_BOOT += "forkserver.main(int(sys.argv[1]), json.loads(sys.argv[3]))"


class HelperNews(msgspec.Struct):
    """A line of the helper program: a worker that was forked, or has died, or the reason to refuse the run."""

    refused: str | None = None
    forked: int = -1
    died: int = -1
    incarnation: int = -1
    pid: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = -1
    reason: str = ""
    blame: int = 1

    @property
    def worker(self) -> int:
        """The worker that was forked or has died."""
        return max(self.forked, self.died)


class Helper:
    """The helper program of a cluster of ``workers``, and the driver's link to it.

    ``preload``: modules that it imports for all workers. ``patience``: seconds that it may take to read a request.
    """

    def __init__(self, workers: int, preload: Sequence[str], patience: float) -> None:
        self._workers, self._preload, self._patience = workers, tuple(preload), patience
        self._program: subprocess.Popen[bytes] | None = None
        self.link: socket.socket | None = None
        self.gone = False  # whether it is known to have ended by itself
        self.heard = 0.0  # time of its last sign of life
        self._briefing: tuple[int, list[int]] = (0, [])  # the size of the briefing, and the descriptors
        self.ends: list[float] = []  # times at which helper programs have ended by themselves, the latest ones
        self._unread = b""

    @property
    def pid(self) -> int | None:
        """Its process number; None if it is not running."""
        return None if self._program is None else self._program.pid

    def fileno(self) -> int:
        """Return the descriptor on which its news arrives."""
        assert self.link is not None
        return self.link.fileno()

    # ------------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Start the program, unless it is running; it takes a while to import NumPy."""
        if self._program is not None:
            return
        ours, theirs = socket.socketpair()
        environment, path = python_settings()
        self._program = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), path, json.dumps(self._preload)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal then reaches only the driver
        )
        theirs.close()
        self.link, self._unread = ours, b""

    def brief(self, size: int, fds: list[int]) -> None:
        """Give the program the data that all workers need; before that, it forks no worker.

        ``size``: of the briefing in bytes. ``fds``: descriptors, as :class:`~.shared_worker.Shared` takes them.
        """
        self._briefing = size, fds
        self.start()
        self._tell(size.to_bytes(8, "little"), fds)
        self.heard = time.monotonic()  # it sends signs of life from now on

    def end_if_silent(self) -> None:
        """End the program if it has given no sign of life for long: it is frozen, and would report no death."""
        if time.monotonic() - self.heard > _SILENCE and self._program is not None:
            self._program.kill()

    def reap(self) -> int:
        """Take note that the program has ended by itself, and with it all workers; return its exit status.

        Raises :class:`~anyk.RunFailed` if this happens again and again.
        """
        assert self._program is not None
        assert self.link is not None
        self.link.close()
        self._program.kill()  # it must do nothing more
        status = self._program.wait()
        now = time.monotonic()
        self.ends = [moment for moment in self.ends if moment > now - _WITHIN] + [now]
        if len(self.ends) >= _HELPERS:
            raise RunFailed(
                f"{HELPER_ENDED}, {_HELPERS} times within {_WITHIN:.0f} s, and the workers with it; resume the run"
            )
        return status

    def replace(self) -> None:
        """Start another program in place of the one that was reaped, and brief it alike."""
        self._program = self.link = None
        self.gone = False
        self.brief(*self._briefing)

    def close(self) -> None:
        """End the program, which ends the workers."""
        if self.link is not None:
            self.link.close()  # it ends the workers and itself
            self.link = None
        if self._program is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(_ENDING)
            self._program.kill()  # if it is still running; the kernel ends its workers with it
            self._program.wait()
            self._program = None

    # ------------------------------------------------------------------------------------------- requests and news

    def fork(self, worker: int, incarnation: int, doorbell: int) -> None:
        """Have the program fork a worker, which listens to a doorbell."""
        self._tell(_request(worker, incarnation, ends=False), [doorbell])

    def end(self, worker: int, incarnation: int) -> None:
        """Have the program end a worker: it alone knows whether the process number is still this worker's."""
        self._tell(_request(worker, incarnation, ends=True), [])

    def _tell(self, message: bytes, fds: list[int]) -> None:
        """Send one message, which the program reads together with the descriptors."""
        assert self.link is not None
        self.link.settimeout(self._patience)
        with contextlib.suppress(OSError):  # it has ended, which news will notice
            socket.send_fds(self.link, [message], fds)
        self.link.setblocking(False)

    def news(self) -> Iterator[HelperNews]:
        """Yield what has arrived from the program, without waiting; ``gone`` states whether its end was among it.

        Raises :class:`~anyk.BadInput` if the program refuses the run, and :class:`~anyk.RunFailed` if what it sent
        cannot be read.
        """
        while (data := self._received()) is not None:
            self.heard = time.monotonic()
            *lines, self._unread = (self._unread + data).split(b"\n")
            try:
                if len(self._unread) > _LONGEST:
                    raise ValueError
                # empty lines are signs of life
                received = [msgspec.json.decode(line, type=HelperNews) for line in lines if line]
            except (msgspec.MsgspecError, ValueError):
                raise RunFailed(f"news of the helper program that starts workers {BROKEN}") from None
            for news in received:
                if news.refused is not None:
                    raise BadInput(news.refused)
                if not 0 <= news.worker < self._workers:
                    raise RunFailed(f"news of worker {news.worker} {BROKEN}")
                yield news

    def _received(self) -> bytes | None:
        """Return bytes that have arrived; None if there are none now, or will be none because the program has ended."""
        assert self.link is not None
        try:
            data = self.link.recv(1 << 16)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        if not data:
            self.gone = True
            return None
        return data


def _request(worker: int, incarnation: int, *, ends: bool) -> bytes:
    """Return a request to the helper program, of a fixed length."""
    return json.dumps([worker, incarnation, ends]).ljust(MESSAGE - 1).encode() + b"\n"
