"""The nodes of a chaos run on the cluster ``nodes``: programs on this machine, killed and started again, or stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

NODES = 3
_PROGRAM = "from anyk.clusters import join_nodes; join_nodes()"
_JOINED = 60.0  # seconds after its start in which a node has joined; others do not hear of the driver's end
_AGAIN = 0.5  # seconds after which a killed program is started again, as a launcher does
_HANDED_OVER = 15.0  # seconds after which a node that was lost has certainly been handed its slices again


class NodePrograms:
    """The programs of all ranks but 0, which the training itself has.

    ``environment``: of all programs, besides their place in the job. ``one_at_a_time``: whether a node may be killed or
    stopped only once the others have been there for some time, so that no two lose what they hold.
    """

    def __init__(self, environment: Mapping[str, str], *, one_at_a_time: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self._environment = dict(environment) | {
            "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._started: dict[int, float] = {}  # when, by rank
        self._again: dict[int, float] = {}  # when killed programs are started again, by rank
        self._stopped: dict[int, tuple[list[int], float]] = {}  # processes of ranks, and when they continue
        self._one_at_a_time, self._back = one_at_a_time, 0.0  # when the last one came back

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment of a rank's program."""
        return self._environment | {"RANK": str(rank)}

    @property
    def pids(self) -> set[int]:
        """The process numbers of the programs."""
        return {program.pid for program in self._programs.values()}

    def start(self) -> None:
        """Start all programs that are not running, and let those that are stopped continue."""
        self.release()
        self._again.clear()
        for rank in range(1, NODES):
            if rank not in self._programs or self._programs[rank].poll() is not None:
                self._start(rank)

    def _start(self, rank: int) -> None:
        self._started[rank] = self._back = time.monotonic()
        self._programs[rank] = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=self.environment(rank),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def free(self) -> list[int]:
        """Return the ranks whose programs are running and not stopped, and may be killed or stopped now."""
        away = bool(self._stopped or self._again) or time.monotonic() < self._back + _HANDED_OVER
        if self._one_at_a_time and away:
            return []
        return [
            rank
            for rank, program in self._programs.items()
            if program.poll() is None and rank not in self._stopped and rank not in self._again
        ]

    def kill(self, rank: int) -> None:
        """Kill a program, which is started again."""
        self._programs[rank].kill()
        self._again[rank] = time.monotonic() + _AGAIN

    def stop(self, rank: int, seconds: float) -> None:
        """Stop a program and all processes below it for some seconds."""
        pids = processes_below(self._programs[rank].pid)
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        self._stopped[rank] = pids, time.monotonic() + seconds

    def look(self) -> tuple[int, str]:
        """Let programs continue and start them again; return how many continued, and what should not have happened."""
        now, continued = time.monotonic(), 0
        for rank, (_, until) in list(self._stopped.items()):
            if until <= now:
                self._release(rank)
                continued += self._programs[rank].poll() is None
        for rank, due in list(self._again.items()):
            if due <= now:
                self._programs[rank].wait()
                del self._again[rank]
                self._start(rank)
        ended = {rank: self._programs[rank].poll() for rank in self._programs.keys() - self._again.keys()}
        failed = {rank: status for rank, status in ended.items() if status}
        return continued, "".join(f"the program of node {rank} ended with status {failed[rank]}" for rank in failed)

    def release(self) -> None:
        """Let all programs that are stopped continue."""
        for rank in list(self._stopped):
            self._release(rank)

    def _release(self, rank: int) -> None:
        self._back = time.monotonic()
        for pid in self._stopped.pop(rank)[0]:
            _send(pid, signal.SIGCONT)

    def end(self, within: float) -> str:
        """Wait until all programs have ended, as the driver has; end the others, and return a sentence on them."""
        self.release()
        now = time.monotonic()
        until, late = now + within, []
        for rank, program in self._programs.items():
            joined = rank not in self._again and self._started[rank] < now - _JOINED
            if joined:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(max(0.0, until - time.monotonic()))
            if program.poll() is None:
                late += [rank] * joined
                program.kill()
                program.wait()
        return f"nodes {late} were left {within:.0f} s after the driver" if late else ""


def processes_below(pid: int) -> list[int]:
    """Return a process and all that it, and those, have started."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{entry.name}/stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    processes = [pid]
    for parent in processes:  # the list grows during the loop
        processes += [child for child, above in parents.items() if above == parent]
    return processes


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
