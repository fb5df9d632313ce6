"""Loops whose PyTorch optimiser is only the front: model, gradient and state lie in slices at the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from anyk.base.arrays import Vector, Vectors
from anyk.base.checks import PositiveNumber, check_value
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.contract import Cluster
from anyk.optimizers import STEPPED, Clip, Optimizer, TorchOptimizer, give_state, unclipped
from anyk.optimizers.steps import State, Stepper
from anyk.problems.base import Problem, abilities_of
from anyk.problems.torch.network import trainable_parameters
from anyk.runs.callbacks import StepInfo
from anyk.runs.log.receipts import Receipt, receipt_after
from anyk.runs.loop_module import KeptTensors, put_model
from anyk.runs.stepping import Loop, Step, SteppedRounds, begin_rounds

if TYPE_CHECKING:
    import torch

_TRAIN = "use anyk.train(problem, …, optimizer=anyk.optimizers.TorchOptimizer(adam)), or a cluster without slices"
_AT_NODES = "with slices the model and its gradient lie at the nodes"


class Front(Optimizer):
    """Steps of slices at the nodes by the user's optimiser, with the numbers that its groups have at each step."""

    name = STEPPED

    def __init__(self, front: Any, of: Optimizer, before_step: Callable[[int, float], None]) -> None:
        super().__init__()
        self._front, self._of, self._before_step = front, of, before_step

    @property
    def spec(self) -> str:
        return self.name

    @property
    def inner(self) -> TorchOptimizer:
        """What steps slices as the user's optimiser steps."""
        inner = unclipped(self._of)
        assert isinstance(inner, TorchOptimizer)
        return inner

    def fitted(self, problem: Any) -> Optimizer:
        return Front(self._front, self._of.fitted(problem), self._before_step)

    def at_step(self, t: int, scale: float) -> Optimizer:
        self._before_step(t, scale)
        now: Optimizer = self.inner.with_numbers_of(self._front)
        return Clip(of=now, norm=self._of.norm) if isinstance(self._of, Clip) else now

    def start(self, w: Vector) -> State:
        return self._of.start(w)

    def given_state(self) -> State:
        return self._of.given_state()

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        return self._of.step(w, gradient, state, t, scale, out=out)

    @contextmanager
    def stepping(
        self, w: Vector, state: State, t: int, scale: float, out: Vector, offset: int = 0
    ) -> Iterator[Stepper | None]:
        with self.inner.stepping(w, state, t, scale, out, offset=offset) as step:
            yield step

    def state_at(self, state: State, coordinates: slice) -> State:
        return self._of.state_at(state, coordinates)

    def joined_state(self, parts: Sequence[State]) -> State:
        return self._of.joined_state(parts)


class SlicedStep(Step):
    """A step that was taken at the nodes: its ``number``, ``scale`` and ``receipt``."""

    def __init__(self, number: int, scale: float, receipt: Callable[[int], Receipt]) -> None:
        self.number, self.scale, self._receipt = number, scale, receipt

    def __getattr__(self, name: str) -> Any:
        if name in ("gradient", "model", "values"):
            raise BadInput(f"{_AT_NODES}: the step has no {name}; the module can be used, and its state_dict() read")
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"SlicedStep(number={self.number}, scale={self.scale:g})"


class SlicedModule:
    """A module whose parameters are at the nodes: they hold NaN until it is used, or its state read.

    ``read``: returns the newest model. In a copy of the module the instance of this class has no module and does
    nothing.
    """

    def __init__(self, module: torch.nn.Module | None = None, read: Callable[[], Vector] | None = None) -> None:
        self._read = read
        self._parameters = [] if module is None else trainable_parameters(module)
        self._here = True
        self._marks: list[Any] = []
        self._hooks: list[Any] = []
        for part in () if module is None else module.modules():
            self._hooks.append(part.register_forward_pre_hook(self._before_use))
            self._hooks.append(part.register_state_dict_pre_hook(self._before_use))
        self._mark()

    def _before_use(self, *_: Any) -> None:
        self.show()

    def _mark(self) -> None:
        self._marks = [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]

    def show(self) -> None:
        """Read the newest model."""
        if not self._here and self._read is not None:
            self.put(self._read())

    def put(self, w: Vector) -> None:
        """Set the parameters."""
        put_model(self._parameters, w)
        self._here = True
        self._mark()

    def hide(self) -> None:
        """Let the parameters hold NaN, as a step has been taken."""
        if self._here:
            for parameter in self._parameters:
                parameter.detach().fill_(float("nan"))
        self._here = False
        self._mark()

    def check_unchanged(self) -> None:
        """Raise if the loop has changed parameters."""
        marks = [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]
        written = not self._here and any(
            parameter.numel() and not parameter.detach().reshape(-1)[0].isnan() for parameter in self._parameters
        )
        if marks != self._marks or written:
            raise BadInput(
                f"{_AT_NODES}: the loop has changed parameters of the module, where nobody reads them; {_TRAIN}"
            )

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._read = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SlicedModule, ()


@dataclass(eq=False)
class _SlicedLoop(Loop):
    """The callback by which a run waits for the loop after each step."""

    rounds: Any = None

    def on_step(self, info: StepInfo) -> None:
        self.rounds.hand_back(info.step - 1)
        super().on_step(info)


@dataclass(eq=False, repr=False)
class SlicedRounds(SteppedRounds):
    """The steps of a run that nodes take in slices, one whenever the loop asks for it.

    The run's thread waits after each step, so that callers may read from the nodes meanwhile; while it goes on, they
    wait.
    """

    front: Any = None  # the user's optimiser
    _told: int = -1  # the last step that the loop was told of
    _scale: float = 1.0
    _closing: bool = False
    _members: Any = field(default=None, repr=False)

    def make_optimizer(self) -> Optimizer:
        of: Optimizer = TorchOptimizer(self.front)
        return Front(self.front, of if self.clip is None else Clip(of=of, norm=self.clip), self.begin)

    def __iter__(self) -> Iterator[Step]:
        if self._started:
            raise BadInput("an optimiser begins one run only; make a new one, with a new cluster")
        self._started = True
        self._check_unchanged()
        self._members = self._parameters_of_groups()
        kept = KeptTensors.of(self._into, self._problem)
        self._loop.kept = {} if kept is None else kept.changes({})
        module = SlicedModule(self._into, self._read_model)
        watched = _NoOtherSteps(self.front)
        before_reading = self.front.register_state_dict_pre_hook(lambda _: self._read_state())
        try:
            self.start_thread()
            said = self._resumed is None
            while (step := self._steps.get()) is not None:
                if not said:
                    said = True
                    self._say_where(step.number)
                    if kept is not None:
                        kept.restore(self._carried.arrays)
                module.hide()
                self.front.state.clear()
                self.front._opt_called = True  # schedulers ask whether it has stepped
                yield step
                module.check_unchanged()
                self._check_kept([self.front])
                if kept is not None and kept.changes(self._carried.arrays):
                    raise BadInput(
                        f"{_AT_NODES}, and buffers and frozen parameters cannot change between steps; {_TRAIN}"
                    )
                self._ends.put(None)
        finally:
            self._loop.over = self._closing = True
            self._ends.put(None)
            self._thread.join()
            before_reading.remove()
            watched.close()
            module.close()
            if self._run is not None:
                module.put(self._run.model)
                self._give_state(self._run.warm_start().states[self._slot])
        if self._error is not None:
            raise self._error

    def hand_back(self, number: int, scale: float | None = None) -> None:
        """Tell the loop of a step, and wait until it asks for the next one; called in the run's thread."""
        if number <= self._told or self._closing:
            return
        self._told = number
        self._waiting = True
        self._steps.put(SlicedStep(number, self._scale if scale is None else scale, self.receipt))
        self._ends.get()
        self._waiting = False

    def begin(self, number: int, scale: float) -> None:
        """Note that a step is being taken, after the loop has asked for it; called in the run's thread."""
        if self._told < 0:
            self._told = number - 1  # of a resumed run
        self.hand_back(number - 1)  # of two steps after one event
        if self._closing:
            raise RunFailed("the loop was left while it waited for a step")
        self._scale = scale
        if self._parameters_of_groups() != self._members:
            raise BadInput("the optimiser has other parameters than when the loop began; begin a new one")

    def receipt(self, version: int) -> Receipt:
        if self._run is not None:
            return self._run.receipt(version)
        if self._waiting:
            assert self._loop.driver is not None
            receipt = receipt_after(self._loop.driver, self._slot, version)
            if receipt is not None:
                return receipt
        raise BadInput(f"ask for the receipt of step {version} in the loop's body, or of the run after the loop")

    def _parameters_of_groups(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in self.front.param_groups]

    @property
    def _slot(self) -> str:
        return self.strategy.layout.slots[0]

    def _read_model(self) -> Vector:
        assert self._loop.driver is not None
        return self._loop.driver.versions.model(self._slot)

    def _read_state(self) -> None:
        """Give the user's optimiser its state, before it is read."""
        if self._told >= 0 and self._run is None and self._loop.driver is not None:
            self._give_state(self._loop.driver.versions.optimizer_states(self._slot))

    def _give_state(self, states: Vectors) -> None:
        optimizer = self._loop.driver.optimizer if self._loop.driver is not None else None
        assert isinstance(optimizer, Front)
        parameters = optimizer.inner.parameters
        self.front.state.clear()
        give_state(self.front, parameters, {name: vector.copy() for name, vector in states.items()})
        for parameter, values in self.front.state.items():
            for name, value in values.items():
                if hasattr(value, "numel") and value.ndim and value.numel() == parameter.numel():
                    values[name] = value.view(parameter.shape).to(parameter.device)


class _NoOtherSteps:
    """Refuses steps of the user's optimiser by itself, whose parameters are at the nodes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._optimizer = optimizer
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self._optimizer:
            raise BadInput(f"{_AT_NODES}; call step() of anyk.torch.Optimizer, not of {type(optimizer).__name__}")

    def close(self) -> None:
        self._hook.remove()


def optimizer_rounds(
    optimizer: torch.optim.Optimizer,
    problem: Any,
    strategy: Any,
    cluster: Cluster,
    *,
    prepare: object = None,
    clip: float | None = None,
    **options: Any,
) -> SteppedRounds:
    """Return the rounds of a loop in which a PyTorch optimiser steps the problem's module, see :func:`anyk.rounds`.

    ``clip``: the Euclidean norm to which gradients are shortened. Raises :class:`~anyk.BadInput` for what a cluster
    with slices cannot do.
    """
    check_value(cluster, Cluster, "cluster")
    if clip is not None:
        check_value(clip, PositiveNumber, "clip")
    if not cluster.in_slices:
        made = begin_rounds(problem, strategy, cluster, into=problem.module, **options)
        made.clip = clip
        return made
    _check_front(optimizer, problem, options, prepare=prepare)
    make = partial(SlicedRounds, front=optimizer, clip=clip)
    made = begin_rounds(problem, strategy, cluster, into=problem.module, make=make, make_loop=_SlicedLoop, **options)
    made._loop.rounds = made  # type: ignore[attr-defined]
    return made


def _check_front(optimizer: torch.optim.Optimizer, problem: Problem, options: Any, *, prepare: object) -> None:
    """Raise :class:`~anyk.BadInput` for what slices cannot do in a loop with a PyTorch optimiser."""
    abilities = abilities_of(problem)
    if prepare is not None:
        raise BadInput(f"{_AT_NODES}: prepare= cannot see it; clip=1.0 clips it, or use a cluster without slices")
    if options.get("accumulate", 1) != 1:
        raise BadInput(f"{_AT_NODES}: accumulate= is not possible; take larger batches, or a cluster without slices")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise BadInput(f"{_AT_NODES}: hooks of {type(optimizer).__name__}.step would not be called; remove them")
    if abilities.hooked_parameters:
        raise BadInput(f"{_AT_NODES}: hooks of parameters ({', '.join(abilities.hooked_parameters)}) cannot see it")
    if abilities.moving_norms:
        raise BadInput(
            f"{_AT_NODES}: running statistics of batch norms ({', '.join(abilities.moving_norms)}) are not computed in "
            f"a loop; {_TRAIN}"
        )
