"""Models of a run stored in files, at regular steps and the best, and the end of a run that gets no better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.checks import AtLeastOne, NonnegativeNumber, typed
from anyk.base.errors import BadInput, RunFailed
from anyk.base.plain import ByName
from anyk.base.regular_files import replacing
from anyk.base.specs import Folder
from anyk.callbacks.lookup import registry
from anyk.runs.callbacks import Callback, EvaluationInfo, RunInfo, StepInfo, StopRun

Quantity = Literal["loss", "metric"]


@typed
@dataclass
class Best:
    """The best value so far of one model; ``of``: the loss, or the metric, which is minimised or maximised.

    ``user``: the callback that uses it, in messages.
    """

    of: Quantity
    user: str
    min_delta: NonnegativeNumber = 0.0
    value: float | None = None
    step: int = -1
    _sign: float = 1.0

    def begin(self, info: RunInfo) -> None:
        """Prepare for a run; raise :class:`~anyk.BadInput` if it evaluates nothing."""
        if info.config.evaluate == "none":
            raise BadInput(f"{self.user} needs evaluation, which evaluate=None switches off; omit one of them")
        if info.evaluated is None or (self.of == "loss" and info.evaluated == "held_out"):
            raise self._missing()
        higher = self.of == "metric" and info.config.better == "higher"
        self._sign = -1.0 if higher else 1.0

    def _missing(self) -> BadInput:
        way = "give held-out data"
        if self.of == "loss":
            way = (
                "ask for that on training data, evaluate='on=train' (on the command line: --evaluate on=train) or have "
                "it go by the metric, of='metric'"
            )
        return BadInput(f"{self.user} goes by the {self.of}, which is not evaluated; {way}")

    def improved(self, info: EvaluationInfo) -> bool | None:
        """Return whether an evaluation is better than all before by at least ``min_delta``; None if unknown.

        It is unknown for versions older than one evaluated before, and without a loss. Raises
        :class:`~anyk.BadInput` without a metric.
        """
        value = info.loss if self.of == "loss" else info.metric
        if value is None:
            if self.of == "loss":
                return None
            raise self._missing()
        if info.step <= self.step:
            return None
        self.step = info.step
        before = self.value
        if math.isnan(value) or value == before:
            return False
        if before is not None and self._sign * value > self._sign * before - self.min_delta:
            return False
        self.value = value
        return True


@registry.register("checkpoint")
@typed
class Checkpoint(Callback):
    """Writes models, flat vectors of length d, as ``.npy`` files into ``folder``, to be read by ``numpy.load``.

    ``every``: number of steps between models, stored as ``step-00000100.npy``. ``best``: the best model by ``loss`` or
    ``metric`` so far, as ``best.npy``. If several models are trained, each has files of its own
    (``model 1-best.npy``), and so has each run of a race, in a folder with its strategy's name. The state for resuming
    a run is stored elsewhere, in the folder ``out`` of :func:`anyk.train`.

    Raises :class:`~anyk.BadInput` if neither is given, or ``best`` without evaluation, and ends the run with
    :class:`~anyk.RunFailed` if a file cannot be written.

    >>> import anyk, numpy, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> folder = tempfile.mkdtemp()
    >>> keep = Checkpoint(folder, every=10, best="loss")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=3, steps=20, callbacks=[keep])
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['best.npy', 'step-00000010.npy', 'step-00000020.npy']
    >>> bool((numpy.load(f"{folder}/step-00000020.npy") == run.model).all())
    True
    """

    def __init__(self, folder: Folder, *, every: AtLeastOne | None = None, best: Quantity | None = None) -> None:
        if every is None and best is None:
            raise BadInput(
                "a Checkpoint stores models at regular steps or the best model; give every=100, best='loss' or both"
            )
        self.folder, self.every, self.best = Path(folder), every, best
        self._into = self.folder
        self._best: dict[str, Best] = {}
        self._restored: dict[str, tuple[float | None, int]] = {}

    def on_begin(self, info: RunInfo) -> None:
        self._info, self._best = info, {}
        self._into = self.folder / info.title if info.title else self.folder
        restored, self._restored = self._restored, {}
        if self.best is None:
            return
        self._new_best()  # which refuses a run without evaluation
        for slot, (value, step) in restored.items():
            best = self._best[slot] = self._new_best()
            # not as arguments, which are checked: NumPy's numbers come back from a checkpoint as arrays
            best.value, best.step = value, step

    def on_step(self, info: StepInfo) -> None:
        if self.every is not None and info.step % self.every == 0:
            self._write(info.slot, f"step-{info.step:08}", info.model)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        if self.best is None:
            return
        if info.slot not in self._best:
            self._best[info.slot] = self._new_best()
        if self._best[info.slot].improved(info):
            self._write(info.slot, "best", info.model)

    def _new_best(self) -> Best:
        assert self.best is not None
        best = Best(self.best, "best of Checkpoint")
        best.begin(self._info)
        return best

    def _write(self, slot: str, name: str, model: Vector) -> None:
        file = self._into / f"{'' if slot == 'model' else f'{slot}-'}{name}.npy"
        try:
            self._into.mkdir(parents=True, exist_ok=True)
            with replacing(file) as partial, partial.open("xb") as opened:
                np.save(opened, model, allow_pickle=False)
        except OSError as error:
            raise RunFailed(f"the model '{file}' cannot be written ({error.strerror})") from None

    def state_dict(self) -> dict[str, tuple[float | None, int]]:
        """Return the state from which a resumed run continues."""
        return {slot: (best.value, best.step) for slot, best in self._best.items()}

    def load_state_dict(self, state: dict[str, tuple[float | None, int]]) -> None:
        """Continue from the result of :meth:`state_dict`."""
        self._restored = dict(state)


@registry.register("early-stopping")
@typed
class EarlyStopping(Callback):
    """Ends a run when ``patience`` evaluations in a row did not improve on the best value by ``min_delta``.

    ``of``: ``loss``, or ``metric`` on held-out data. :class:`anyk.Evaluate` sets when evaluations happen; on a real
    clock they take at most a twentieth of the time, so the run may end late. If several models are trained,
    only the first counts. Each run of a race is judged separately, a resumed run together with its earlier part.

    Raises :class:`~anyk.BadInput` if nothing is evaluated.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> stop = EarlyStopping(patience=3, min_delta=0.01)
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=3, steps=500, callbacks=[stop])
    >>> run.steps < 500, run.summary["stopped"].startswith("loss has not got better by 0.01 for 3 evaluations")
    (True, True)
    """

    def __init__(self, patience: AtLeastOne = 5, *, min_delta: float = 0.0, of: Quantity = "loss") -> None:
        self.patience, self.min_delta, self.of = patience, min_delta, of
        self._restored: ByName | None = None
        self._reset()

    def _reset(self) -> None:
        self._best, self._slot, self.waited = Best(self.of, "EarlyStopping", self.min_delta), "", 0

    @property
    def best(self) -> float | None:
        """Best value so far; None before the first evaluation."""
        return self._best.value

    def on_begin(self, info: RunInfo) -> None:
        self._reset()
        self._best.begin(info)
        if self._restored is not None:
            self._best.value, self._best.step = self._restored["best"], self._restored["step"]
            self._slot, self.waited, self._restored = self._restored["slot"], self._restored["waited"], None

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self._slot = self._slot or info.slot
        better = self._best.improved(info) if info.slot == self._slot else None
        if better is None:
            return
        self.waited = 0 if better else self.waited + 1
        if self.waited >= self.patience:
            by = f" by {self.min_delta:g}" if self.min_delta else ""
            best = "" if self.best is None else f", best {self.best:.6g}"
            raise StopRun(f"{self.of} has not got better{by} for {self.waited} evaluations (step {info.step}{best})")

    def state_dict(self) -> ByName:
        """Return the state from which a resumed run continues."""
        return {"best": self.best, "step": self._best.step, "slot": self._slot, "waited": self.waited}

    def load_state_dict(self, state: ByName) -> None:
        """Continue from the result of :meth:`state_dict`."""
        self._restored = state
