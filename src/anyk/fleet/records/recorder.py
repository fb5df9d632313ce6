"""Recorders: the seconds of each step of a training loop, written by every worker into one folder."""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.base import AtLeastZero, BadInput, as_bad_input, needing, typed

if TYPE_CHECKING:
    import torch

HEADER = "round,worker,seconds"
_EVERY = 1.0  # seconds between writes


class Recorder(AbstractContextManager["Recorder"]):
    """Writes the seconds of each step of one worker into a folder that :func:`anyk.fleet.read` reads.

    All workers share ``folder``, and each writes ``worker-<number>.csv``. A step must end before any waiting for other
    workers: after an all-reduce, all workers look alike. If the file exists, as after a restart, the numbers of rounds
    continue. Times are measured by the worker's own monotonic clock, and written at least once a second and when the
    recorder is closed; steps of the last second before a crash are lost.

    Raises :class:`~anyk.BadInput` for a negative ``worker`` and where the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Recorder(folder, worker=0) as recorder:
    ...         for _ in range(3):
    ...             with recorder.step():
    ...                 total = sum(range(1000))
    ...     len(Path(folder, "worker-0.csv").read_text().split())
    4
    """

    @typed
    def __init__(self, folder: str | Path, worker: AtLeastZero) -> None:
        self.worker, self.path = worker, Path(folder) / f"worker-{worker}.csv"
        self._rows: list[str] = []
        self._written = time.monotonic()
        with as_bad_input(f"the record '{self.path}' cannot be written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
            if lines and lines[0] != HEADER:
                raise BadInput(f"'{self.path}' was not written by a recorder; choose another folder")
            self.rounds = int(lines[-1].partition(",")[0]) + 1 if len(lines) > 1 else 0
            self._file = self.path.open("a", encoding="utf-8")
            if not lines:
                self._file.write(HEADER + "\n")
                self._file.flush()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the body as one step; a step that raises is not recorded."""
        begin = time.perf_counter()
        yield
        self.add(time.perf_counter() - begin)

    def add(self, seconds: float) -> None:
        """Record a step of ``seconds`` seconds."""
        self._rows.append(f"{self.rounds},{self.worker},{seconds!r}\n")
        self.rounds += 1
        if time.monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the recorded steps."""
        if not self._file.closed:
            self._file.write("".join(self._rows))
            self._file.flush()
        self._rows.clear()
        self._written = time.monotonic()

    def close(self) -> None:
        """Write the recorded steps and close the file; may be called twice."""
        self.flush()
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


_DROPPED = 2  # number of first steps, in which DDP rebuilds its buckets


def ddp(model: torch.nn.parallel.DistributedDataParallel, folder: str | Path) -> Recorder:
    """Record the steps of a ``DistributedDataParallel`` model; every rank calls this once, before its first step.

    The gradients of DDP and its communication hook, if any, do not change. A hook of each parameter notes when its
    gradient is ready. A step lasts from the end of the previous backward pass, when the gradients have been averaged,
    until the last gradient is ready on this rank: it includes loading data, the forward and backward pass and the
    optimiser's step, but not the waiting for other ranks. Passes under ``no_sync`` belong to the next step that
    averages gradients; the first two steps are dropped. A step is recorded when the next step starts, or when the
    recorder is closed, at the latest at the end of the process. On a GPU, times are measured by events on its streams,
    which are read after they have happened, without synchronising.

    Raises :class:`~anyk.BadInput` for a model that is not DistributedDataParallel.
    """
    with needing("PyTorch", "torch", "recording DistributedDataParallel"):
        import torch
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise BadInput(f"ddp records a DistributedDataParallel model, got {type(model).__name__}")
    worker = torch.distributed.get_rank(model.process_group)
    kind = _PassesOnGpu if next(model.parameters()).is_cuda else _Passes
    recorder = kind(folder, worker, model)
    atexit.register(recorder.close)
    return recorder


class _Passes(Recorder):
    """Records steps from the ends of backward passes, which are moments by the host's monotonic clock."""

    def __init__(self, folder: str | Path, worker: int, model: torch.nn.parallel.DistributedDataParallel) -> None:
        super().__init__(folder, worker)
        import torch

        engine = torch.autograd.Variable
        self._queue = engine._execution_engine.queue_callback  # calls a function at the end of a backward pass
        self._model, self._under_way, self._steps = model, False, 0
        self._from: Any = None
        self._ready: Any = None
        self._averaged: Any = None
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note)
        model.register_forward_pre_hook(self._begin)

    def _now(self, last: object) -> object:
        """Return the current moment; ``last``, which is obsolete, may be reused for it."""
        return time.perf_counter()

    def _record(self, begin: Any, end: Any) -> None:
        """Record a step that lasted from ``begin`` to ``end``."""
        self.add(end - begin)

    def _note(self, _: object) -> None:
        """Note that a parameter's gradient is ready."""
        self._ready = self._now(self._ready)
        if not self._under_way:
            self._under_way = True
            self._queue(lambda: self._queue(self._end_pass))  # behind DDP's own work, which has been queued by then

    def _end_pass(self) -> None:
        """Note the end of a backward pass, or of a part of it: checkpointed modules have their own passes."""
        self._under_way = False
        if self._model.require_forward_param_sync:  # set by DDP's forward pass, False under no_sync
            self._averaged = self._now(self._averaged)

    def _begin(self, *_: Any) -> None:
        """Record the step before a forward pass, if it has averaged its gradients."""
        self._under_way = False  # a backward pass that raised has not ended
        if self._averaged is None:
            return
        if self._steps >= _DROPPED and self._from is not None and self._ready is not None:
            self._record(self._from, self._ready)
        self._steps += 1
        self._from, self._ready, self._averaged = self._averaged, None, None

    def close(self) -> None:
        self._begin()
        super().close()


class _PassesOnGpu(_Passes):
    """Records steps from events on a GPU's streams, which are read a step or more later."""

    def __init__(self, folder: str | Path, worker: int, model: torch.nn.parallel.DistributedDataParallel) -> None:
        super().__init__(folder, worker, model)
        self._waiting: deque[tuple[Any, Any]] = deque()

    def _now(self, last: Any) -> object:
        import torch

        event = torch.cuda.Event(enable_timing=True) if last is None else last
        event.record()
        return event

    def _record(self, begin: Any, end: Any) -> None:
        self._waiting.append((begin, end))
        while self._waiting and all(event.query() for event in self._waiting[0]):
            first, last = self._waiting.popleft()
            self.add(first.elapsed_time(last) / 1e3)
