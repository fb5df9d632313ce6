"""A recorder for DistributedDataParallel: when each rank's gradient is ready, before it waits for the others."""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.errors import BadInput, MissingPackage
from anyk.recording.recorder import Recorder

if TYPE_CHECKING:
    import torch

Hook = Callable[[Any, Any], Any]
_DROPPED = 2  # first steps: DDP rebuilds its buckets, and much is done for the first time


def ddp(
    model: torch.nn.parallel.DistributedDataParallel,
    folder: str | Path,
    *,
    hook: Hook | None = None,
    state: Any = None,
) -> Recorder:
    """Record the steps of a ``DistributedDataParallel`` model; every rank calls this once, before its first step.

    A communication hook (``register_comm_hook``) notes when this rank's gradient is ready, and then has it averaged as
    DDP does without a hook, to the same bits. A step lasts from the end of the previous step's last all-reduce on this
    rank to the readiness of its last bucket: loading data, forward and backward pass and the optimiser's step, without
    the waiting. Steps under ``no_sync`` belong to the next one that is not; the first two are dropped. On a GPU, times
    are those of events on its streams, read when they are over, without synchronising.

    ``hook`` and ``state``: a communication hook that the model should have anyway, such as a compressing one; it is
    called as DDP would. The recorder closes when the process ends.

    Raises :class:`~anyk.errors.BadInput` for a model that is not DistributedDataParallel.
    """
    try:
        import torch
    except ImportError:
        raise MissingPackage("PyTorch", "torch", "recording DistributedDataParallel") from None
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise BadInput(f"ddp records a DistributedDataParallel model, got {type(model).__name__}")
    group = model.process_group
    recorder = Recorder(folder, torch.distributed.get_rank(group))
    cuda = next(model.parameters()).is_cuda
    steps = _OnGpu(recorder) if cuda else _OnHost(recorder)
    average = hook or _averaging(group)
    first = None if hook else _first  # what an all-reduce gives is a list

    def noting(given: Any, bucket: Any) -> Any:
        last = bucket.is_last()
        if last:
            steps.ready()
        future = average(given, bucket)
        then = steps.averaged if last else first  # one callback a bucket: each is a wait for the interpreter
        return future if then is None else future.then(then)

    parallel: Any = torch.distributed
    # PyTorch looks at the annotations of a hook
    noting.__annotations__ = {
        "bucket": parallel.GradBucket, "return": torch.futures.Future[torch.Tensor]
    }  # fmt: skip
    model.register_comm_hook(state, noting)
    atexit.register(recorder.close)
    return recorder


def _averaging(group: Any) -> Hook:
    """DDP's own average, to the bit: each gradient times 1 / ranks, added up."""
    import torch

    share = 1.0 / torch.distributed.get_world_size(group)

    def average(_: Any, bucket: Any) -> Any:
        return group.allreduce([bucket.buffer().mul_(share)]).get_future()

    return average


def _first(future: Any) -> Any:
    """The gradients of a bucket: what a hook gives, or the only one in a list that an all-reduce gives."""
    value = future.value()
    return value[0] if isinstance(value, list) else value


class _OnHost:
    """Steps on the host's monotonic clock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._begun, self._seen = recorder, 0.0, 0

    def ready(self) -> None:
        """The last bucket of a step is ready."""
        if self._seen >= _DROPPED:
            self._recorder.add(time.perf_counter() - self._begun)
        self._seen += 1

    def averaged(self, future: Any) -> Any:
        """The last bucket has been averaged: the next step begins."""
        self._begun = time.perf_counter()
        return _first(future)


class _OnGpu:
    """Steps between events on a GPU's streams, read a step or more later."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._seen = recorder, 0
        self._begun: Any = None
        self._waiting: deque[tuple[Any, Any]] = deque()

    @staticmethod
    def _event() -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ready(self) -> None:
        """The last bucket of a step will be ready when the stream has come here."""
        while self._waiting and all(event.query() for event in self._waiting[0]):
            begin, end = self._waiting.popleft()
            self._recorder.add(begin.elapsed_time(end) / 1e3)
        if self._seen >= _DROPPED and self._begun is not None:
            self._waiting.append((self._begun, self._event()))
        self._seen += 1

    def averaged(self, future: Any) -> Any:
        """The stream of this callback waits for the all-reduce: the next step begins there."""
        self._begun = self._event()
        return _first(future)
