"""A PyTorch module in a custom training loop: its gradients, its next version, and tensors that travel with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Array, Vector, lacks_gradient
from anyk.base.errors import BadInput, outside
from anyk.problems.base import Problem, abilities_of, with_values
from anyk.problems.model_files import load_copy
from anyk.problems.torch.hooks import set_gradients
from anyk.problems.torch.module_partitions import dtype_of, pieces_of
from anyk.problems.torch.network import (
    copy_array,
    is_norm,
    kept_tensor,
    kept_tensors,
    parts_of,
    renewed_norms,
    trainable_parameters,
)
from anyk.problems.values import Leaves, Values
from anyk.runs.engine.carried_values import CarriedValues

if TYPE_CHECKING:
    import torch


_COMPARED = 256  # numbers of a buffer that are compared after each step
_IDLE = 3  # steps without a change of the model, from which on the user is warned
_UNCHANGED = (
    "no step of this loop has changed a parameter of the module: its optimiser does not step, is one of other "
    "parameters or has a learning rate of 0, or zero_grad() erases the gradient before it steps"
)
_LOST = (
    "{lost} gradients before this step were used by no step of an optimiser: each round writes a new gradient, and "
    "adds nothing to the last one; accumulate=4 gives the loop the mean gradient of 4 rounds"
)


class LoopModule:
    """The module whose parameters a loop trains: it takes each step's gradients, and makes the next version.

    ``carried``: returns the values that the newest version carries, None before there is one. ``resumed``: whether the
    module is first given the model of the run that continues. Warns if the loop's optimiser never steps, or wastes
    gradients.
    """

    def __init__(
        self, module: torch.nn.Module, problem: Problem, carried: Callable[[], CarriedValues | None], *, resumed: bool
    ) -> None:
        self._module, self._problem, self._carried = module, problem, carried
        self._parameters = trainable_parameters(module)
        self._watched = _WatchedSteps(self._parameters)
        self._kept = KeptTensors.of(module, problem)
        self._changed: tuple[Leaves, Problem] | None = None  # values, and the problem with them
        self._statistics = _Statistics(module, abilities_of(problem).moving_norms, self._problem_now)
        self._to_restore = resumed
        self._idle = None if resumed else 0  # the number of steps without a change of the model; None after a change
        self._lost = 0  # gradients in a row that no step has used
        # of the step that the loop's body is taking: the model, whether there is a gradient, and steps before it
        self._before: Vector = np.empty(0)
        self._nonzero = False
        self._counted = 0

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimisers that have stepped the module's parameters so far."""
        return self._watched.optimizers

    def first_changes(self) -> dict[int, Array]:
        """Return the frozen parameters and buffers that are not those of the problem's module."""
        return {} if self._kept is None else self._kept.changes({})

    def _sent(self) -> Mapping[int, Array]:
        """Return the arrays that the newest version carries, by their places."""
        carried = self._carried()
        return {} if carried is None else carried.arrays

    def _leaves_now(self) -> Leaves | None:
        """Return the values of the newest version, with the module's own frozen parameters and buffers.

        None if they are those with which the problem was made.
        """
        values, carried = abilities_of(self._problem).changing_values, self._carried()
        if values is None:
            return None
        leaves = values.initial if carried is None else carried.leaves
        if self._kept is not None:
            leaves = leaves._replace(arrays=self._kept.in_place_of(leaves.arrays))
        same = all(a is b for a, b in zip(leaves.arrays, values.initial.arrays, strict=True))
        return None if same and leaves.numbers == values.initial.numbers else leaves

    def _problem_now(self) -> Problem:
        """Return the problem with the present values: the same object for the same values."""
        leaves = self._leaves_now()
        if leaves is None:
            return self._problem
        if self._changed is None or not _equal_leaves(self._changed[0], leaves):
            self._changed = leaves, with_values(self._problem, leaves)
        return self._changed[1]

    def loss(self) -> float:
        """Return the problem's loss at the module as it is, with the newest version's values."""
        return self._problem_now().loss(_vector(self._parameters))

    def begin_step(self, model: Vector, gradient: Vector) -> None:
        """Give the module a step's gradient, and before the first of a resumed run its model."""
        if self._to_restore:
            put_model(self._parameters, model)
            if self._kept is not None:
                self._kept.restore(self._sent())
            self._to_restore = False
        self._set_gradients(gradient)
        self._before = model.copy()  # the body may change it in place
        self._nonzero = bool(gradient.any())  # zero_grad() may change it in place
        self._counted = self._watched.steps

    def end_step(self, number: int, *, evaluates: bool) -> tuple[Vector, dict[int, Array]]:
        """Return the next version, and the frozen parameters and buffers that were renewed, by their places.

        ``evaluates``: whether an optimiser evaluates a closure, which need not change the model each time.
        """
        self._check_replaced()
        model = _vector(self._parameters)
        renewed: dict[int, Array] = {}
        if self._kept is not None:
            renewed = self._kept.changes(self._sent(), check=(number + 1).bit_count() == 1)
        same = np.array_equal(self._before, model)
        unused = same and self._watched.steps == self._counted
        if self._idle is not None:
            self._idle = self._idle + self._nonzero if same else None
        if self._lost and not unused:
            warnings.warn(_LOST.format(lost=self._lost), RuntimeWarning, stacklevel=outside())
        self._lost = self._lost + self._nonzero if unused and not evaluates else 0
        return model, renewed

    def close(self, final: Vector | None, *, folder: Path | None, failed: bool) -> None:
        """End the loop; ``final``: the model of the run, if it has ended well, in whose ``folder`` its module is."""
        if self._to_restore and final is not None:  # the resumed run had no step left
            put_model(self._parameters, final)
            if self._kept is not None and folder is not None:
                self._kept.take(load_copy(self._module, folder))
        self._watched.close()
        self._statistics.close()
        if self._idle is not None and self._idle >= _IDLE and not failed:
            warnings.warn(_UNCHANGED, RuntimeWarning, stacklevel=outside())

    def _check_replaced(self) -> None:
        """Raise if a parameter that the loop trains is no longer one of the module."""
        trained = set(map(id, self._parameters))
        parameters = dict(self._module.named_parameters())
        if not trained - set(map(id, parameters.values())):
            return
        for name, parameter in parameters.items():
            if parameter.requires_grad and id(parameter) not in trained:
                raise BadInput(
                    f"parameter '{name}' is another object than when the loop began, and what the loop trains are "
                    "those of then: write into them under torch.no_grad(), or begin a loop with the new module"
                )

    def check_frozen(self) -> None:
        """Raise if the loop trains a parameter that was frozen or another one when it began."""
        self._check_replaced()
        trained = set(map(id, self._parameters))
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and id(parameter) not in trained:
                raise BadInput(
                    f"parameter '{name}' was frozen when the loop began, so that workers compute no gradient for it; "
                    "make the problem while it is trainable, and freeze it before the first step (in the loop's body "
                    "parameters may be frozen, and trained again)"
                )

    def _set_gradients(self, gradient: Vector) -> None:
        """Give the module's parameters their gradients as torch does, so that it calls their hooks."""
        unused = abilities_of(self._problem).unused_parameters
        with_gradient = []
        for index, (parameter, piece) in enumerate(_pieces(self._parameters, gradient)):
            parameter.grad = None
            if parameter.requires_grad and not lacks_gradient(piece.numpy(), unused=index in unused):
                with_gradient.append((parameter, piece.to(parameter.device)))
        set_gradients(*zip(*with_gradient, strict=True))


class KeptTensors:
    """The frozen parameters and buffers of a loop's module, which travel to the workers when the loop renews them."""

    def __init__(self, module: torch.nn.Module, values: Values, norms: Sequence[str]) -> None:
        self._module, self._values = module, values
        self._first = len(values.initial.arrays) - len(values.kept)
        tensors = list(kept_tensors(module, norms).values())
        self._forms = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        if [shape for shape, _ in self._forms] != [array.shape for array in values.initial.arrays[self._first :]]:
            raise BadInput(
                "the module's frozen parameters and buffers are not those of the problem's module; make the problem of "
                "this module"
            )
        # the tensors of the last call are kept alive: the memory of another one may have the same address
        self._seen: list[tuple[Any, Any]] = [(None, None)] * len(tensors)

    @classmethod
    def of(cls, module: torch.nn.Module, problem: Problem) -> KeptTensors | None:
        """Return the tensors, None if there are none."""
        values = abilities_of(problem).changing_values
        tensors = None if values is None else cls(module, values, abilities_of(problem).moving_norms)
        return tensors if tensors is not None and tensors._forms else None

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the module has now: the loop may have assigned others to their names."""
        for name, (shape, dtype) in zip(self._values.kept, self._forms, strict=True):
            tensor = kept_tensor(self._module, name)
            if tensor is None or (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
                now = "is missing" if tensor is None else f"is {tensor.dtype} {tuple(tensor.shape)}"
                raise BadInput(
                    f"{name} of the module was {dtype} {shape} when the loop began and {now} now; what travels to the "
                    "workers keeps its shape and type"
                )
            yield tensor

    def changes(self, sent: Mapping[int, Array], *, check: bool = False) -> dict[int, Array]:
        """Return the tensors that were renewed since the last call, by their places among all arrays.

        Torch counts changes in place, except through ``.data``; so a sample of the numbers is compared as well.
        ``sent``: the arrays that workers have, if not the initial ones. ``check``: compare all numbers, and raise
        :class:`~anyk.BadInput` if a tensor has changed without being noticed.
        """
        changes: dict[int, Array] = {}
        for index, tensor in enumerate(self._tensors(), self._first):
            mark = _mark_of(tensor)
            last, last_mark = self._seen[index - self._first]
            same = tensor is last and mark == last_mark
            self._seen[index - self._first] = tensor, mark
            if same and not check:
                continue
            array = Values.plain({"": tensor})[""]
            sent_before = sent.get(index, self._values.initial.arrays[index])
            if array.tobytes() == sent_before.tobytes():
                continue
            if same:
                raise BadInput(
                    f"{self._values.array_name(index)} of the module has changed through .data, which went unnoticed: "
                    "change it by its own methods under torch.no_grad(), so that it travels to the workers"
                )
            changes[index] = array
        return changes

    def in_place_of(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Return arrays in which those of the tensors are as they are now: the same objects where they are equal."""
        now = [array for tensor in self._tensors() for array in Values.plain({"": tensor}).values()]
        before = arrays[self._first :]
        renewed = [
            old if old.tobytes() == new.tobytes() else np.array(new) for old, new in zip(before, now, strict=True)
        ]
        return (*arrays[: self._first], *renewed)

    def take(self, module: torch.nn.Module) -> None:
        """Set the tensors to those of a copy of the module."""
        for name, tensor in zip(self._values.kept, self._tensors(), strict=True):
            if (loaded := kept_tensor(module, name)) is not None:
                tensor.detach().copy_(loaded)

    def restore(self, sent: Mapping[int, Array]) -> None:
        """Set the tensors to the arrays that workers have."""
        for index, tensor in enumerate(self._tensors(), self._first):
            if index in sent:
                copy_array(sent[index], tensor.detach())


def _mark_of(tensor: torch.Tensor) -> Any:
    """Return the number of torch's changes to a tensor, and some of its numbers."""
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _COMPARED)]
    return tensor._version, tensor.data_ptr(), Values.plain({"": sample})[""].tobytes()


class _Buffers(dict[str, Any]):
    """The buffers of a module, computed before they are read; a copy is a plain dictionary."""

    def __init__(self, buffers: Mapping[str, Any], compute: Callable[[], None]) -> None:
        super().__init__(buffers)
        self._compute = compute

    def __getitem__(self, name: str) -> Any:
        self._compute()
        return super().__getitem__(name)

    def items(self) -> Any:
        self._compute()
        return super().items()

    def values(self) -> Any:
        self._compute()
        return super().values()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


class _Statistics:
    """Computes the running statistics of batch norms in the module whose parameters a loop changes.

    Workers do not compute them, and they take a pass over the training data. So they are computed only when they are
    read, by whatever means, and at the end of the loop. In a copy of the module the instance of this class has no
    module and does nothing. ``names``: of the batch norms; ``problem``: returns the problem with the values with which
    the module computes, the same object for the same values.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        names: Sequence[str] = (),
        problem: Callable[[], Any] = lambda: None,
    ) -> None:
        self._module, self._names, self._problem = module, names, problem
        self._parameters = [] if module is None else trainable_parameters(module)
        self._at: tuple[Vector, Any] | None = None  # the parameters and the problem of which they were computed
        self._computed: Sequence[torch.nn.Module] = ()
        self._norms = [] if module is None else parts_of(module, self._names)
        # torch.compile reads buffers without asking their dictionary
        self._hooks = [norm.register_forward_pre_hook(self._before_forward) for norm in self._norms]
        for norm in self._norms:
            norm._buffers = _Buffers(norm._buffers, self._compute)

    def _before_forward(self, norm: torch.nn.Module, _: Any) -> None:
        if not norm.training:
            self._compute()

    def _compute(self, *_: Any) -> None:
        if self._module is None or not self._norms:
            return
        w, problem = _vector(self._parameters), self._problem()
        if self._at is None or problem is not self._at[1] or not np.array_equal(self._at[0], w):
            self._at, self._computed = (w, problem), parts_of(problem.module_at(w), self._names)
        for norm, computed in zip(self._norms, self._computed, strict=True):
            for name, value in computed._buffers.items():
                dict.__getitem__(norm._buffers, name).copy_(value)

    def close(self) -> None:
        """Compute the statistics of the final parameters, and remove the hooks."""
        try:
            self._compute()
        finally:
            for hook in self._hooks:
                hook.remove()
            for norm in self._norms:
                norm._buffers = dict(dict.items(norm._buffers))

    def __reduce__(self) -> tuple[Any, ...]:
        self._compute()
        return _Statistics, ()


def _equal_leaves(ones: Leaves, others: Leaves) -> bool:
    """Return whether values have the same bits."""
    pairs = zip(ones.arrays, others.arrays, strict=True)
    return ones.numbers == others.numbers and all(a is b or a.tobytes() == b.tobytes() for a, b in pairs)


def matching(module: torch.nn.Module, problem: Problem) -> Vector:
    """Return the module's trainable parameters, shape (d,); raise if they are not the problem's."""
    if not hasattr(module, "parameters"):
        raise BadInput(f"into must be a PyTorch module, got {type(module).__name__}")
    parameters = trainable_parameters(module)
    dtype, shapes = dtype_of(parameters), [tuple(parameter.shape) for parameter in parameters]
    w = _vector(parameters)
    if w.size != problem.dimension:
        raise BadInput(f"the module has {w.size:,} trainable parameters, the problem {problem.dimension:,}")
    if abilities_of(problem).shapes not in (None, shapes):
        raise BadInput("the module's parameters have other shapes than the problem's; make the problem of this module")
    if dtype != problem.dtype:
        raise BadInput(f"the module's parameters are {dtype}, the problem's {problem.dtype}; they must be the same")
    renewed = renewed_norms(module)
    if renewed and abilities_of(problem).module_at is None:
        raise BadInput(
            f"the module has {len(renewed)} batch norms with running statistics, which only a TorchProblem can "
            "compute; use one, or give them track_running_stats=False"
        )
    with_statistics = {
        name for name, layer in module.named_modules() if is_norm(layer) and layer.running_mean is not None
    }
    if not set(abilities_of(problem).moving_norms) <= with_statistics:
        raise BadInput("the module's batch norms are not the problem's; make the problem of this module")
    return w


def _vector(parameters: Sequence[torch.nn.Parameter]) -> Vector:
    """Return parameters as a vector, shape (d,)."""
    import torch

    tensors = [parameter.detach().cpu().reshape(-1) for parameter in parameters]
    # the loop may have changed their type, to one that NumPy does not have
    w: Vector = np.concatenate([(one.float() if one.dtype == torch.bfloat16 else one).numpy() for one in tensors])
    return w


def _pieces(
    parameters: Sequence[torch.nn.Parameter], vector: Vector
) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Return the parameters, each with its piece of a vector."""
    import torch

    pieces = pieces_of(torch.from_numpy(vector), [tuple(parameter.shape) for parameter in parameters])
    return zip(parameters, pieces, strict=True)


def put_model(parameters: Sequence[torch.nn.Parameter], w: Vector) -> None:
    """Set the parameters to a model."""
    for parameter, piece in _pieces(parameters, w.copy()):
        parameter.detach().copy_(piece)


class _WatchedSteps:
    """Refuses optimisers that compute gradients themselves, while a loop hands them out.

    Also counts the steps of the module's optimisers.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._own, self.steps = set(map(id, parameters)), 0
        self.optimizers: list[Any] = []  # those that have stepped
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        if not any(id(parameter) in self._own for group in optimizer.param_groups for parameter in group["params"]):
            return
        self.steps += 1
        if not any(optimizer is other for other in self.optimizers):
            self.optimizers.append(optimizer)
        closures = [*arguments[1:], options.get("closure")]  # the first is the optimiser itself
        if any(closure is not None and not _is_round(closure) for closure in closures):
            raise BadInput(
                f"the closure of {type(optimizer).__name__}.step(closure) computes gradients here, not on the cluster; "
                "call step() without one, or use anyk.torch.Optimizer, where each evaluation of a closure is a "
                "round"
            )

    def close(self) -> None:
        self._hook.remove()


def _is_round(closure: object) -> bool:
    return getattr(closure, "is_round", False)
