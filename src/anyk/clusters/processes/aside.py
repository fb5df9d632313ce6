"""Evaluation in a separate process, so that steps do not wait and the driver loads no data.

The problem is sent once, as partitions are sent to workers; its arrays and the models are in shared memory without a
name. Questions and answers are JSON; answers are never unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput, RunFailed
from anyk.base.plain import ByName
from anyk.clusters.processes.memory import Segment
from anyk.clusters.remote.losses import LossUnknown
from anyk.clusters.remote.shipping import ship, unship
from anyk.clusters.waiting import signal_name
from anyk.problems.base import Problem, abilities_of
from anyk.problems.many import ManyProblems, each_of

_BOOT = "import json, sys; s = json.loads(sys.argv[1]); sys.path[:] = s['path']; "
_BOOT += "from anyk.clusters.processes.aside import main; main(s)"
_DYING = 5.0  # seconds that a process may take to end after it has closed its output
_BEAT = 1.0  # seconds between two signs of life of the process
# seconds without the first, and without a further sign of life, after which the process is ended
_START, _SILENCE = 120.0, 60.0
_INTERRUPTED = 5.0  # the same, while a run is being interrupted
_TRIES = 2  # the most processes that may end at one model, and the most such models in a row
_ERRORS: dict[str, type[Exception]] = {"BadInput": BadInput, "RunFailed": RunFailed}


class Aside:
    """A process that evaluates a problem, on ``samples`` samples or on all; a context manager.

    ``problem`` is the problem with the objective and metrics that the process computes. The process starts with
    the first question. If it is killed, or gives no sign of life for a minute, it is replaced and asked again.
    ``interrupted`` returns whether the run is being interrupted, which shortens the wait.

    Raises :class:`~anyk.BadInput` for problems that cannot be sent to a process.
    """

    def __init__(self, problem: Problem, samples: int | None = None) -> None:
        if not sys.platform.startswith(("linux", "darwin")):
            raise BadInput(f"evaluation aside runs on Linux and macOS, not on {sys.platform}; use where='driver'")
        buffers = ship(problem, to="the process that evaluates it")
        self._data = Segment.create(0, "evaluated")
        self._places = self._data.store(buffers)
        self._model = Segment.create(problem.dimension * problem.dtype.itemsize, "model")
        self._dtype, self._samples = problem.dtype, samples
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._silence = _START
        self._failed = Counter[str]()  # models in a row whose loss, or metrics, could not be computed
        self._closed = False
        self.interrupted: Callable[[], bool] = lambda: False
        self._lock = threading.Lock()  # both the driver and the evaluating thread call ask()
        self.problem: Problem = EvaluatedAside(problem, self, 0)
        if isinstance(problem, ManyProblems):
            self.problem = ManyProblems([EvaluatedAside(member, self, i) for i, member in enumerate(problem.each)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._end()
        self._data.close()
        self._model.close()

    @property
    def pid(self) -> int | None:
        """The process number; None if the process is not running."""
        return None if self._process is None else self._process.pid

    def ask(self, what: Literal["loss", "metrics"], model: int, w: Vector) -> Any:
        """Return the loss or the metrics of a model's problem at ``w``; reraise the problem's exceptions.

        Raises :class:`~anyk.clusters.remote.losses.LossUnknown` if one process after another ends while it evaluates.
        """
        question = json.dumps([what, model, w.size]).encode()
        with self._lock:
            reason = "is not started again"
            for _ in range(_TRIES if self._failed[what] < _TRIES else 0):
                if self._closed:
                    raise RunFailed("the run has ended, and with it the process that evaluates")
                link = self._link = self._link or self._start()
                self._model.array(0, w.size, self._dtype)[:] = w
                answer = None
                with contextlib.suppress(OSError, EOFError):
                    link.send_bytes(question)
                    answer = self._read_answer(link)
                if answer:
                    self._failed[what] = 0
                    break
                ended = self._end(_DYING if answer is None else 0.0)
                reason = f"was killed by {signal_name(-ended)}" if ended < 0 else f"exited with code {ended}"
                reason = f"{reason if answer is None else 'gave no sign of life'}, twice at the same model"
            else:
                self._failed[what] += 1
                raise LossUnknown(
                    f"the process that evaluates {reason}; it may lack memory: evaluate on fewer samples, or with "
                    "where='driver'",
                    forever=self._failed[what] >= _TRIES,
                )
        value = json.loads(answer)
        if isinstance(value, list):
            kind, sentence = value
            raise _ERRORS.get(kind, type(kind, (Exception,), {}))(sentence)
        return value["is"]

    def _read_answer(self, link: Connection) -> bytes:
        """Return the next answer, or b"" if the process has been silent too long; raise EOFError if it has ended."""
        last = time.monotonic()
        while True:
            if link.poll(0.1):
                answer = link.recv_bytes()
                if answer:
                    return answer
                last, self._silence = time.monotonic(), _SILENCE  # it was a sign of life
            elif time.monotonic() - last > (_INTERRUPTED if self.interrupted() else self._silence):
                return b""

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        fds = [self._data.fd, self._model.fd, theirs.fileno()]
        setup = {
            "path": [entry or str(Path.cwd()) for entry in sys.path],
            "fds": fds,
            "sizes": [self._data.size, self._model.size],
            "places": self._places,
            "dtype": self._dtype.str,
            "samples": self._samples,
        }
        self._silence = _START
        environment = dict(os.environ)
        jax = sys.modules.get("jax")
        if jax is not None and jax.config.jax_enable_x64:  # set by the script, not by its environment
            environment["JAX_ENABLE_X64"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(setup)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=2,  # a user's function may print
            env=environment,
            process_group=0,  # Ctrl-C in the terminal then reaches only the driver
        )
        theirs.close()
        return ours

    def _end(self, within: float = 0.0) -> int:
        """End the process, unless it ends by itself within ``within`` seconds; return its exit code."""
        process, link, self._process, self._link = self._process, self._link, None, None
        if process is None or link is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within)
        process.kill()  # also ends a stopped process
        link.close()
        return process.wait()


class EvaluatedAside:
    """A problem whose loss and metrics another process evaluates; all else is delegated to the original."""

    def __init__(self, problem: Problem, aside: Aside, model: int) -> None:
        self._problem, self.aside, self._model = problem, aside, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def loss(self, w: Vector) -> float:
        return float(self.aside.ask("loss", self._model, w))

    def metrics(self, w: Vector) -> dict[str, float]:
        metrics: dict[str, float] = self.aside.ask("metrics", self._model, w)
        return metrics


def main(setup: ByName) -> None:
    """Entry point of the process: read questions, write answers and signs of life."""
    *segments, link_fd = setup["fds"]
    data, models = map(Segment, segments, setup["sizes"])
    link, telling = Connection(link_fd), threading.Lock()

    def tell(answer: bytes) -> None:
        with telling:
            link.send_bytes(answer)

    def give_signs_of_life() -> None:
        with contextlib.suppress(OSError):  # the driver has ended
            while True:
                tell(b"")
                time.sleep(_BEAT)

    def listen() -> None:
        """Read questions until the driver has ended, then end the process, whatever it is computing."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                questions.put(link.recv_bytes())
        os._exit(0)

    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for run in (give_signs_of_life, listen):
        threading.Thread(target=run, daemon=True).start()
    problem: Problem | None = None
    while True:
        what, model, size = json.loads(questions.get())
        try:
            if problem is None:
                problem = unship(data.parts(setup["places"]))
                problem = problem if setup["samples"] is None else abilities_of(problem).sampled(setup["samples"])
            slot_problem = each_of(problem)[model]
            w = models.array(0, size, np.dtype(setup["dtype"]))
            with np.errstate(over="ignore", invalid="ignore"):
                value = (
                    float(slot_problem.loss(w))
                    if what == "loss"
                    else {k: float(v) for k, v in slot_problem.metrics(w).items()}
                )
            answer: Any = {"is": value}
        except Exception as error:  # a user's problem may raise any exception
            kinds = [name for name, kind in _ERRORS.items() if isinstance(error, kind)]
            answer = [*kinds, type(error).__name__][0], str(error)
        tell(json.dumps(answer).encode())
