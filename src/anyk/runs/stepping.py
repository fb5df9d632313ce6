"""Custom training loops, which receive decoded gradients and take the steps."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Array, Vector
from anyk.base.checks import AtLeastOne, check_value
from anyk.base.errors import BadInput, RunFailed, as_bad_input, outside
from anyk.base.specs import Spec
from anyk.clusters.contract import Cluster
from anyk.codes import Code
from anyk.optimizers import STEPPED, Clip, Optimizer
from anyk.optimizers.steps import State
from anyk.problems.base import Problem, abilities_of, ensure_problem
from anyk.problems.watch import ProblemWatch, is_glanced_at
from anyk.protocol import Strategy, Workers
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun, check_callbacks
from anyk.runs.engine.carried_values import CarriedValues
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.step_record import StepBegun
from anyk.runs.evaluation.evaluate import USUAL, Evaluate, read_evaluate
from anyk.runs.folder.config import NAME, read_config
from anyk.runs.kept_states import left_out
from anyk.runs.log.receipts import Receipt, receipt_after, receipt_of_step
from anyk.runs.loop_module import LoopModule, matching
from anyk.runs.run import Run
from anyk.runs.spec import fitted, workers_on
from anyk.runs.training import resume, train
from anyk.strategies import strategy as build_strategy

if TYPE_CHECKING:
    import torch


_NOT_KEPT = (
    "the run's folder does not store the state of {names}: a loop that is resumed from it begins it anew; give "
    "keep=[…] with all optimisers and schedulers of the loop"
)


@dataclass
class Step:
    """A decoded gradient of the objective and the model that the loop changes with it, both of shape (d,).

    ``number`` counts from 0. ``scale`` is the strategy's factor on the learning rate, such as less than 1 for stale
    gradients; of accumulated gradients it is 1, as each is multiplied by its own factor. ``values``: the problem's
    values, by name, which travel with the model. ``model`` and ``values`` at the end of the loop's body, or when the
    loop is left, are the next version's.
    """

    number: int
    gradient: Vector
    model: Vector
    scale: float
    values: dict[str, Any]
    _receipt: Callable[[int], Receipt] = field(repr=False, compare=False)
    _rounds: int = field(default=1, repr=False, compare=False)
    _kept: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)  # changed buffers, by place

    @cached_property
    def receipts(self) -> tuple[Receipt, ...]:
        """The receipt of each round whose gradient is in the step, when this is first read."""
        return tuple(self._receipt(self.number * self._rounds + index + 1) for index in range(self._rounds))

    @property
    def receipt(self) -> Receipt:
        """The weights of the partitions, and the workers that were cut off; of several rounds the last one's."""
        return self.receipts[-1]


@dataclass(frozen=True)
class _HandOver(Optimizer):
    """An optimiser whose steps are taken by the user's loop, one for the mean gradient of ``accumulate`` rounds."""

    name = STEPPED
    rounds: Any = None
    accumulate: int = 1
    clip: float | None = None

    @property
    def spec(self) -> str:
        return self.name

    def start(self, w: Vector) -> State:
        """Return the sum of the gradients that the loop has not received yet."""
        return {} if self.accumulate == 1 else {"sum": np.zeros_like(w)}

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        if self.accumulate > 1:
            state["sum"] += scale * gradient
            if (t + 1) % self.accumulate:
                out = np.empty_like(w) if out is None else out
                out[:] = w
                return out
            gradient, scale = state["sum"] / self.accumulate, 1.0
            state["sum"][:] = 0.0
        # copies, as the user may store both
        gradient = gradient.astype(w.dtype)
        if self.clip is not None:
            Clip(of="gd", lr=1.0, norm=self.clip).shorten(gradient)
        model = self.rounds.hand_over(t // self.accumulate, gradient, w.copy(), scale)
        values = _numbers_of(model)
        if np.shape(values) != w.shape:
            raise BadInput(f"step.model must stay a vector of {w.size:,} numbers, got shape {np.shape(values)}")
        out = np.empty_like(w) if out is None else out
        out[:] = values
        return out


def _numbers_of(model: Any) -> Array:
    """Return the model that a loop has made as an array; raise :class:`~anyk.BadInput` unless its numbers are real."""
    if hasattr(model, "detach"):  # a tensor
        model = model.detach().cpu().numpy()
    values: Array = np.asanyarray(model)
    if isinstance(values, np.ma.MaskedArray) or values.dtype.kind not in "fiu":
        what = "masked values" if isinstance(values, np.ma.MaskedArray) else str(values.dtype)
        raise BadInput(f"step.model must stay a vector of real numbers, got {what}")
    return values


@dataclass(eq=False)
class Loop(Callback):
    """The callback by which a run reports to the user's loop and stores the loop's state in checkpoints."""

    keep: tuple[Any, ...]
    _accumulate: int = 1
    driver: Driver | None = None
    begun: StepBegun | None = None  # the step that the loop takes
    over: bool = False
    kept: dict[int, Array] = field(default_factory=dict)  # with which the first version travels, by place

    def on_begin(self, info: RunInfo) -> None:
        self.driver = info.driver
        info.driver.before_step = self.note_begun
        carried = info.driver.versions.carried
        if carried is not None:
            carried.rounds = self._accumulate
            carried.change(None, self.kept)

    def note_begun(self, begun: StepBegun) -> None:
        """Note what is known of the step before the loop takes it."""
        self.begun = begun

    def on_step(self, info: StepInfo) -> None:
        if self.over:
            raise StopRun(f"the loop was left at step {info.step}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each of the user's objects, and how many rounds are accumulated."""
        kinds = [type(item).__name__ for item in self.keep]
        return {"accumulate": self._accumulate, "kinds": kinds, "keep": [item.state_dict() for item in self.keep]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the user's objects."""
        if saved["accumulate"] != self._accumulate:
            raise BadInput(
                f"the run accumulates {saved['accumulate']} rounds for each step, got accumulate={self._accumulate}; "
                "give the same"
            )
        kinds, states = saved["kinds"], saved["keep"]
        if len(states) != len(self.keep):
            raise BadInput(
                f"the run stores the states of {len(states)} objects, keep has {len(self.keep)}; give the same"
            )
        if kinds != (given := [type(item).__name__ for item in self.keep]):
            raise BadInput(
                f"the run stores the states of {', '.join(kinds)}, in this order, keep has {', '.join(given)}; give "
                "the same"
            )
        for kind, item, state in zip(kinds, self.keep, states, strict=True):
            with as_bad_input(f"the {kind} in keep cannot take the state that the run stores", Exception):
                item.load_state_dict(state)


@dataclass(eq=False, repr=False)
class SteppedRounds:
    """The steps of a run, taken by the loop that iterates over them; the result of :func:`rounds`."""

    strategy: Strategy
    _problem: Problem
    _start: Callable[..., Run]
    _into: Any
    _loop: Loop
    _callbacks: Callbacks
    _resumed: Path | None  # the folder of the run that continues
    _out: str | Path | None  # the folder of the run
    _last: int | None  # the number of steps, if it is limited
    _accumulate: int = 1
    _checked: int = 0  # the number of optimisers of which it is known whether their states are kept
    _module: LoopModule | None = None  # once the loop has begun with one
    _waiting: bool = False  # whether the run waits for the loop's next model
    _steps: SimpleQueue[Step | None] = field(default_factory=SimpleQueue)
    _ends: SimpleQueue[None] = field(default_factory=SimpleQueue)
    _started: bool = False
    _run: Run | None = None
    _error: BaseException | None = None
    evaluates: bool = False  # whether an optimiser evaluates a closure, which need not change the model each time
    clip: float | None = None  # the norm to which gradients are shortened

    @property
    def run(self) -> Run:
        """The :class:`~anyk.runs.Run` after the loop has ended; raises the exception with which it failed."""
        if self._error is not None:
            raise self._error
        if self._run is None:
            raise BadInput("the run is available after the loop has ended")
        return self._run

    def __iter__(self) -> Iterator[Step]:
        if self._started:
            raise BadInput("rounds can be iterated only once; create new ones: anyk.rounds(…), with a new cluster")
        self._started = True
        self._check_unchanged()
        module = None
        if self._into is not None:
            resumed = self._resumed is not None
            module = self._module = LoopModule(self._into, self._problem, self._newest_values, resumed=resumed)
            self._loop.kept = module.first_changes()
        watch = ProblemWatch(self._problem)
        self.start_thread()
        said = self._resumed is None
        try:
            while (step := self._steps.get()) is not None:
                if not said:
                    said = True
                    self._say_where(step.number)
                if module is not None:
                    module.check_frozen()
                self._look(watch, step.number)
                if module is not None:
                    module.begin_step(step.model, step.gradient)
                try:
                    yield step
                finally:  # the step at which the loop is left counts
                    if module is not None:
                        step.model, step._kept = module.end_step(step.number, evaluates=self.evaluates)
                if module is not None:
                    self._check_kept(module.optimizers)
                self._ends.put(None)
        finally:
            self._loop.over = True
            self._ends.put(None)
            self._thread.join()
            if module is not None:
                final = None if self._run is None else self._run.model
                module.close(final, folder=self._resumed, failed=self._error is not None)
        if self._error is not None:
            raise self._error

    def start_thread(self) -> None:
        """Start the run, in a daemon, so that a script may end in the middle of its loop; workers end with it."""
        self._thread = threading.Thread(target=self._train, name="anyk rounds", daemon=True)
        self._thread.start()

    def _check_unchanged(self) -> None:
        """Refuse a problem whose copies of the user's objects are out of date, and say what else may be."""
        check_unchanged = abilities_of(self._problem).check_unchanged
        remarks = [] if check_unchanged is None else check_unchanged(begins=self._resumed is None)
        for remark in remarks if self._into is None else ():  # the loop's module is what it begins with
            warnings.warn(remark, RuntimeWarning, stacklevel=outside())

    def _look(self, watch: ProblemWatch, number: int) -> None:
        """Have the problem compared with what it was, more rarely the more steps there have been."""
        if number.bit_count() == 1 or number + 1 == self._last:
            watch.check()
        elif is_glanced_at(number):
            watch.glance()

    def _check_kept(self, optimizers: Sequence[Any]) -> None:
        """Warn if optimisers that have stepped, or their schedulers, have states that the run's folder lacks."""
        if self._out is None or len(optimizers) == self._checked:
            return
        lost = left_out(optimizers[self._checked :], self._loop.keep)
        self._checked = len(optimizers)
        if lost:
            warnings.warn(_NOT_KEPT.format(names=", ".join(lost)), RuntimeWarning, stacklevel=outside())

    def _say_where(self, number: int) -> None:
        """Report on standard error where a resumed loop continues."""
        begins = f"continues at step {number:,}" if number else "had no checkpoint yet, and begins again at step 0"
        print(f"anyk: the run in '{self._resumed}' {begins}", file=sys.stderr, flush=True)

    def _newest_values(self) -> CarriedValues | None:
        """Return what the newest version carries; None before there is a run, and for a problem without values."""
        return None if self._loop.driver is None else self._loop.driver.versions.carried

    @property
    def _carried(self) -> CarriedValues:
        carried = self._newest_values()
        assert carried is not None
        return carried

    def module_loss(self) -> float:
        """Return the problem's loss at the loop's module as it is."""
        assert self._module is not None
        return self._module.loss()

    def hand_over(self, number: int, gradient: Vector, model: Vector, scale: float) -> Vector:
        """Pass a step to the loop and return the model that the loop makes; called in the run's thread."""
        if self._loop.over:
            raise RunFailed("the loop was left while it waited for a gradient")
        driver = self._loop.driver
        assert driver is not None
        carried = driver.versions.carried
        values = {} if carried is None else carried.values
        step = Step(
            number=number,
            gradient=gradient,
            model=model,
            scale=scale,
            values=dict(values),
            _receipt=self.receipt,
            _rounds=self._accumulate,
        )
        self._waiting = True
        self._steps.put(step)
        self._ends.get()
        self._waiting = False
        if carried is not None:
            carried.change(step.values, step._kept)
        elif step.values:
            raise BadInput(f"the problem has no values, got {', '.join(step.values)}; name them in values= of it")
        return step.model

    def receipt(self, version: int) -> Receipt:
        """Return the receipt of a version, which may be the one that the loop is making."""
        driver, begun = self._loop.driver, self._loop.begun
        assert driver is not None and begun is not None
        slot = driver.strategy.layout.slots[0]
        if self._run is not None:
            return self._run.receipt(version)
        if self._waiting:  # the run's thread does not use the log meanwhile
            making = begun.version == version
            receipt = receipt_of_step(driver, begun) if making else receipt_after(driver, slot, version)
            if receipt is not None:
                return receipt
        raise BadInput(f"ask for the receipt of step {version} in the loop's body, or of the run after the loop")

    def make_optimizer(self) -> Optimizer:
        """Return the optimiser of the run, by which the loop takes the steps."""
        return _HandOver(rounds=self, accumulate=self._accumulate, clip=self.clip)

    def _train(self) -> None:
        try:
            self._run = self._start(optimizer=self.make_optimizer(), callbacks=self._callbacks)
        except BaseException as error:
            self._error = error
        finally:
            self._steps.put(None)


@dataclass(eq=False)
class _WithInitial:
    """A problem with another initial model."""

    _problem: Problem
    _w: Vector
    hooked_parameters = ()  # torch calls the hooks when the loop's gradients are set

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # requested by pickle while there is no problem yet
            raise AttributeError(name)
        return getattr(self._problem, name)

    def initial(self) -> Vector:
        return self._w


def rounds(
    problem: Problem,
    strategy: Strategy | Code | str,
    cluster: Cluster,
    *,
    workers: tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    into: torch.nn.Module | None = None,
    accumulate: int = 1,
    out: str | Path | None = None,
    go_on: bool = False,
    keep: Any = (),
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
) -> SteppedRounds:
    """Return gradients for a custom training loop: ``for step in anyk.rounds(…)``.

    Each :class:`Step` has the decoded gradient of the objective (regulariser included) and the model, which the loop
    changes in place or assigns.

    ``into``: a PyTorch module whose trainable parameters are the problem's. The run starts with the module's
    parameters, gradients are written to their ``grad`` (not added: ``zero_grad`` is not needed, and before the step it
    would erase them), and the parameters at the end of the loop's body are the next version. So an existing script
    keeps its optimiser, its scheduler and its clipping. Buffers and frozen parameters that the loop changes
    travel to the workers. Running statistics of batch norm are the exception: as after :func:`anyk.train`,
    they are computed over the training data, whenever they are read, and at the end of the loop.

    ``accumulate``: the number of rounds for each step of the loop, which receives the mean of their gradients, as a
    PyTorch loop that calls ``backward`` for each of as many mini-batches and divides the loss by their number. The
    model stays the same in between. ``steps`` counts steps of the loop; the run's own steps are rounds. Rounds after
    the last step of the loop, where seconds end the run, do not count.

    ``out``: a run folder with checkpoints, as for :func:`anyk.train`. With ``go_on`` a run in it is resumed, so that
    the same script can be started again after it was killed; a line on standard error says at which step it continues.
    The first checkpoint is written after a second at most. ``keep``: the loop's optimiser, schedulers, or other
    objects with ``state_dict`` and ``load_state_dict``. Their states are part of the checkpoints and are restored
    before the first step, as are the parameters of ``into``. Other states of the loop are not saved.

    ``workers``: a range such as ``(4, 16)`` within which the workers of the cluster join and leave, with ``partitions``
    of the data; both, limits, ``evaluate`` and ``callbacks`` are as in :func:`anyk.train`. Leaving the loop early, also
    by an exception, ends the run with that step. Afterwards the attribute ``run`` of the result is the run.

    Raises :class:`~anyk.BadInput` for strategies whose workers take the steps (local updates) or that train
    several models, and if the module's parameters or batch norms are not the problem's. The loop raises the exception
    with which the run fails.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> loop = anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(workers=4), steps=20)
    >>> for step in loop:
    ...     step.model -= 0.5 * step.gradient
    >>> loop.run.steps, bool(loop.run.loss < problem.loss(problem.initial()))
    (20, True)
    """
    check_value(cluster, Cluster, "cluster")
    if cluster.in_slices:
        raise BadInput(
            "with slices no node has the whole gradient, which anyk.rounds hands out: use anyk.torch.Optimizer, "
            "anyk.train, or a cluster without slices"
        )
    return begin_rounds(
        problem,
        strategy,
        cluster,
        workers=workers,
        partitions=partitions,
        steps=steps,
        seconds=seconds,
        into=into,
        accumulate=accumulate,
        out=out,
        go_on=go_on,
        keep=keep,
        evaluate=evaluate,
        checkpoint_every=checkpoint_every,
        callbacks=callbacks,
    )


def begin_rounds(
    problem: Problem,
    strategy: Strategy | Code | str,
    cluster: Cluster,
    *,
    workers: tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    into: torch.nn.Module | None = None,
    accumulate: int = 1,
    out: str | Path | None = None,
    go_on: bool = False,
    keep: Any = (),
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    make: Callable[..., SteppedRounds] = SteppedRounds,
    make_loop: Callable[..., Loop] = Loop,
) -> SteppedRounds:
    """Do :func:`rounds`, on any cluster, with other classes for the steps (``make``) and for the callback."""
    ensure_problem(problem)
    requested = Spec(strategy) if isinstance(strategy, str) else strategy
    present = workers_on(cluster, requested, workers, partitions)
    built, _ = fitted(problem, requested, present, evaluate=read_evaluate(evaluate), target=None)
    _check_gradients(built, accumulate)
    if into is not None:
        problem = _WithInitial(problem, matching(into, problem))
    resumed = _folder_to_resume(out, go_on=go_on)
    if resumed is None:
        start = partial(train, problem, built, cluster, out=out)
    else:
        _check_same(resumed, built, cluster)
        start = partial(resume, resumed, problem=problem)
    most = steps * accumulate if isinstance(steps, int) else steps
    start = partial(start, steps=most, seconds=seconds, evaluate=evaluate, checkpoint_every=checkpoint_every)
    loop = make_loop(_with_states(keep), accumulate)
    listeners = Callbacks((*check_callbacks(callbacks), loop))
    return make(
        strategy=built,
        _problem=problem,
        _start=start,
        _into=into,
        _loop=loop,
        _callbacks=listeners,
        _resumed=resumed,
        _out=out,
        _last=steps,
        _accumulate=accumulate,
    )


def _check_gradients(strategy: Strategy, accumulate: int) -> None:
    """Raise :class:`~anyk.BadInput` unless a strategy has gradients for a loop, and as many as it accumulates."""
    if strategy.layout.inner is not None:
        raise BadInput(f"under '{strategy.spec}' workers take the steps: there are no gradients to hand out")
    if len(strategy.layout.slots) > 1:
        raise BadInput(f"'{strategy.spec}' trains {len(strategy.layout.slots)} models; a custom loop trains one")
    check_value(accumulate, AtLeastOne, "accumulate")
    if accumulate > 1 and not strategy.layout.minibatches:
        raise BadInput(
            f"accumulate={accumulate} adds up the gradients of mini-batches, and '{strategy.spec}' computes with all "
            "data in each round; give the strategy batch=…, or leave accumulate out"
        )


def _folder_to_resume(out: str | Path | None, *, go_on: bool) -> Path | None:
    """Return the folder of the run that a loop goes on with; None if it begins a new one."""
    if not go_on:
        return None
    if out is None:
        raise BadInput("go_on resumes the run in a folder; give out=…")
    return Path(out) if (Path(out) / NAME).exists() else None


def _with_states(keep: Any) -> tuple[Any, ...]:
    """Return the user's objects whose states are saved; raise if an object has no state."""
    stateful = tuple(keep) if isinstance(keep, (list, tuple)) else (keep,)
    for item in stateful:
        if isinstance(item, type) or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise BadInput(
                "keep must be objects with state_dict and load_state_dict, such as optimisers and schedulers of "
                f"PyTorch, got {item!r}"
            )
    return stateful


def _check_same(folder: Path, strategy: Strategy, cluster: Cluster) -> None:
    """Raise :class:`~anyk.BadInput` if the run in a folder has another strategy or cluster than the loop."""
    config, workers = read_config(folder), Workers.of_layout(strategy.layout)
    before = build_strategy(config.strategy, workers=config.workers)
    for name, stored, requested in (
        ("strategy", before.spec, strategy.spec),
        ("cluster", config.cluster, cluster.spec),
        ("workers", str(config.workers), str(workers)),
        ("partitions", config.partitions, strategy.layout.partitions),
    ):
        if stored != requested:
            raise BadInput(
                f"the run '{folder}' has the {name} '{stored}', the loop '{requested}'; give the same, or another out"
            )
