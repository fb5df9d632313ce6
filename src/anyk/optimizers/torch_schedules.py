"""Learning rate schedulers of PyTorch, as functions of the step or of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from anyk.errors import BadInput, RunFailed
from anyk.optimizers.library_classes import Argument, label, resolve_class
from anyk.optimizers.torch_groups import Groups, hyperparameters
from anyk.specs import parse, read

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
        try:
            if isinstance(schedule, str):
                name, values = parse(schedule)
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
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(f"the torch schedule {label(self._schedule)} cannot be used like this: {error}") from None
        self._count = 0
