"""A training in a process of its own, which is disturbed from outside: by signals, a limit on files, and requests."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from anyk import keyed
from anyk.errors import RunFailed
from anyk.testing.chaos_faults import Faults, slowness
from anyk.testing.chaos_processes import FINDERS, Process, marked, named_files, process

MARK = "ANYK_CHAOS"  # the variable in the environment of all processes, which names the folder for requests
_TICK = 0.02  # seconds between two looks at the training
_LOOK = 0.2  # seconds between two looks for its workers
_SAMPLE = 0.5  # seconds between two looks at its log
_TELL = 5.0  # seconds between two lines of progress
_STOPPED = 0.1, 2.0  # the least and the most seconds for which a worker is stopped
_CYCLE = 0.2  # seconds of which a slowed worker spends a part stopped
_START = 300.0  # seconds until the first step
_END = 120.0  # seconds that a training may take beyond its own, and to end when its disk is full
_VANISH = 20.0  # seconds after which all processes must have ended with the driver


class DisturbedTraining:
    """A training and its faults, from the first process to the last.

    ``train`` and ``resume``: arguments of the program ``anyk``. ``injected``, ``observed``: the number of faults, and
    of those whose effect was seen, by kind. ``samples``: seconds since the first step and updates in the log.
    ``marks``: seconds and kinds of faults. ``defects``: sentences on what should not have happened.
    """

    def __init__(
        self,
        train: Sequence[str],
        resume: Sequence[str],
        folder: Path,
        cluster: str,
        faults: Faults,
        scratch: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._train, self._resume, self._faults, self._tell = train, resume, faults, tell
        self._log, self._find = folder / "log.sqlite", FINDERS[cluster]
        self._requests, self.temporary = scratch / "requests", scratch / "temporary"
        self._mark = str(self._requests)  # in the environment of all processes
        self.named: set[str] = set()  # files and folders outside of the temporary folder that they have named
        self.injected, self.observed = Counter[str](), Counter[str]()
        self.samples: list[tuple[float, int]] = []
        self.marks: list[tuple[float, str]] = []
        self.outages: list[tuple[float, float]] = []  # from each death of the driver to the next update
        self.defects: list[str] = []
        self.started = self.finished = False  # whether the first step was seen; whether the training ended by itself
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._start = 0.0  # when the first step was seen
        self._workers: list[Process] = []
        self._frozen: set[Process] = set()
        self._slow: Process | None = None
        self._stopped: dict[Process, float] = {}  # when each worker continues
        self._requested: set[str] = set()
        self._random = keyed.generator(faults.seed, "chaos", "victims")
        self._resumed: list[str] = []  # faults after which no step has been seen yet
        self._lowest = 0  # the fewest updates in the log since the last start
        self._read = 0  # the last event that was read since then
        self._seen: set[tuple[float, str]] = set()  # events in the log, some of which are removed when it is resumed

    def run(self) -> None:
        """Train under faults until the training has ended; in any case end all its processes."""
        for folder in (self._requests, self.temporary):
            folder.mkdir()
        due = deque(self._faults.schedule())
        actions: dict[str, Callable[[], bool]] = {
            "kill": self._kill,
            "stop": self._stop,
            "driver": self._kill_driver,
            "disk-full": self._fill_disk,
        }
        waiting: set[str] = set()  # kinds of faults that have found no worker yet
        looked = sampled = told = 0.0
        try:
            self._begin(self._train)
            self._await_first_step()
            while self._running():
                now = self._now()
                if now - sampled >= _SAMPLE:
                    sampled = now
                    self._read_log()
                if now - told >= _TELL:
                    told = now
                    self.named |= named_files(self._mark)
                    self._tell(f"{now:.0f} s: {self._described()}")
                if now < self._faults.seconds:
                    if now - looked >= _LOOK:
                        looked = now
                        self._look()
                    while due and due[0][0] <= now:
                        waiting.add(due.popleft()[1])
                    for kind in sorted(waiting):
                        if actions.get(kind, partial(self._ask, kind))():
                            waiting.remove(kind)
                elif self._slow is not None:
                    self._signal(self._slow, signal.SIGCONT)
                    self._slow = None
                self._let_continue()
                self._alternate()
                self._take_requests()
                if now > 2 * self._faults.seconds + _END:
                    self.defects.append(f"the training did not end within {now:.0f} s")
                    break
                time.sleep(_TICK)
            self._read_log()
        finally:
            self._stop_all()

    def _described(self) -> str:
        counts = ", ".join(f"{self.injected[kind]} {kind}" for kind in self._faults.kinds)
        return f"{self.samples[-1][1] if self.samples else 0:,} updates; {counts}"

    # ------------------------------------------------------------------------------------------- the driver

    def _begin(self, arguments: Sequence[str]) -> None:
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        environment = os.environ | {MARK: self._mark, "TMPDIR": str(self.temporary)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "anyk", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches only this process, which then ends the other
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._workers, self._slow, self._output = [], None, b""
        self._lowest, self._read = sys.maxsize, 0
        self._frozen.clear()
        self._stopped.clear()

    def _await_first_step(self) -> None:
        end = time.monotonic() + _START
        while not self.samples or not self.samples[-1][1]:
            if not self._running() or time.monotonic() > end:
                raise RunFailed(f"the training took no step: {self._last_words()}")
            time.sleep(_TICK)
            self._read_log()
        self._start, self.started = time.monotonic(), True
        self.samples = [(0.0, self.samples[-1][1])]

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _running(self) -> bool:
        """Return whether the training goes on; note how it ended if nobody has ended it."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None and self.started:
            self.finished = not code
            if code:
                self.defects.append(f"the training ended with status {code}: {self._last_words()}")
        return code is None

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        self._output += self._process.stderr.read() or b""
        lines = self._output.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def _again(self, kind: str) -> None:
        """Wait until all processes have ended with the driver; resume the training."""
        self._await_vanishing(f"after {kind} of the driver")
        self._resumed.append(kind)
        self._begin(self._resume)

    def _await_vanishing(self, when: str) -> None:
        end = time.monotonic() + _VANISH
        while (there := marked(self._mark)) and time.monotonic() < end:
            time.sleep(_TICK)
        if there:
            self.defects.append(f"{len(there)} processes were left {_VANISH:.0f} s {when}")
        for each in there:
            self._signal(each, signal.SIGKILL)

    def _stop_all(self) -> None:
        """End the driver as Ctrl-C does if it is still running, and whatever is left."""
        process = self._process
        if process is None:
            return
        for each in self._stopped:
            self._signal(each, signal.SIGCONT)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_VANISH)
        process.kill()
        process.wait()
        self._await_vanishing("after the end")
        assert process.stderr is not None
        process.stderr.close()

    # ------------------------------------------------------------------------------------------- faults

    def _note(self, kind: str) -> None:
        self.injected[kind] += 1
        self.marks.append((self._now(), kind))

    def _signal(self, worker: Process, number: signal.Signals) -> bool:
        """Send a signal to a process unless it has ended; return whether it was sent."""
        now = process(worker.pid)
        if now is None or now.name != worker.name:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)
        return True

    def _look(self) -> None:
        """Look for the workers, and replace those that are to be frozen or slow and have ended."""
        assert self._process is not None
        known = {each.name: each for each in self._workers}
        self._workers = [known.get(each.name, each) for each in self._find(self._process.pid)]
        self._frozen &= set(self._workers)
        self.observed["freeze"] += sum(each.state == "T" for each in map(_now, self._frozen) if each is not None)
        while len(self._frozen) < self._faults.freeze and (worker := self._pick()) is not None:
            self._signal(worker, signal.SIGSTOP)
            self._frozen.add(worker)
            self._note("freeze")
        if self._faults.slow and self._slow not in self._workers:
            self._slow = self._pick()

    def _pick(self) -> Process | None:
        """Return a random worker that is neither frozen, slow nor stopped; None if there is none."""
        free = sorted(set(self._workers) - self._frozen - self._stopped.keys() - {self._slow})
        return free[self._random.integers(len(free))] if free else None

    def _kill(self) -> bool:
        worker = self._pick()
        if worker is None or not self._signal(worker, signal.SIGKILL):
            return False
        self._workers.remove(worker)
        self._note("kill")
        return True

    def _stop(self) -> bool:
        worker = self._pick()
        if worker is None or not self._signal(worker, signal.SIGSTOP):
            return False
        self._stopped[worker] = self._now() + self._random.uniform(*_STOPPED)
        self._note("stop")
        return True

    def _let_continue(self) -> None:
        for worker in [worker for worker, until in self._stopped.items() if until <= self._now()]:
            del self._stopped[worker]
            now = _now(worker)
            self.observed["stop"] += now is not None and now.state == "T"
            self._signal(worker, signal.SIGCONT)

    def _alternate(self) -> None:
        """Stop and continue the slow worker, so that it runs for its share of the time."""
        if self._slow is None:
            return
        runs = self._now() % _CYCLE < _CYCLE / slowness(self._faults.slow)
        now = _now(self._slow)
        if now is not None and runs == (now.state == "T"):
            self._signal(self._slow, signal.SIGCONT if runs else signal.SIGSTOP)
            self.observed["slow"] += runs
            if not runs:
                self.injected["slow"] += 1

    def _ask(self, kind: str) -> bool:
        """Ask for a spoiled message, one at a time."""
        if kind not in self._requested:
            (self._requests / kind).touch()
            self._requested.add(kind)
            return True
        return False

    def _take_requests(self) -> None:
        """Count the requests that workers have met."""
        for kind in [kind for kind in self._requested if not (self._requests / kind).exists()]:
            self._requested.remove(kind)
            self._note(kind)

    def _kill_driver(self) -> bool:
        assert self._process is not None
        if not self._workers:
            return False  # it is only just starting
        self.named |= named_files(self._mark)
        self._process.kill()
        self._process.wait()
        self._note("driver")
        self._again("driver")
        return True

    def _fill_disk(self) -> bool:
        """Refuse all that the driver writes to files until it has ended, and let it be resumed."""
        assert self._process is not None
        if not self._workers:
            return False
        for worker in self._stopped:
            self._signal(worker, signal.SIGCONT)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        self._note("disk-full")
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self.defects.append(f"the driver went on for {_END:.0f} s although it could write no file")
            code = 1
            self._process.kill()
            self._process.wait()
        words = self._last_words()
        if code != 1 or "free some space" not in words:
            self.defects.append(f"with a full disk the driver ended with status {code}: {words}")
        self._again("disk-full")
        return True

    # ------------------------------------------------------------------------------------------- effects

    def _read_log(self) -> None:
        """Sample the number of updates, and count deaths and refused messages."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._connect()) as log:
            updates = log.execute("SELECT max(rowid) FROM updates").fetchone()[0] or 0
            self.samples.append((self._now(), updates))
            self._lowest = min(self._lowest, updates)
            if updates > self._lowest and self._resumed:
                died = max(at for at, kind in self.marks if kind in self._resumed)
                self.outages.append((died, self._now()))
                self.observed.update(self._resumed)
                self._resumed.clear()
            query = "SELECT seq, time, kind, worker, info FROM events WHERE seq > ? AND kind IN ('Lost', 'Failed')"
            for seq, at, kind, worker, info in log.execute(query, (self._read,)):
                self._read = seq
                event = at, f"{kind} {worker}"
                if event not in self._seen:
                    self._seen.add(event)
                    wrong = "nan" if str(json.loads(info)[0]).startswith("not finite") else "corrupt"
                    self.observed["kill" if kind == "Lost" else wrong] += 1

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._log.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)


def _now(worker: Process) -> Process | None:
    """Return a process as it is now; None if it has ended."""
    now = process(worker.pid)
    return now if now is not None and now.name == worker.name else None
