"""Hooks into a run, called at its start and end and at each step, evaluation and loss of a worker.

A callback may be any object with some of the methods of :class:`Callback`. They are called in the thread that drives
the run, after the workers have received their next tasks; on a real clock workers compute meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.base.arrays import Vector, read_only
from anyk.base.errors import RAISED, BadInput
from anyk.base.plain import values_of
from anyk.runs.log.receipts import CutOff, Receipt, receipt_after

if TYPE_CHECKING:
    from anyk.runs.engine.driver import Driver
    from anyk.runs.engine.step_record import StepRecord
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
    """Raised by a callback to end the run after the current step, as if it had reached a limit."""


@dataclass(frozen=True)
class RunInfo:
    """The run that starts or is resumed: its configuration (as in ``run.toml``), folder (None: in memory) and step.

    ``metric``: the name of the metric. ``title``: in a race, the name of the run's folder; else empty. ``evaluated``:
    ``"train"`` (loss, and metric if there is held-out data), ``"held_out"`` (metric), or None without evaluation.
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
        """The settings of the run and of its environment as text, by name."""
        config = self.config
        plain = values_of(config, *_SETTINGS) | config.environment
        if config.problem is not None:
            plain |= {"data": config.problem.data, "problem": config.problem.problem}
        return {name: str(value) for name, value in plain.items() if value not in (None, "")}


@dataclass(frozen=True)
class StepInfo:
    """A step, which made version ``step`` of ``slot`` (the model) at ``seconds`` on the run's clock.

    ``workers``: the number of workers whose messages were used; ``residual`` and ``gain``: of the decoding;
    ``staleness`` and ``stalest``: mean and largest staleness of the messages, in versions. ``evaluated``: the newest
    version that has been evaluated, which on a real clock may be an older one, with its ``loss`` and ``metric``; all
    three are None before the first evaluation. ``record``: the step as the driver has taken it.
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
    record: StepRecord = field(repr=False, compare=False)
    driver: Driver = field(repr=False, compare=False)
    evaluator: Evaluator = field(repr=False, compare=False)

    @property
    def model(self) -> Vector:
        """The model, shape (d,); copy it to keep or change it.

        Raises :class:`~anyk.BadInput` after the next step.
        """
        if self.driver.versions[self.slot] != self.step:
            raise BadInput(f"the model of step {self.step} is gone; copy it in on_step")
        return read_only(self.driver.versions.model(self.slot))

    @cached_property
    def receipt(self) -> Receipt:
        """The weights of the partitions, and the workers that were cut off; read from the log when first requested."""
        receipt = receipt_after(self.driver, self.slot, self.step)
        assert receipt is not None
        return receipt

    @property
    def cut_off(self) -> tuple[CutOff, ...]:
        """The workers that were not waited for."""
        return self.receipt.cut_off


@dataclass(frozen=True)
class EvaluationInfo:
    """Loss and metric (None if not evaluated) of version ``step``, which was made at ``seconds``.

    ``model``: the vector of this version, shape (d,). On a real clock versions are evaluated some time after they were
    made, mostly after the run.
    """

    slot: str
    step: int
    seconds: float
    loss: float | None
    metric: float | None
    model: Vector = field(repr=False, compare=False)


@dataclass(frozen=True)
class LostInfo:
    """A worker that was lost at ``seconds``, after ``step`` steps. ``gone``: it is not replaced."""

    worker: int
    step: int
    seconds: float
    reason: str
    gone: bool


@dataclass(frozen=True)
class EndInfo:
    """The end of a run: its steps and seconds, and loss and metric of the final model.

    ``error``: the exception that ended it (KeyboardInterrupt if it was interrupted); then ``run`` is None.
    """

    step: int
    seconds: float
    loss: float | None
    metric: float | None
    run: Run | None = field(repr=False, compare=False, default=None)
    error: BaseException | None = None


class Callback:
    """Base class of callbacks, with methods to override.

    :class:`StopRun`, raised in any method, ends the run after the current step. Any other exception ends it as well:
    the run is saved, so that it can be resumed, and the exception is raised. A callback with ``state_dict()`` and
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
        """Called when a run starts or is resumed; once for each run of a race."""

    def on_step(self, info: StepInfo) -> None:
        """Called after a step."""

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Called after a version was evaluated."""

    def on_worker_lost(self, info: LostInfo) -> None:
        """Called when a worker was lost; unless it is ``gone``, it is replaced and joins again."""

    def on_end(self, info: EndInfo) -> None:
        """Called when the run has ended or failed; once for each :meth:`on_begin`."""


class Hooks:
    """The hooks of several callbacks, called in the order of the callbacks; hooks without a method cost nothing.

    ``failed`` is the first exception that a callback has raised, ``stop`` the reason of the first :class:`StopRun`.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self._methods = {hook: [*self._implementing(hook)] for hook in HOOKS}
        self.failed: Exception | None = None
        self.stop: str | None = None

    def _implementing(self, hook: str) -> Iterable[tuple[Any, Callable[[Any], None]]]:
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None and getattr(method, "__func__", None) is not getattr(Callback, hook):
                yield callback, method

    def stage(self, text: str, *, always: bool = True) -> None:
        """Pass a line on the work between two steps to callbacks that show progress."""
        for callback in self.callbacks:
            if hasattr(callback, "stage"):
                callback.stage(text, always=always)

    @property
    def of_users(self) -> bool:
        """Whether a callback is not anyk's own, and may do anything."""
        return any(not type(callback).__module__.startswith("anyk.") for callback in self.callbacks)

    def has(self, hook: str) -> bool:
        """Return whether any callback has a hook."""
        return bool(self._methods[hook])

    def __call__(self, hook: str, info: Any) -> bool:
        """Call a hook of all callbacks; return whether the run must end."""
        for callback, method in self._methods[hook]:
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
    """The callbacks of a run; ``title``: its name in a race; ``specs``: those that its folder stores."""

    title = ""
    specs: tuple[str, ...] = ()

    def also(self, *others: Any, title: str = "") -> Callbacks:
        """Return these callbacks and others, which the folder does not store, with another ``title`` if given."""
        joined = Callbacks((*self, *others))
        joined.title, joined.specs = title or self.title, self.specs
        return joined


def check_callbacks(callbacks: Any) -> Callbacks:
    """Return callbacks as a tuple; raise :class:`~anyk.BadInput` for an object that is not a callback."""
    if callbacks is None or isinstance(callbacks, Callbacks):
        return callbacks or Callbacks()
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise BadInput(f"callbacks must be a list of callbacks, as in callbacks=[EarlyStopping()], got {callbacks!r}")
    checked = Callbacks(callbacks)
    hooks = ", ".join(HOOKS)
    for callback in checked:
        kind = type(callback)
        if isinstance(callback, type):
            raise BadInput(
                f"callbacks must be objects, got the class {callback.__name__}; write {callback.__name__}(…)"
            )
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise BadInput(f"a callback needs one of the methods {hooks}; {callback!r} has none of them")
        for name in dir(kind) if isinstance(callback, Callback) else ():
            if name.startswith("on_") and name not in HOOKS and callable(getattr(kind, name)):
                raise BadInput(
                    f"no run would call {kind.__name__}.{name}; the hooks are {hooks}, and other methods need names "
                    "without on_"
                )
    return checked


@dataclass(eq=False)
class Watching(Callback):
    """Calls a function with the driver and the evaluator after each step, for tests that change a run from inside."""

    function: Callable[[Driver, Evaluator], None]

    def on_step(self, info: StepInfo) -> None:
        self.function(info.driver, info.evaluator)
