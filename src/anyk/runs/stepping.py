"""A loop of one's own: decoded gradients are handed out, and whoever gets them takes the step."""

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

from anyk.checks import check
from anyk.clusters.contract import Cluster
from anyk.codes import Code
from anyk.errors import BadInput, RunFailed
from anyk.optimizers import STEPPED, Optimizer
from anyk.optimizers.steps import State
from anyk.problems.base import Problem, Vector, abilities_of, ensure_problem
from anyk.problems.torch.module_partitions import dtype_of, norms_of, pieces_of
from anyk.problems.torch.network import trained
from anyk.protocol import Strategy
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun, check_callbacks
from anyk.runs.engine.driver import Driver
from anyk.runs.evaluation.evaluate import USUAL, Evaluate
from anyk.runs.folder.config import NAME, read_config
from anyk.runs.log.receipts import Receipt, receipt_after, receipt_of_step
from anyk.runs.run import Run
from anyk.runs.training import resume, train
from anyk.strategies import strategy as build_strategy

if TYPE_CHECKING:
    import torch


_IDLE = 3  # steps that may leave the model as it is
_UNCHANGED = (
    "no step of this loop has changed a parameter of the module: its optimiser does not step, is one of other "
    "parameters or has a learning rate of 0, or zero_grad() erases the gradient before it steps"
)


@dataclass
class Step:
    """A gradient of the objective, decoded, and the model to be changed with it, both of length d.

    ``number`` counts from 0. ``scale`` is the strategy's factor on the learning rate (less than 1 for stale gradients,
    say). The value of ``model`` when the next step is asked for, or the loop is left, is the next version.
    """

    number: int
    gradient: Vector
    model: Vector
    scale: float
    _receipt: Callable[[int], Receipt] = field(repr=False, compare=False)

    @cached_property
    def receipt(self) -> Receipt:
        """Which partitions counted with which weight, and who was cut off: as known when it is first asked for."""
        return self._receipt(self.number + 1)


@dataclass(frozen=True)
class _HandOver(Optimizer):
    """An optimiser that asks somebody else to step."""

    name = STEPPED
    rounds: Any = None

    @property
    def spec(self) -> str:
        return self.name

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        del state
        model = self.rounds.hand_over(
            Step(t, gradient.astype(w.dtype), w.copy(), scale, self.rounds.receipt)  # both may be kept
        )
        if np.shape(model) != w.shape:
            raise BadInput(f"step.model must stay a vector of {w.size:,} numbers, got shape {np.shape(model)}")
        out = np.empty_like(w) if out is None else out
        out[:] = model
        return out


class _Loop(Callback):
    """The callback by which a run reports to the user's loop and stores the loop's state in checkpoints."""

    def __init__(self, keep: tuple[Any, ...]) -> None:
        self._keep = keep
        self.driver: Driver | None = None
        self.left = False

    def on_begin(self, info: RunInfo) -> None:
        self.driver = info.driver

    def on_step(self, info: StepInfo) -> None:
        if self.left:
            raise StopRun(f"the loop was left at step {info.step}")

    def state_dict(self) -> list[Any]:
        """Return the state of each of the user's objects."""
        return [one.state_dict() for one in self._keep]

    def load_state_dict(self, states: list[Any]) -> None:
        """Restore the user's objects."""
        if len(states) != len(self._keep):
            raise BadInput(
                f"the run keeps the states of {len(states)} objects, keep has {len(self._keep)}; give the same"
            )
        for one, state in zip(self._keep, states, strict=True):
            one.load_state_dict(state)


class Rounds:
    """The steps of a run, to be taken by whoever iterates over it; :func:`rounds` makes one."""

    def __init__(
        self,
        problem: Problem,
        start: Callable[..., Run],
        into: Any,
        keep: tuple[Any, ...],
        callbacks: tuple[Any, ...],
        *,
        resumed: bool,
    ) -> None:
        self._problem, self._start, self._into, self._resumed = problem, start, into, resumed
        self._loop = _Loop(keep)
        self._callbacks = Callbacks((*callbacks, self._loop))
        self._waiting = False  # whether the run waits for the loop's next model
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._begun = False
        self._run: Run | None = None
        self._error: BaseException | None = None

    @property
    def run(self) -> Run:
        """The :class:`~anyk.runs.Run`, when the loop is over; raises what it failed of, if it did."""
        if self._error is not None:
            raise self._error
        if self._run is None:
            raise BadInput("the run is available after the loop has ended")
        return self._run

    def __iter__(self) -> Iterator[Step]:
        if self._begun:
            raise BadInput("rounds can be iterated only once; create new ones: anyk.rounds(…), with a new cluster")
        self._begun = True
        statistics = None if self._into is None else _Statistics(self._into, self._problem)
        # a daemon: a script that ends in the middle of its loop is not to wait for it; workers end with the driver
        thread = threading.Thread(target=self._train, name="anyk rounds", daemon=True)
        thread.start()
        try:
            first = self._resumed
            idle = 0 if not first and self._into is not None else None  # steps that have changed nothing, until one has
            while (step := self._steps.get()) is not None:
                if self._into is not None:
                    if first:
                        _put_model(self._into, step.model)
                        first = False
                    _put_gradient(self._into, step.gradient)
                    before = step.model if idle is None else step.model.copy()  # the body may change it in place
                    slope = idle is not None and bool(step.gradient.any())  # and zero_grad() the gradient
                try:
                    yield step
                finally:  # also when the loop is left: its last step counts
                    if self._into is not None:
                        step.model = _parameters(self._into)
                        if idle is not None:
                            idle = idle + slope if np.array_equal(before, step.model) else None
                self._ends.put(None)
        finally:
            self._loop.left = True
            self._ends.put(None)
            thread.join()
            if first and self._into is not None and self._run is not None:  # there was nothing left to do
                _put_model(self._into, self._run.model)
            if statistics is not None:
                statistics.close()
            if idle is not None and idle >= _IDLE and self._error is None:
                warnings.warn(_UNCHANGED, RuntimeWarning, stacklevel=_outside())
        if self._error is not None:
            raise self._error

    def hand_over(self, step: Step) -> Vector:
        """Hand a step out, in the run's thread, and wait for the model that is made of it."""
        if self._loop.left:
            raise RunFailed("the loop was left while it waited for a gradient")
        self._waiting = True
        self._steps.put(step)
        self._ends.get()
        self._waiting = False
        return step.model

    def receipt(self, version: int) -> Receipt:
        """Return the receipt of a version, also of the one that the loop is making."""
        driver = self._loop.driver
        assert driver is not None
        slot = driver.strategy.layout.slots[0]
        if self._run is not None:
            return self._run.receipt(version)
        if self._waiting:  # so that the run's thread looks at nothing meanwhile
            making = driver.versions[slot] + 1 == version
            receipt = receipt_of_step(driver) if making else receipt_after(driver, slot, version)
            if receipt is not None:
                return receipt
        raise BadInput(f"ask for the receipt of step {version} in the loop's body, or of the run after the loop")

    def _train(self) -> None:
        try:
            self._run = self._start(optimizer=_HandOver(rounds=self), callbacks=self._callbacks)
        except BaseException as error:
            self._error = error
        finally:
            self._steps.put(None)


def _outside() -> int:
    """The level of the stack, for whoever calls this, at which the package's own code begins."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("anyk."):
        level, frame = level + 1, frame.f_back
    return level


class _Statistics:
    """Running statistics of the batch norms in the module that a loop steps.

    Workers keep none, and computing them takes a pass over the training data. So they are computed when somebody is
    about to use them: to evaluate, to take the module's state, to copy or pickle it, and at the end of the loop.
    """

    def __init__(self, module: torch.nn.Module, problem: Any) -> None:
        self._module: torch.nn.Module | None = module
        self._problem = problem
        self._known: tuple[Vector, Sequence[torch.nn.Module]] | None = None
        self._norms = norms_of(module)
        hooks = [norm.register_forward_pre_hook(self._evaluates) for norm in self._norms]
        # of all they are part of, too: what is copied or pickled copies its hooks, which renew, before its parts
        parts = list(module.modules()) if self._norms else []
        hooks += [part.register_state_dict_pre_hook(self._looks) for part in parts]
        self._hooks = hooks

    def _evaluates(self, norm: torch.nn.Module, given: Any) -> None:
        del given
        if not norm.training:
            self._renew()

    def _looks(self, *given: Any) -> None:
        del given
        self._renew()

    def _renew(self) -> None:
        if self._module is None or not self._norms:
            return
        w = _parameters(self._module)
        norms = self._known
        if norms is None or not np.array_equal(norms[0], w):
            norms = self._known = w, norms_of(self._problem.module_at(w))
        for norm, computed in zip(self._norms, norms[1], strict=True):
            for buffer, value in zip(norm.buffers(recurse=False), computed.buffers(recurse=False), strict=True):
                buffer.copy_(value)

    def close(self) -> None:
        """Leave the module as it is after a run: with statistics of its parameters, and without hooks."""
        try:
            self._renew()
        finally:
            for hook in self._hooks:
                hook.remove()

    def __deepcopy__(self, memo: Any) -> _Statistics:
        del memo
        self._renew()
        return _no_statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        self._renew()
        return _no_statistics, ()


def _no_statistics() -> _Statistics:
    """Return statistics for a copy of the module, which nothing renews."""
    statistics = object.__new__(_Statistics)
    statistics._module = None
    return statistics


class _From:
    """A problem that begins where a module stands."""

    def __init__(self, problem: Problem, w: Vector) -> None:
        self._problem, self._w = problem, w

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pickle asks of an object that has nothing yet
            raise AttributeError(name)
        return getattr(self._problem, name)

    def initial(self) -> Vector:
        return self._w


def rounds(
    problem: Problem,
    strategy: Strategy | Code | str,
    cluster: Cluster,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    into: torch.nn.Module | None = None,
    out: str | Path | None = None,
    go_on: bool = False,
    keep: Any = (),
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
) -> Rounds:
    """Gradients for a training loop of one's own: ``for step in anyk.rounds(…)``.

    Each :class:`Step` has the decoded gradient of the objective (regulariser included) and the model, which the loop
    changes in place or assigns. With ``into``, a PyTorch module whose trainable parameters are the problem's, the run
    begins with the module's parameters, gradients are written to their ``grad`` (not added: ``zero_grad`` is not
    needed, and before the step it would erase them), and the values of the parameters at the end of the loop's body are
    the next version: an existing script keeps its optimiser, its scheduler and its clipping. The module's buffers and
    frozen parameters are left alone; workers have those of the problem. Running statistics of batch norm are the
    exception: as after :func:`anyk.train`, they are computed anew over the training data, whenever the module
    evaluates, its ``state_dict()`` is taken or it is copied or pickled, and at the end of the loop.

    ``out`` is a run folder, with checkpoints, as of :func:`anyk.train`. With ``go_on`` the run in it is resumed, if
    there is one: the same script can be started again after it was killed. ``keep``: the loop's optimiser, schedulers,
    or whatever else has ``state_dict`` and ``load_state_dict``; their states are part of the checkpoints, and restored
    before the first step, as are the parameters of ``into``. What the loop keeps elsewhere is not.

    Limits, ``evaluate`` and ``callbacks`` are those of :func:`anyk.train`; leaving the loop early, also by an
    exception, ends the run, and the step at which it was left counts as its last one. The run is ``.run`` of what this
    returns.

    Raises :class:`~anyk.errors.BadInput` for strategies whose workers take the steps (local updates) or that train
    several models, and where the module's parameters or batch norms are not the problem's; the loop raises what the
    run fails of.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> loop = anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(workers=4), steps=20)
    >>> for step in loop:
    ...     step.model -= 0.5 * step.gradient
    >>> loop.run.steps, bool(loop.run.loss < problem.loss(problem.initial()))
    (20, True)
    """
    ensure_problem(problem)
    check(cluster, Cluster, "cluster")
    built = build_strategy(strategy, workers=cluster.workers)
    if built.layout.inner is not None:
        raise BadInput(f"under '{built.spec}' workers take the steps: there are no gradients to hand out")
    if len(built.layout.slots) > 1:
        raise BadInput(f"'{built.spec}' trains {len(built.layout.slots)} models; a loop of your own trains one")
    if into is not None:
        problem = _From(problem, _matching(into, problem))
    if go_on and out is None:
        raise BadInput("go_on resumes the run in a folder; give out=…")
    options: dict[str, Any] = {
        "steps": steps,
        "seconds": seconds,
        "evaluate": evaluate,
        "checkpoint_every": checkpoint_every,
    }
    start: Callable[..., Run]
    if resumed := go_on and out is not None and (Path(out) / NAME).exists():
        _check_same(Path(out), built, cluster)
        start = partial(resume, Path(out), problem=problem, **options)
    else:
        start = partial(train, problem, built, cluster, out=out, **options)
    return Rounds(problem, start, into, _with_states(keep), check_callbacks(callbacks), resumed=resumed)


def _with_states(keep: Any) -> tuple[Any, ...]:
    """Return the user's objects whose states are saved; raise if one has no state."""
    stateful = tuple(keep) if isinstance(keep, (list, tuple)) else (keep,)
    for item in stateful:
        if isinstance(item, type) or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise BadInput(
                "keep must be objects with state_dict and load_state_dict, such as optimisers and schedulers of "
                f"PyTorch, got {item!r}"
            )
    return stateful


def _check_same(folder: Path, strategy: Strategy, cluster: Cluster) -> None:
    """Raise :class:`~anyk.errors.BadInput` where the run in a folder has another strategy or cluster than the loop."""
    config = read_config(folder)
    before = build_strategy(config.strategy, workers=config.workers).spec
    for name, stored, requested in (
        ("strategy", before, strategy.spec),
        ("cluster", config.cluster, cluster.spec),
        ("workers", config.workers, cluster.workers),
    ):
        if stored != requested:
            raise BadInput(
                f"the run '{folder}' has the {name} '{stored}', the loop '{requested}'; give the same, or another out"
            )


def _matching(module: torch.nn.Module, problem: Problem) -> Vector:
    """The module's trainable parameters; raises where they are not the problem's."""
    if not hasattr(module, "parameters"):
        raise BadInput(f"into must be a PyTorch module, got {type(module).__name__}")
    parameters = trained(module)
    dtype, shapes = dtype_of(parameters), [tuple(parameter.shape) for parameter in parameters]
    w = _parameters(module)
    if w.size != problem.dimension:
        raise BadInput(f"the module has {w.size:,} trainable parameters, the problem {problem.dimension:,}")
    if abilities_of(problem).shapes not in (None, shapes):
        raise BadInput("the module's parameters have other shapes than the problem's; make the problem of this module")
    if dtype != problem.dtype:
        raise BadInput(f"the module's parameters are {dtype}, the problem's {problem.dtype}; they must be the same")
    norms = [norm.num_features for norm in norms_of(module)]
    if not norms:
        return w
    module_at = abilities_of(problem).module_at
    if module_at is None:
        raise BadInput(
            f"the module has {len(norms)} batch norms with running statistics, which only a TorchProblem can compute; "
            "use one, or give them track_running_stats=False"
        )
    if [norm.num_features for norm in norms_of(module_at(w))] != norms:
        raise BadInput("the module's batch norms are not the problem's; make the problem of this module")
    return w


def _parameters(module: torch.nn.Module) -> Vector:
    """The trainable parameters, in their order, as one vector."""
    w: Vector = np.concatenate([parameter.detach().cpu().numpy().reshape(-1) for parameter in trained(module)])
    return w


def _put_model(module: torch.nn.Module, w: Vector) -> None:
    import torch

    parameters = trained(module)
    pieces = pieces_of(torch.from_numpy(w.copy()), [tuple(parameter.shape) for parameter in parameters])
    with torch.no_grad():
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece)


def _put_gradient(module: torch.nn.Module, gradient: Vector) -> None:
    import torch

    parameters = trained(module)
    pieces = pieces_of(torch.from_numpy(gradient), [tuple(parameter.shape) for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.to(parameter.device)
