"""Helper programs of the cluster ``processes``, forked from one that has imported what they import.

Each run on ``processes`` starts one, which imports NumPy and anyk, and PyTorch where modules are trained, and its workers
import the file of a test whose problem they train, and pytest with it: this takes longer than most of these runs. They
are forked with the arguments, descriptors, environment and folder of a program that is started; tests of the cluster
itself start it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HELPERS = ("anyk.clusters.processes.forkserver", "anyk.clusters.processes.aside")
# of the files of tests, which workers import for the problems in them, and of metrics
TESTS = (
    "pytest",
    "hypothesis",
    "click.testing",
    "anyk.cli",
    "anyk.runs.api",
    "anyk.testing.problems",
    "sklearn.metrics",
)
MOST = 1 << 20  # bytes of a request
HIGHEST = 500  # descriptors above have no room above them while they are put in place


class Parent:
    """The process that helper programs are forked from."""

    def __init__(self, library: str = "", of: Parent | None = None) -> None:
        """Start one, or have it forked from another, that imports a library besides."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()  # the driver and the thread that evaluates may both start a program
        for end in (self._link, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
        single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        own, environment = theirs.fileno(), os.environ | single
        packages = [library] if of else [*HELPERS, *TESTS]
        self._process: subprocess.Popen[bytes] | Forked
        with theirs:
            if of:
                code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import forked_helpers; "
                code += f"forked_helpers.serve({own}, {packages})"
                self._process = Forked(of, [sys.executable, "-c", code], pass_fds=[own], env=environment)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(own), *packages],
                    pass_fds=[own],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
        self.pid = self._process.pid
        self.descriptors = 2 if of else 1  # that it keeps open here: the link, and the process that was forked
        assert self._link.recv(1), "the process that helper programs are forked from did not start"

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> int:
        """Send a request, with descriptors, and return the number that answers it."""
        with self._asking:
            socket.send_fds(self._link, [json.dumps(request).encode()], fds)
            return int(self._link.recv(64))

    def close(self) -> None:
        self._link.close()
        self._process.wait()


class Forked:
    """What stands for a :class:`subprocess.Popen` of Python with ``-c``: a process that a parent has forked."""

    def __init__(
        self,
        parent: Parent,
        args: list[str],
        *,
        pass_fds: Sequence[int],
        env: dict[str, str],
        stdout: int = 1,
    ) -> None:
        self._parent, self.args, self.returncode = parent, args, None
        request = {"code": args[2], "words": args[3:], "environment": env, "folder": os.getcwd(), "fds": list(pass_fds)}
        self.pid = parent.ask(request, [*pass_fds, stdout, 2])
        self._ended = os.pidfd_open(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise :class:`subprocess.TimeoutExpired` if there is none in time."""
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._ended, select.POLLIN)
            if not ready.poll(None if timeout is None else 1000.0 * max(0.0, timeout)):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._parent.ask({"reap": self.pid})
            os.close(self._ended)
        return self.returncode

    def kill(self) -> None:
        """End the process, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)


class Starting:
    """``subprocess`` as modules see it that start a helper program: it is forked where it can be."""

    DEVNULL, PIPE, TimeoutExpired = subprocess.DEVNULL, subprocess.PIPE, subprocess.TimeoutExpired

    def __init__(self, parent: Callable[[], Parent]) -> None:
        self._parent = parent

    def Popen(self, args: list[str], *, pass_fds: Sequence[int], env: Any, **options: Any) -> Any:
        expected = {"stdin": subprocess.DEVNULL, "process_group": 0}
        assert {name: options[name] for name in expected} == expected and args[:2] == [sys.executable, "-c"]
        if max(pass_fds) >= HIGHEST:
            return subprocess.Popen(args, pass_fds=pass_fds, env=env, **options)
        return Forked(self._parent(), args, pass_fds=pass_fds, env=env, stdout=options.get("stdout", 1))


# ------------------------------------------------------------------------------------------------ the other process


def next_program(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request, and reap those asked for; return in each of them with its request."""
    while True:
        sent, fds, _, _ = socket.recv_fds(link, MOST, 64)
        if not sent:
            return None
        request = json.loads(sent)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            link.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        child = os.fork()
        if not child:
            return request, fds
        for descriptor in fds:
            os.close(descriptor)
        link.send(str(child).encode())


def put(fds: Sequence[int], places: Sequence[int]) -> None:
    """Have each descriptor at its place, and no other open."""
    free = max([*places, *fds]) + 1
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in fds]
    os.closerange(0, free)
    for descriptor, place in zip(above, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


def become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Be the program that is asked for."""
    os.setpgid(0, 0)
    put([*fds, os.open(os.devnull, os.O_RDONLY)], [*request["fds"], 1, 2, 0])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["-c", *request["words"]]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), main.__dict__)


def serve(own: int, packages: Sequence[str]) -> None:
    """Import packages, and fork whatever is asked for; in each of these processes return when it has ended."""
    for package in packages:
        importlib.import_module(package)
    gc.collect()
    gc.freeze()  # a collection in a process would copy every page that it visits
    control = socket.socket(fileno=own)
    control.send(b"!")
    asked = next_program(control)
    if asked is not None:
        control.detach()
        become(*asked)
        end()


def end() -> None:
    """End a program at its end, without freeing what was imported: this takes longer than all that most of them do."""
    threading._shutdown()  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
