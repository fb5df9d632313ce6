"""Hooks into a run: what happens at each step, evaluation and loss of a worker, at its beginning and at its end.

A callback may be any object with some of the methods of :class:`Callback`. They are called in the thread that drives
the run, after the workers have been given their next tasks; on a real clock workers compute meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.errors import RAISED, BadInput
from anyk.problems.base import Vector
from anyk.runs.log.receipts import CutOff, Receipt, receipt_after

if TYPE_CHECKING:
    from anyk.runs.engine.driver import Driver
    from anyk.runs.evaluation.evaluator import Evaluator
    from anyk.runs.folder.config import RunConfig
    from anyk.runs.run import Run

_SETTINGS = (
    "strategy",
    "workers",
    "cluster",
    "delays",
    "communication",
    "seed",
    "optimizer",
    "lr",
    "steps",
    "seconds",
    "target",
    "evaluate",
    "anyk",
)
HOOKS = ("on_begin", "on_step", "on_evaluation", "on_worker_lost", "on_end")


class StopRun(Exception):
    """Raised by a callback to end the run after the step at hand, as if it had reached a limit."""


@dataclass(frozen=True)
class RunInfo:
    """The run that begins or goes on: its configuration (as in ``run.toml``), its folder (None: in memory), its step.

    ``metric``: the name of the metric. ``title``: in a race, the name of the run's folder; else empty. ``evaluated``:
    what is, ``"train"`` (loss, and metric if there is held-out data), ``"held_out"`` (metric) or None.
    """

    config: RunConfig
    path: Path | None
    step: int
    metric: str
    title: str
    evaluated: str | None
    driver: Driver = field(repr=False)

    @property
    def strategy(self) -> str:
        """The strategy's spec."""
        return self.config.strategy

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the run and of its surroundings as text, by name."""
        config = self.config
        plain: dict[str, Any] = {name: getattr(config, name) for name in _SETTINGS} | config.environment
        if config.problem is not None:
            plain |= {"data": config.problem.data, "problem": config.problem.problem}
        return {name: str(value) for name, value in plain.items() if value not in (None, "")}


@dataclass(frozen=True)
class StepInfo:
    """A step: version ``step`` of ``slot`` (the model) was made at ``seconds`` on the run's clock.

    ``workers``: how many workers' messages were used; ``residual`` and ``gain`` of the decode; ``staleness``: mean of
    the messages' staleness, in versions, and ``stalest`` the largest. ``loss`` and ``metric`` are those of version
    ``evaluated``, the newest that has been evaluated so far; on a real clock that may be an older one, and all three
    are None if there is none.
    """

    slot: str
    step: int
    seconds: float
    workers: int
    residual: float
    gain: float
    staleness: float
    stalest: int
    loss: float | None
    metric: float | None
    evaluated: int | None
    driver: Driver = field(repr=False, compare=False)
    evaluator: Evaluator = field(repr=False, compare=False)

    @property
    def model(self) -> Vector:
        """The model, of length d; copy it to keep or change it.

        Raises :class:`~anyk.errors.BadInput` after the hook has returned and another step was taken.
        """
        if self.driver.versions[self.slot] != self.step:
            raise BadInput(f"the model of step {self.step} is gone; copy it in on_step")
        w = self.driver.models[self.slot].view()
        w.flags.writeable = False
        return w

    @cached_property
    def receipt(self) -> Receipt:
        """Which partitions counted with which weight, and who was cut off; asked for, it costs a look into the log."""
        receipt = receipt_after(self.driver, self.slot, self.step)
        assert receipt is not None
        return receipt

    @property
    def cut_off(self) -> tuple[CutOff, ...]:
        """The workers that were not waited for."""
        return self.receipt.cut_off


@dataclass(frozen=True)
class EvaluationInfo:
    """Loss and metric (None where not evaluated) of version ``step``, which was made at ``seconds``.

    ``model``: what was evaluated, of length d. On a real clock versions are evaluated some time after they were made,
    most of them after the run.
    """

    slot: str
    step: int
    seconds: float
    loss: float | None
    metric: float | None
    model: Vector = field(repr=False, compare=False)


@dataclass(frozen=True)
class LostInfo:
    """A worker that was lost at ``seconds``, after ``step`` steps.

    ``gone``: it has been given up and is not replaced.
    """

    worker: int
    step: int
    seconds: float
    reason: str
    gone: bool


@dataclass(frozen=True)
class EndInfo:
    """The end: steps and seconds that the run came to, and loss and metric of the final model.

    ``error``: what it failed of (KeyboardInterrupt where it was interrupted); then ``run`` is None.
    """

    step: int
    seconds: float
    loss: float | None
    metric: float | None
    run: Run | None = field(repr=False, compare=False, default=None)
    error: BaseException | None = None


class Callback:
    """Base class of callbacks: methods to override.

    In any of them, :class:`StopRun` ends the run after the step at hand. Any other exception ends it, too: the run is
    saved, so that it can be resumed, and the exception is raised. A callback with ``state_dict()`` and
    ``load_state_dict(state)`` (numbers, texts, lists, dicts, arrays) is saved with the run's checkpoints, and restored
    before :meth:`on_begin` when the run is resumed.

    >>> import anyk
    >>> class Slow(anyk.Callback):
    ...     def on_step(self, info):
    ...         if info.seconds > 3:
    ...             raise anyk.StopRun(f"3 seconds are over at step {info.step}")
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.cluster("simulated", workers=3, delays="constant:1")
    >>> run = anyk.train(problem, "uncoded", fleet, steps=10, callbacks=[Slow()])
    >>> run.steps, run.summary["stopped"]
    (4, '3 seconds are over at step 4')
    """

    def on_begin(self, info: RunInfo) -> None:
        """A run begins or is resumed; a race has several, one after another."""

    def on_step(self, info: StepInfo) -> None:
        """A step was taken."""

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """A version was evaluated."""

    def on_worker_lost(self, info: LostInfo) -> None:
        """A worker was lost; unless it is given up, it is replaced and joins again."""

    def on_end(self, info: EndInfo) -> None:
        """The run has ended, in whichever way; called once for each :meth:`on_begin`."""


class Hooks:
    """The hooks of several callbacks, called in their order; hooks that nobody has cost nothing.

    ``failed`` is the first exception that a callback has raised, ``stop`` the reason of the first :class:`StopRun`.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self._of = {hook: [*self._having(hook)] for hook in HOOKS}
        self.failed: Exception | None = None
        self.stop: str | None = None

    def _having(self, hook: str) -> Iterable[tuple[Any, Callable[[Any], None]]]:
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None and getattr(method, "__func__", None) is not getattr(Callback, hook):
                yield callback, method

    def stage(self, text: str, *, at_once: bool = True) -> None:
        """Tell those that show progress what goes on between steps."""
        for callback in self.callbacks:
            if hasattr(callback, "stage"):
                callback.stage(text, at_once=at_once)

    def __getitem__(self, hook: str) -> bool:
        return bool(self._of[hook])

    def __call__(self, hook: str, info: Any) -> bool:
        """Call a hook of all; returns whether the run is to end."""
        for callback, method in self._of[hook]:
            try:
                method(info)
            except StopRun as stop:
                self.stop = self.stop or str(stop) or f"stopped by {type(callback).__name__}"
            except Exception as error:
                if self.failed is None:
                    error.add_note(f"{RAISED}{hook} of the callback {type(callback).__name__}")
                    self.failed = error
        return self.failed is not None or self.stop is not None


class Callbacks(tuple[Any, ...]):
    """The callbacks of a run; ``title``: its name in a race; ``specs``: of those that its folder is to keep."""

    title = ""
    specs: tuple[str, ...] = ()

    def with_title(self, title: str) -> Callbacks:
        """The same for one run of a race."""
        copied = Callbacks(self)
        copied.title, copied.specs = title, self.specs
        return copied

    def also(self, *others: Any) -> Callbacks:
        """The same and others, of which the folder keeps nothing."""
        joined = Callbacks((*self, *others))
        joined.title, joined.specs = self.title, self.specs
        return joined


def check_callbacks(callbacks: Any) -> Callbacks:
    """Callbacks as a tuple; raises :class:`~anyk.errors.BadInput` for what is none."""
    if callbacks is None or isinstance(callbacks, Callbacks):
        return callbacks or Callbacks()
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise BadInput(f"callbacks must be a list of callbacks, as in callbacks=[EarlyStopping()], got {callbacks!r}")
    checked = Callbacks(callbacks)
    for one in checked:
        if isinstance(one, type):
            raise BadInput(f"callbacks must be objects, got the class {one.__name__}; write {one.__name__}(…)")
        if not any(callable(getattr(one, hook, None)) for hook in HOOKS):
            raise BadInput(f"a callback needs one of the methods {', '.join(HOOKS)}; {one!r} has none of them")
        unknown = [name for name in dir(type(one)) if name.startswith("on_") and name not in HOOKS]
        unknown = [name for name in unknown if callable(getattr(type(one), name))]
        if isinstance(one, Callback) and unknown:
            raise BadInput(
                f"no run would call {type(one).__name__}.{unknown[0]}; the hooks are {', '.join(HOOKS)}, and a method "
                "of your own needs a name without on_"
            )
    return checked


class Watching(Callback):
    """Calls a function with the driver and the evaluator after each step: for what tests do to a run from inside."""

    def __init__(self, function: Callable[[Driver, Evaluator], None]) -> None:
        self._function = function

    def on_step(self, info: StepInfo) -> None:
        self._function(info.driver, info.evaluator)
