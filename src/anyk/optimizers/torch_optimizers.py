"""Optimisers and schedulers of PyTorch, unchanged, on the driver."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.base.arrays import Vector, lacks_gradient
from anyk.base.errors import BadInput, needing
from anyk.base.specs import bracketed, show_spec
from anyk.optimizers.library_classes import MADE, label, name_of, refuse_made, resolve_class
from anyk.optimizers.steps import ConstantRate, Optimizer, Schedule, State, Stepper
from anyk.optimizers.torch_groups import (
    Groups,
    Scheduler,
    TorchGroups,
    TorchSchedule,
    give_state,
    hyperparameters,
    ranked,
    take_state,
)
from anyk.optimizers.torch_recipe import TorchRecipe, update_groups
from anyk.optimizers.torch_slices import EVALUATIONS, SliceStepper

if TYPE_CHECKING:
    import torch

_BY_NUMBER = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


class TorchOptimizer(Optimizer):
    """An unchanged optimiser of PyTorch: ``TorchOptimizer("AdamW", lr=1e-3, weight_decay=0.1)``.

    ``method`` is the name of a class in ``torch.optim``, the dotted name of a class elsewhere (``my_package.Lion``),
    the class, or an optimiser of the problem's module, ``torch.optim.AdamW(groups)``, whose parameter groups and
    initial state are used; it is not changed. ``arguments`` are the class's own. ``lr`` is a number or one of our
    schedules (default: 1e-3). ``schedule`` is a scheduler of ``torch.optim.lr_scheduler`` by its spec,
    ``"CosineAnnealingLR:T_max=100"``, or a function of the optimiser that makes one; it steps once a step, and may
    change momenta as well. ``ReduceLROnPlateau`` steps whenever a version is evaluated, by the metric of held-out data,
    without any by the loss: ``evaluate=anyk.Evaluate(every=…)`` says when, and the run then waits for it.

    Each parameter has its own tensor, as in ``module.parameters()``, where the problem tells their shapes
    (``problem.shapes``); else the optimiser sees one flat vector, which is the same for all that work number by number.
    Its state is kept by us as arrays: the instance that steps is made anew, so runs resume and replay to the bit. All
    of it but classes and functions of the main program and groups has a spec; a run with those is resumed with
    ``optimizer=…``. Parameters that are in no group stay as they are.

    Raises :class:`~anyk.BadInput` for a name that is not there, for arguments that the class refuses, and for
    what cannot be kept or stepped like that, as LBFGS.

    >>> TorchOptimizer("SGD", lr=0.5, momentum=0.9).spec
    'torch:method=SGD,momentum=0.9'
    """

    name = "torch"

    def __init__(
        self,
        method: str | type | torch.optim.Optimizer,
        *,
        lr: float | str | Schedule | None = None,
        schedule: str | Scheduler | None = None,
        **arguments: Any,
    ) -> None:
        refuse_made(method)
        with needing("PyTorch", "torch", "an optimiser of torch"):
            torch = import_module("torch")
        groups: TorchGroups | None = None
        if not isinstance(method, (str, type)):
            if not isinstance(method, torch.optim.Optimizer):
                raise BadInput(f"an optimiser of torch is a name, a class or an instance, got {type(method).__name__}")
            if lr is not None or arguments:
                raise BadInput(
                    f"an optimiser such as this {type(method).__name__} has its own learning rate and arguments; leave "
                    f"out {', '.join([*(['lr'] if lr is not None else []), *arguments])}"
                )
            groups = TorchGroups(method)
            lr, method = groups.lr, type(method)
        super().__init__(1e-3 if lr is None else lr)
        self.method, self.schedule, self.arguments = method, schedule, arguments
        self.shapes: Sequence[tuple[int, ...]] | None = None
        self.unused: frozenset[int] = frozenset()
        self._class = resolve_class(method, "torch.optim", "Optimizer")
        self._recipe = TorchRecipe(label(method), self._class, arguments, groups)
        self._vectors = self._recipe.state_vectors([(2, 2)] if groups is None else groups.shapes, self.rate.at(0))
        if schedule is not None:
            if not isinstance(self.rate, ConstantRate):
                raise BadInput(f"a torch schedule starts from a learning rate that is a number, got '{self.rate.spec}'")
            object.__setattr__(self, "rate", TorchSchedule(schedule, self.rate.start, self._recipe.small))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchOptimizer) and self._made_of() == other._made_of()

    def __hash__(self) -> int:
        return hash((self._class, self.lr))

    def _made_of(self) -> tuple[Any, ...]:
        groups = None if self._recipe.groups is None else self._recipe.groups.given
        return self._class, self.lr, self.schedule, self.arguments, self.shapes, groups

    @property
    def watches(self) -> Literal["higher", "lower"] | None:
        return self.rate.watches if isinstance(self.rate, TorchSchedule) else None

    @property
    def uniform(self) -> bool:
        return self._recipe.groups is None and self.watches is None

    @property
    def vectors(self) -> int:
        optimizer = self._recipe.small(self.rate.at(0))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad = parameter.detach().clone()
        optimizer.step()
        return sum(":" not in name for name in take_state(optimizer, parameters[:1]))

    def observe(self, state: State, value: float) -> None:
        state[EVALUATIONS] = np.append(state.get(EVALUATIONS, np.empty(0)), value)

    @property
    def spec(self) -> str:
        name = name_of(self._class, "torch.optim")
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in self.arguments.items()}
        has_text = all(v is None or isinstance(v, (bool, int, float, str, tuple)) for v in values.values())
        if name is None or not has_text or callable(self.schedule) or self._recipe.groups is not None:
            return show_spec(self.name, {"method": f"({MADE})"})
        return show_spec(
            self.name, {"method": name} | values | ({"schedule": bracketed(self.schedule)} if self.schedule else {})
        )

    def fitted(self, problem: Any) -> Optimizer:
        shapes = getattr(problem, "shapes", None)
        if shapes is None and self._recipe.groups is None:
            return self
        fitted = copy.copy(self)
        fitted.unused = getattr(problem, "unused_parameters", frozenset())
        fitted.shapes = None if shapes is None else list(map(ranked, shapes))
        if self._recipe.groups is not None:
            fitted._recipe = replace(self._recipe, groups=self._recipe.groups.among(problem))
        fitted._vectors = fitted._recipe.state_vectors(fitted.shapes or (), self.rate.at(0))
        return fitted

    def with_numbers_of(self, optimizer: torch.optim.Optimizer) -> TorchOptimizer:
        """Return this optimiser with the numbers that the groups of the user's have now."""
        assert self._recipe.groups is not None
        present = copy.copy(self)
        present._recipe = replace(self._recipe, groups=self._recipe.groups.with_numbers_of(optimizer))
        return present

    @property
    def parameters(self) -> Sequence[Any]:
        """The parameters of the user's optimiser in the problem's order, None if it lacks one."""
        assert self._recipe.groups is not None
        return self._recipe.groups.placed

    def start(self, w: Vector) -> State:
        return self.given_state()

    def given_state(self) -> State:
        if self._recipe.groups is None:
            return {}
        # a scalar parameter's state looks like a count, but parameters of a problem all have axes
        state: State = {}
        for key, array in take_state(self._recipe.groups.given, self._recipe.groups.placed).items():
            ranked_key = key.removesuffix(":number")
            state[ranked_key if ranked_key.partition(".")[2] in self._vectors else key] = array.copy()
        return state

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        out = np.empty_like(w) if out is None else out
        out[:] = w
        parameters, slopes = _views(out, self.shapes), _views(gradient, self.shapes)
        for index, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
            lacks = lacks_gradient(slope.numpy(), unused=index in self.unused)
            parameter.grad = None if lacks else slope  # torch's optimisers skip a parameter without a gradient
        evaluations = state.pop(EVALUATIONS, np.empty(0))
        optimizer = self._recipe.make(parameters, self.rate.at(t))
        self._schedule_groups(optimizer.param_groups, t, evaluations, scale)
        give_state(optimizer, parameters, state)
        optimizer.step()
        state.clear()
        state |= take_state(optimizer, parameters)
        if evaluations.size:
            state[EVALUATIONS] = evaluations
        return out

    @contextmanager
    def stepping(
        self, w: Vector, state: State, t: int, scale: float, out: Vector, offset: int = 0
    ) -> Iterator[Stepper | None]:
        import torch

        threads = torch.get_num_threads()
        with self._stepper(w, state, t, scale=scale, out=out, offset=offset) as step:
            if step is not None:
                torch.set_num_threads(1)  # in the threads that will call it, too
            try:
                yield step
            finally:
                torch.set_num_threads(threads)

    @contextmanager
    def _stepper(
        self, w: Vector, state: State, t: int, scale: float, out: Vector, offset: int
    ) -> Iterator[Stepper | None]:
        import torch

        if type(self) is not TorchOptimizer or self._class not in [getattr(torch.optim, name) for name in _BY_NUMBER]:
            yield None
            return
        groups = list(map(hyperparameters, self._recipe.small(self.rate.at(t)).param_groups))
        self._schedule_groups(groups, t, state.get(EVALUATIONS, np.empty(0)), scale)
        sizes = [offset + w.size] if self.shapes is None else list(map(prod, self.shapes))
        starts = np.cumsum([0, *sizes]) - offset
        ends = np.clip(starts, 0, w.size)
        fresh: list[int] = []
        if self._class is not torch.optim.SGD or any(group["momentum"] for group in groups):
            lengths = np.diff(ends)
            empty = [not size and 0 <= start <= w.size for size, start in zip(sizes, starts, strict=False)]
            stepped = range(len(sizes)) if self._recipe.groups is None else self._recipe.groups.places
            fresh = _without_state(state, [i for i in stepped if lengths[i] or empty[i]])
            state |= self._recipe.unfilled_state(
                dtype=torch.from_numpy(np.empty(0, w.dtype)).dtype,
                groups=groups,
                lengths={parameter: int(lengths[parameter]) for parameter in fresh},
                shapes=self.shapes,
            )
        stepper = SliceStepper(
            lambda pieces, parameters: self._recipe.make_with(pieces, groups, parameters),
            w=w,
            out=out,
            state=state,
            fresh=fresh,
            ends=ends.tolist(),
            unused=self.unused,
        )
        yield stepper.step
        stepper.drop_skipped()

    def state_at(self, state: State, coordinates: slice) -> State:
        bounds, part = _bounds(self.shapes), {}
        for key, array in state.items():
            begin, end = bounds(int(key.partition(".")[0]), array)
            first, last = max(begin, coordinates.start), min(end, coordinates.stop)
            if first > last or (first == last and begin < end):
                continue
            within = array.reshape(-1)[first - begin : last - begin]
            part[key] = array if ":" in key or within.size == array.size else within
        return part

    def joined_state(self, parts: Sequence[State]) -> State:
        state: State = {}
        for key in dict.fromkeys(key for part in parts for key in part):
            arrays = [part[key] for part in parts if key in part]
            if ":" in key:
                state[key] = arrays[0]
                continue
            joined = arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1) for array in arrays])
            state[key] = joined if self.shapes is None else joined.reshape(self.shapes[int(key.partition(".")[0])])
        return state

    def _schedule_groups(self, groups: Groups, t: int, evaluations: object, scale: float) -> None:
        """Set the hyperparameters of each group at a step."""
        if isinstance(self.rate, TorchSchedule):
            update_groups(groups, self.rate.groups(t, evaluations))
        for group in groups:
            group["lr"] *= scale


def _views(flat: Vector, shapes: Sequence[tuple[int, ...]] | None) -> list[torch.Tensor]:
    """Return tensors of the given shapes, or one, in the memory of a vector."""
    import torch

    tensor = torch.from_numpy(flat)
    if shapes is None:
        return [tensor]
    pieces = torch.split(tensor, [prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _bounds(shapes: Sequence[tuple[int, ...]] | None) -> Callable[[int, Vector], tuple[int, int]]:
    """Return a function of (parameter, array of its state) that returns where the parameter begins and ends."""
    if shapes is None:
        return lambda parameter, array: (0, sys.maxsize if array.size == 1 else array.size)
    ends = np.cumsum([0, *map(prod, shapes)]).tolist()
    return lambda parameter, array: (ends[parameter], ends[parameter + 1])


def _without_state(state: State, parameters: Sequence[int]) -> list[int]:
    """Return those of the parameters that have no state yet; keys begin with the parameter's number."""
    known_numbers = {key.partition(".")[0] for key in state}
    return [parameter for parameter in parameters if str(parameter) not in known_numbers]
