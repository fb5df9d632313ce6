"""Parameter groups of PyTorch's optimisers, their states as arrays, and their schedules."""

from __future__ import annotations

import copy
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.base.errors import BadInput, RunFailed, explaining
from anyk.base.plain import ByName
from anyk.base.specs import parse_spec, read
from anyk.optimizers.library_classes import Argument, label, resolve_class
from anyk.optimizers.steps import State

if TYPE_CHECKING:
    import torch

_PLAIN: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float}
Groups = Sequence[ByName]  # the hyperparameters of each group


class TorchGroups:
    """The parameter groups of an optimiser, and the places of their parameters in a problem."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.given = optimizer
        self.placed: list[Any] = []  # the optimiser's parameters in the problem's order, None if it lacks one
        self._values: list[ByName] = []
        self._places: list[list[int]] = []
        for group in optimizer.param_groups:
            values = copy.deepcopy(hyperparameters(group))
            if "lr" not in values:
                raise BadInput(f"the torch optimiser {type(optimizer).__name__} has no learning rate, lr")
            self._values.append(values | {"lr": float(values["lr"])})
            first = len(self.placed)
            self.placed += group["params"]
            self._places.append(list(range(first, len(self.placed))))
        self.shapes = [ranked(parameter.shape) for parameter in self.placed]

    def __getstate__(self) -> dict[str, Any]:
        """Return what steps need elsewhere: without parameters and their state."""
        shell = object.__new__(type(self.given))
        shell.__dict__ |= _attributes(self.given) | {"state": {}, "param_groups": []}
        return vars(self) | {"given": shell, "placed": []}

    def __copy__(self) -> TorchGroups:
        twin = object.__new__(type(self))
        twin.__dict__ |= vars(self)
        return twin

    @property
    def lr(self) -> float:
        """The largest learning rate."""
        return float(max(values["lr"] for values in self._values))

    @property
    def places(self) -> list[int]:
        """The places of all parameters."""
        return [index for places in self._places for index in places]

    def among(self, problem: Any) -> TorchGroups:
        """Return the same groups, with the problem's places."""
        places_of = getattr(problem, "places_of", None)
        if places_of is None:
            name = type(self.given).__name__
            raise BadInput(
                f"an optimiser with parameters of its own ({name}) goes with a TorchProblem of the same module; for "
                f"{type(problem).__name__} give its name: TorchOptimizer('{name}')"
            )
        groups = copy.copy(self)
        groups.placed = [None] * len(problem.shapes)
        groups._places = []
        for group in self.given.param_groups:
            places = places_of(group["params"])  # None for one that is frozen
            groups._places.append([index for index in places if index is not None])
            for index, parameter in zip(places, group["params"], strict=True):
                if index is not None:
                    groups.placed[index] = parameter
        if not any(groups._places):
            raise BadInput("all parameters of the optimiser are frozen (requires_grad=False): nothing would be trained")
        return groups

    def with_numbers_of(self, optimizer: torch.optim.Optimizer) -> TorchGroups:
        """Return the groups with the numbers that an optimiser with the same groups has now."""
        groups = copy.copy(self)
        groups._values = [copy.deepcopy(hyperparameters(group)) for group in optimizer.param_groups]
        for values in groups._values:
            values["lr"] = float(values["lr"])
        return groups

    def over(self, parameters: Sequence[torch.Tensor], places: Sequence[int] | None = None) -> Any:
        """Return an optimiser like the given one, without state, of these parameters: at ``places``, or all."""
        by_place = dict(zip(range(len(parameters)) if places is None else places, parameters, strict=True))
        optimizer = object.__new__(type(self.given))
        optimizer.__dict__ |= _attributes(self.given) | {
            "state": defaultdict(dict),
            "param_groups": [
                values | {"params": [by_place[index] for index in group_places if index in by_place]}
                for values, group_places in zip(self._values, self._places, strict=True)
            ],
        }
        return optimizer


def _attributes(optimizer: torch.optim.Optimizer) -> ByName:
    """Return an optimiser's attributes but for what concerns only the user's: schedulers wrap its step."""
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
    return attributes | {"_optimizer_state_dict_pre_hooks": OrderedDict()}


def hyperparameters(group: ByName) -> ByName:
    """Return the hyperparameters of a parameter group."""
    return {name: value for name, value in group.items() if name != "params"}


def ranked(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a parameter's shape, (1,) for a scalar, as its states would look like counts of steps."""
    return tuple(shape) or (1,)


def values_beside(optimizer: Any) -> dict[tuple[str, str], str]:
    """Return an optimiser's values outside its parameters' states, by place and name, as text that can be compared."""
    values = {("self", name): value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
    for group in optimizer.param_groups:
        values |= {("group", name): value for name, value in hyperparameters(group).items()}
    return {key: repr(value) for key, value in values.items() if not key[1].startswith("_")}


def give_state(optimizer: Any, parameters: Sequence[torch.Tensor], state: State) -> None:
    """Set an optimiser's state, in the arrays' own memory."""
    import torch

    for key, array in state.items():
        index, _, name = key.partition(".")
        name, _, kind = name.partition(":")
        values = optimizer.state[parameters[int(index)]]
        if kind in _PLAIN:
            values[name] = _PLAIN[kind](array[0])
        else:
            values[name] = torch.from_numpy(array).view(()) if kind == "number" else torch.from_numpy(array)


def take_state(optimizer: Any, parameters: Sequence[torch.Tensor]) -> State:
    """Return an optimiser's state as arrays, by number of the parameter, name and, if it is no array, kind."""
    import torch

    state: State = {}
    for index, parameter in enumerate(parameters):
        for name, value in optimizer.state.get(parameter, {}).items():
            key = f"{index}.{name}"
            if not str(name).isidentifier():
                raise BadInput(f"a checkpoint cannot keep the state '{name}' of {type(optimizer).__name__}: rename it")
            if isinstance(value, torch.Tensor) and value.dtype not in (torch.bfloat16, torch.float16):
                array = value.detach().cpu().numpy()
                state[key if array.ndim else f"{key}:number"] = array if array.ndim else array.reshape(1)
            elif type(value).__name__ in _PLAIN:
                state[f"{key}:{type(value).__name__}"] = np.array([value])
            elif value is not None:
                raise BadInput(
                    f"the state '{name}' of {type(optimizer).__name__} is {type(value).__name__}, which a checkpoint "
                    "cannot keep; use another optimiser"
                )
    return state


Scheduler = Callable[[Any], Any]


class TorchSchedule:
    """The hyperparameters that a torch scheduler sets, by step or, if it ``watches`` evaluations, by their values.

    ``schedule`` is the spec of a scheduler or a function that makes a scheduler of an optimiser; ``made_at`` makes an
    optimiser of a tiny model, at the learning rate ``start``, for it to change.
    """

    def __init__(self, schedule: str | Scheduler, start: float, made_at: Callable[[float], Any]) -> None:
        self._schedule, self._start, self._made_at = schedule, start, made_at
        self._begin()
        self.watches: Literal["higher", "lower"] | None = None
        if isinstance(self._scheduler, import_module("torch.optim.lr_scheduler").ReduceLROnPlateau):
            self.watches = "higher" if self._scheduler.mode == "max" else "lower"
        else:
            try:
                self.groups(1)
            except RunFailed as error:
                raise BadInput(str(error)) from None
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is needed to begin again: pickled optimisers have lost what schedulers wrap."""
        attributes = {name: value for name, value in vars(self).items() if name not in ("_optimizer", "_scheduler")}
        return attributes | {"_count": sys.maxsize, "_fed": [math.nan]}

    @property
    def spec(self) -> str:
        """The learning rate that the scheduler starts from."""
        return repr(self._start)

    def at(self, step: int) -> float:
        return float(max(group["lr"] for group in self.groups(step)))

    def groups(self, step: int, evaluations: Any = ()) -> Groups:
        """Return all hyperparameters at a step; steps come in order, except when a run is resumed."""
        if self.watches is not None:
            values = list(evaluations)
            if values[: len(self._fed)] != self._fed:  # of another run
                self._begin()
            for value in values[len(self._fed) :]:
                self._advance(float(value))
                self._fed.append(value)
            return self._values()
        if step < self._count:
            self._begin()
        while self._count < step:
            self._advance()
            self._count += 1
        return self._values()

    def _advance(self, *value: float) -> None:
        try:
            self._optimizer.step()
            self._scheduler.step(*value)
        except Exception as error:  # some schedulers end after a number of steps
            name = label(self._schedule)
            raise RunFailed(f"the torch schedule {name} cannot go beyond step {self._count}: {error}") from None

    def _values(self) -> Groups:
        return list(map(hyperparameters, self._optimizer.param_groups))

    def _begin(self) -> None:
        self._optimizer = self._made_at(self._start)
        self._fed: list[float] = []
        schedule: Any = self._schedule
        arguments = {}
        with explaining(f"the torch schedule {label(self._schedule)} cannot be used like this"):
            if isinstance(schedule, str):
                name, values = parse_spec(schedule)
                arguments = {key: read(value, Argument, f"{key} in '{schedule}'") for key, value in values.items()}
                for key, value in arguments.items():
                    if isinstance(value, str) and not value[:1].isalpha():
                        raise BadInput(f"{key} in '{schedule}' should be a number, numbers as in 3/6, or a word")
                schedule = resolve_class(name, "torch.optim.lr_scheduler", "LRScheduler")
            elif not callable(schedule):
                raise BadInput(
                    f"a schedule is a spec or a function that makes one of an optimiser, lambda optimizer: …, got "
                    f"{type(schedule).__name__}"
                )
            self._scheduler = schedule(self._optimizer, **arguments)
        self._count = 0
