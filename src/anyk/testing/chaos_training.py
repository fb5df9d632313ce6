"""A training in a process of its own, which is disturbed from outside: by signals, a limit on files, and requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from anyk.base import BadInput, RunFailed, keyed_generator, parse_spec
from anyk.clusters import is_stopped
from anyk.runs.api import count_updates, faults_after, load_checkpoint
from anyk.testing.chaos_faults import OF_NODES, FaultPlan, slowness
from anyk.testing.chaos_nodes import NodePrograms

MARK = "ANYK_CHAOS"  # the variable in the environment of all processes, by which they are found
_TICK, _LOOK, _TELL = 0.02, 0.25, 5.0  # seconds between faults, looks at workers and log, and lines of progress
_NODE_STOPPED = 1.0, 8.0  # the least and the most seconds for which a node is stopped
_STOPPED = 0.1, 2.0  # the least and the most seconds for which a worker is stopped
_CYCLE = 0.2  # seconds of which a slowed worker spends a part stopped
_VANISH = 20.0  # seconds after which all processes must have ended with the driver
_NAMED = re.compile(rb"/dev/shm/[^\s\0]+|/tmp/anykray-\w+")
_LEAST = 2.0  # seconds that a resumed training has at the least, so that it takes steps
_END = 120.0  # seconds that a training may take beyond twice its own


class DisturbedTraining:
    """A training and its faults, from the first process to the last.

    ``train``, ``resume``: arguments of the program ``anyk``. ``requests``: the folder of requests for spoiled messages,
    which the cluster in ``train`` names. ``injected``, ``observed``: the number of faults of each kind, and of effects
    that were seen. ``samples``: seconds since the first step, and updates in the log. ``marks``: seconds and kinds of
    faults. ``outages``: from each death of the driver to the next update. ``named``: files and folders outside of the
    folder ``temporary`` that were used. ``defects``: sentences on what should not have happened.
    """

    def __init__(
        self,
        train: Sequence[str],
        resume: Sequence[str],
        folder: Path,
        cluster: str,
        faults: FaultPlan,
        requests: Path,
        temporary: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._arguments, self._resume, self._faults, self._tell = train, resume, faults, tell
        self._folder = folder
        name, keys = parse_spec(cluster)
        self._log, self._find = folder / "log.sqlite", FINDERS[name]
        self._requests, self.temporary = requests, temporary
        self._mark = str(self._requests)  # in the environment of all processes
        self._environment = os.environ | {MARK: self._mark, "TMPDIR": str(temporary)}
        self._nodes = None
        if name == "nodes":
            self._nodes = NodePrograms(self._environment, one_at_a_time="copies" in keys)
        self.injected, self.observed = Counter[str](), Counter[str]()
        self.samples: list[tuple[float, int]] = []
        self.marks: list[tuple[float, str]] = []
        self.outages: list[tuple[float, float]] = []
        self.named: set[str] = set()
        self.defects: list[str] = []
        self._first = self._starting = 0.0  # time of the first step, and seconds until then
        self._workers: list[int] = []
        self._held: dict[int, tuple[str, float]] = {}  # stopped workers: the fault, and when they continue
        self._slow, self._slow_next = 0, 0.0  # the worker that is slowed, and when it is stopped again
        self._asked: set[str] = set()  # kinds of spoiled messages that no worker has sent yet
        self._ending = self._resumed = ""  # the fault of which the driver is dying; after which no update was seen yet
        self._died = 0.0  # when the driver died
        self._seen: set[tuple[float, str]] = set()  # events in the log, some of which disappear when it is resumed
        self._random = keyed_generator(faults.seed, "chaos", "victims")

    def run(self) -> None:
        """Train under faults until the training has ended; in any case end all its processes."""
        for folder in (self._requests, self.temporary):
            folder.mkdir()
        self._process, began = self._start(), time.monotonic()
        due, waiting = deque(self._faults.schedule()), set[str]()
        looked = reported = 0.0
        try:
            while not self.samples:
                code = self._process.poll()
                self._first = time.monotonic()
                self._read_log()
                if code is not None and not self.samples:
                    error = BadInput if code == 2 else RunFailed
                    why = self._last_words().removeprefix("anyk: ")
                    if code == 0:
                        why = f"it ended after {self._faults.seconds:g} s, before its first; give it more seconds"
                    raise error(f"the training took no step: {why}")
                time.sleep(_TICK)
            self._starting = self._first - began
            while self._running():
                now = self._now()
                if now >= looked + _LOOK:
                    looked = now
                    self._read_log()
                    self._look()
                if now >= reported + _TELL:
                    reported = now
                    self.named |= named_files(self._mark)
                    self._tell(self.progress(now))
                while due and due[0][0] <= now < self._faults.seconds:
                    waiting.add(due.popleft()[1])
                waiting = {kind for kind in waiting if not self._inject(kind)}
                self._hold_and_release(now)
                self._look_at_nodes()
                for kind in [kind for kind in self._asked if not (self._requests / kind).exists()]:
                    self._asked.remove(kind)  # a worker has removed it and spoiled its message
                    self._note(kind)
                if now > 2 * self._faults.seconds + _END:
                    self.defects.append(f"the training did not end within {now:.0f} s")
                    break
                time.sleep(_TICK)
            self._read_log()
        finally:
            self._stop_all()

    def progress(self, now: float) -> str:
        """Return a line on the progress: the time, the updates taken (repeated ones count again), and the faults."""
        taken = self.samples[0][1] + sum(max(new - old, 0) for (_, old), (_, new) in pairwise(self.samples))
        counts = ", ".join(f"{self.injected[kind]} {kind}" for kind in self._faults.kinds)
        state = ""
        if self._resumed:
            state = "; the training is being resumed from its checkpoint"
        elif now > self._faults.seconds + _TELL:
            state = "; no more faults: the training is about to end"
        return f"{now:.0f} of {self._faults.seconds:g} s: {taken:,} updates; {counts}{state}"

    @property
    def length(self) -> str:
        """The seconds of training in words, with the reason if they are more than were asked for."""
        seconds, asked = self._now(), self._faults.seconds
        sentence = f"trained for {seconds:.0f} s"
        if seconds > asked + _TELL and self.outages:
            lost = sum(end - start for start, end in self.outages)
            sentence += (
                f" instead of {asked:g}, as the training needed {lost:.0f} s to take steps again after it had ended"
            )
        return sentence

    def _resuming(self) -> list[str]:
        """Return the arguments that resume the run for the rest of the seconds.

        Its clock goes back to the checkpoint with it; with the old limit it would train again for what it has lost.
        """
        try:
            saved = load_checkpoint(self._folder)
        except BadInput:  # the resumed run reports it
            return list(self._resume)
        clock = 0.0 if saved is None else float(saved.state["now"])
        left = max(self._faults.seconds - self._now() - self._starting, _LEAST)
        return [*self._resume, "--seconds", f"{clock + left:.3f}"]

    def _now(self) -> float:
        return time.monotonic() - self._first

    # ------------------------------------------------------------------------------------------- the driver

    def _start(self) -> subprocess.Popen[bytes]:
        self._workers, self._output = [], b""
        environment = self._environment
        if self._nodes is not None:
            self._nodes.start()
            environment = self._nodes.environment(0)
        self._lowest, self._read = sys.maxsize, 0  # the fewest updates in the log since the start, and the last event
        process = subprocess.Popen(
            [sys.executable, "-m", "anyk", *self._arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches only this process, which then ends the other
        )
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        return process

    def _running(self) -> bool:
        """Return whether the training goes on; if a fault has ended its driver, resume it."""
        code = self._process.poll()
        if code is None:
            return True
        words = self._last_words()
        fault, self._ending = self._ending, ""
        if not fault:
            if code:
                self.defects.append(f"the training ended with status {code}: {words}")
            return False
        if code != -signal.SIGKILL if fault == "driver" else code != 1 or "free some space" not in words:
            self.defects.append(f"after {fault} the driver ended with status {code}: {words}")
        self._died, self._resumed = self._now(), fault
        self._await_vanishing()
        self._arguments = self._resuming()
        self._process = self._start()
        return True

    def _last_words(self) -> str:
        """Return the last line that the driver has printed so far, and make room for more."""
        assert self._process.stderr is not None
        self._output += self._process.stderr.read() or b""
        return (self._output.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]

    def _await_vanishing(self) -> None:
        """Wait until all processes have ended with the driver; end those that have not."""
        if self._nodes is not None:
            self._nodes.release()
        end = time.monotonic() + _VANISH
        waiting = set[int]() if self._nodes is None else self._nodes.pids  # which wait for the next driver
        while (running := set(marked(self._mark)) - waiting) and time.monotonic() < end:
            time.sleep(_TICK)
        if running:
            self.defects.append(f"{len(running)} processes were left {_VANISH:.0f} s after the driver")
        for pid in running:
            _send(pid, signal.SIGKILL)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _stop_all(self) -> None:
        """End the driver as Ctrl-C does if it is still running, and whatever is left."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_VANISH)
        self._process.kill()
        self._process.wait()
        if self._nodes is not None and (left := self._nodes.end(_VANISH)):
            self.defects.append(left)
        self._await_vanishing()

    # ------------------------------------------------------------------------------------------- faults

    def _look(self) -> None:
        """Look for the workers, and make room for what the driver prints."""
        self._last_words()
        self._workers = self._find(self._process.pid)
        for worker in self._held.keys() - set(self._workers):
            del self._held[worker]
        frozen = [worker for worker, (kind, _) in self._held.items() if kind == "freeze"]
        self.observed["freeze"] += sum(map(is_stopped, frozen))

    def _inject(self, kind: str) -> bool:
        """Inject a fault that occurs at some time; return whether that is possible now."""
        self._look()
        free = [worker for worker in self._workers if worker not in self._held and worker != self._slow]
        victim = free[self._random.integers(len(free))] if free else 0
        if kind in ("nan", "corrupt"):
            if kind in self._asked:
                return False
            (self._requests / kind).touch()
            self._asked.add(kind)
            return True
        if kind in OF_NODES:
            return self._inject_into_node(kind)
        if not victim or (kind in ("driver", "disk-full") and (self._ending or self._resumed)):
            return False
        if kind == "stop":
            self._hold(victim, kind, float(self._random.uniform(*_STOPPED)))
            return True
        self._note(kind)
        if kind == "kill":
            _send(victim, signal.SIGKILL)
            return True
        self._ending = kind
        self.named |= named_files(self._mark)
        if kind == "driver":
            self._process.kill()
        else:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return True

    def _inject_into_node(self, kind: str) -> bool:
        nodes = self._nodes
        ranks = [] if nodes is None or self._ending or self._resumed else nodes.free()
        if nodes is None or not ranks:
            return False
        rank = ranks[self._random.integers(len(ranks))]
        self._note(kind)
        if kind == "node-kill":
            nodes.kill(rank)
        else:
            nodes.stop(rank, float(self._random.uniform(*_NODE_STOPPED)))
        return True

    def _look_at_nodes(self) -> None:
        """Let nodes continue and start them again."""
        if self._nodes is not None:
            continued, wrong = self._nodes.look()
            self.observed["node-stop"] += continued
            if wrong and not self._ending:
                self.defects.append(wrong)

    def _hold(self, worker: int, kind: str, seconds: float) -> None:
        """Stop a worker for some time."""
        _send(worker, signal.SIGSTOP)
        self._held[worker] = kind, self._now() + seconds
        self._note(kind)

    def _hold_and_release(self, now: float) -> None:
        """Freeze and slow workers, and let others continue."""
        for worker, (kind, until) in list(self._held.items()):
            if until <= now:
                self.observed[kind] += is_stopped(worker)
                _send(worker, signal.SIGCONT)
                del self._held[worker]
        if now >= self._faults.seconds or self._resumed:
            return  # a driver that starts waits until all workers are ready
        free = [worker for worker in self._workers if worker not in self._held]
        frozen = sum(kind == "freeze" for kind, _ in self._held.values())
        while free and frozen < self._faults.freeze:
            self._hold(free.pop(), "freeze", float("inf"))
            frozen += 1
        if self._faults.slow and self._slow not in self._workers:
            self._slow = free[-1] if free else 0
        if self._slow and self._slow not in self._held and now >= self._slow_next:
            self._slow_next = now + _CYCLE
            self._hold(self._slow, "slow", _CYCLE * (1 - 1 / slowness(self._faults.slow)))

    def _note(self, kind: str) -> None:
        self.injected[kind] += 1
        self.marks.append((self._now(), kind))

    # ------------------------------------------------------------------------------------------- effects

    def _read_log(self) -> None:
        """Sample the number of updates, and count deaths and refused messages."""
        updates = count_updates(self._log)
        if updates is None:
            return
        if updates:
            self.samples.append((self._now(), updates))
        if updates < self._lowest:  # the log has been shortened
            self._lowest, self._read = updates, 0
        if updates > self._lowest and self._resumed:
            self.outages.append((self._died, self._now()))
            self.observed[self._resumed] += 1
            self._resumed = ""
        for fault in faults_after(self._log, self._read):
            self._read = fault.number
            event = fault.time, f"{fault.kind} {fault.worker}"
            if event not in self._seen:
                self._seen.add(event)
                reason = str(json.loads(fault.info)[0])
                wrong = "nan" if reason.startswith("not finite") else "corrupt"
                lost = "node-kill" if reason.startswith("node ") else "kill"
                self.observed[lost if fault.kind == "Lost" else wrong] += 1
                if lost == "node-kill" and fault.kind == "Lost" and not self._faults.node_kill:
                    self.defects.append(f"a node that was not killed was lost ({reason})")


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# ------------------------------------------------------------------------------------------- processes, from /proc


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parents() -> dict[int, int]:
    """Return the parents of all processes that have not ended."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    stats = {pid: _read(pid, "stat").rpartition(b")")[2].split() for pid in pids}  # state, parent and other numbers
    return {pid: int(stat[1]) for pid, stat in stats.items() if stat and stat[0] not in b"ZX"}


def marked(mark: str) -> list[int]:
    """Return the processes that have a text in the environment with which they started."""
    return [pid for pid in _parents() if mark.encode() in _read(pid, "environ")]


def named_files(mark: str) -> set[str]:
    """Return shared memory with a name, and folders of Ray, that marked processes use: what could be left behind."""
    texts = [_read(pid, name) for pid in marked(mark) for name in ("cmdline", "maps")]
    return {name.decode() for content in texts for name in _NAMED.findall(content)}


def _forked_workers(driver: int) -> list[int]:
    """Return the workers of the cluster ``processes``: they are the children of the driver's helper program."""
    parents = _parents()
    helpers = [pid for pid, parent in parents.items() if parent == driver and b"forkserver" in _read(pid, "cmdline")]
    return [pid for pid, parent in parents.items() if parent in helpers]


def _actors(driver: int) -> list[int]:
    """Return the workers of a local Ray cluster, whose daemon, a child of the driver, names them after their class."""
    parents = _parents()
    children = [pid for pid, parent in parents.items() if parent == driver]
    started = [pid for pid, parent in parents.items() if parent in children]
    return [pid for pid in started if _read(pid, "cmdline").startswith(b"ray::Actor")]


def _workers_of_nodes(driver: int) -> list[int]:
    """Return the workers of all nodes, whose programs have the driver's mark in their environment."""
    entries = _read(driver, "environ").split(b"\0")
    mark = next((entry for entry in entries if entry.startswith(MARK.encode())), b"")
    parents = _parents()
    helpers = [pid for pid in parents if b"forkserver" in _read(pid, "cmdline") and mark in _read(pid, "environ")]
    return [pid for pid, parent in parents.items() if mark and parent in helpers]


# by cluster: how its workers are found
FINDERS: dict[str, Callable[[int], list[int]]] = {
    "processes": _forked_workers,
    "ray": _actors,
    "nodes": _workers_of_nodes,
}
