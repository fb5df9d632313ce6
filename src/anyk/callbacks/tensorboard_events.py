"""A run as event files of TensorBoard."""

from __future__ import annotations

import time as clock
from pathlib import Path
from typing import Any

from anyk.callbacks.lookup import registry
from anyk.checks import AtLeastOne, typed
from anyk.errors import BadInput, MissingPackage
from anyk.runs.callbacks import Callback, EndInfo, EvaluationInfo, LostInfo, RunInfo, StepInfo
from anyk.specs import Folder


@registry.register("tensorboard")
@typed
class TensorBoard(Callback):
    """Writes event files that ``tensorboard --logdir FOLDER`` shows: scalars against steps, settings as text.

    ``train/residual``, ``train/staleness``, ``train/workers`` and ``train/seconds`` (of the run's clock) for every
    ``every``-th step, ``loss`` and the metric for every evaluation, ``workers lost`` if any were lost. Each run
    of a race has a folder of its own in ``folder``. Needs the package ``tensorboard``: ``pip install
    'anyk[tensorboard]'``.
    """

    def __init__(self, folder: Folder, *, every: AtLeastOne = 1) -> None:
        _package()
        self._folder, self._every = Path(folder), every
        self._writer: Any = None

    def on_begin(self, info: RunInfo) -> None:
        writer = _package()
        self._metric, self._lost = info.metric, 0
        try:
            self._writer = writer.EventFileWriter(str(self._folder / info.title if info.title else self._folder))
        except OSError as error:
            raise BadInput(f"the folder '{self._folder}' cannot be written ({error})") from None
        rows = "".join(f"| {key} | {value} |\n" for key, value in info.settings.items())
        self._text("settings", f"| setting | value |\n| --- | --- |\n{rows}", info.step)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            values = {"residual": info.residual, "staleness": info.staleness, "workers": info.workers}
            values |= {"seconds": info.seconds}
            self._scalars({f"train/{_of(info.slot)}{name}": value for name, value in values.items()}, info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        values = {"loss": info.loss, self._metric: info.metric}
        scalars = {f"{_of(info.slot)}{name}": value for name, value in values.items() if value is not None}
        self._scalars(scalars, info.step)

    def on_worker_lost(self, info: LostInfo) -> None:
        self._lost += 1
        self._scalars({"workers lost": self._lost}, info.step)

    def on_end(self, info: EndInfo) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add([Summary.Value(tag=name, simple_value=value) for name, value in values.items()], step)

    def _text(self, name: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        self._add([Summary.Value(tag=name, metadata=create_summary_metadata(name, ""), tensor=tensor)], step)

    def _add(self, values: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(wall_time=clock.time(), step=step, summary=Summary(value=values)))


def _of(slot: str) -> str:
    """Return the prefix of a model's tags, which is empty unless there are several models."""
    return "" if slot == "model" else f"{slot}/"


def _package() -> Any:
    try:
        from tensorboard.summary.writer import event_file_writer
    except ImportError:
        raise MissingPackage("TensorBoard", "tensorboard", "callbacks.TensorBoard") from None
    return event_file_writer
