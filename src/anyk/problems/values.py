"""Values that change while a model is trained, and travel to the workers with each version of it.

Examples are the weight of a term of the loss, a temperature, and the parameters of a target network.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Array, Vector
from anyk.base.errors import BadInput, describe_error

_WHOLE = "values"  # a parameter of this name receives all values


class Leaves(NamedTuple):
    """The numbers and arrays that values consist of, in the order of :attr:`Values.names`."""

    numbers: tuple[float, ...]
    arrays: tuple[Array, ...]


class _Leaf(NamedTuple):
    """The form of one number or array."""

    name: str
    like: Any  # the initial number, array or tensor


class Values:
    """The values of a problem: their initial ones, their schedules, and their form, which does not change.

    ``given``: numbers and arrays by name, also in dictionaries and lists, such as a ``state_dict()``; or, for a
    schedule, a function of the step that returns them. ``kept``: further arrays, such as a module's frozen parameters
    and buffers, by names for messages.

    Raises :class:`~anyk.BadInput` for anything else.

    >>> values = Values({"beta": 0.5, "rate": lambda step: 0.1 * step})
    >>> values.build(values.at(values.initial, 3))
    {'beta': 0.5, 'rate': 0.30000000000000004}
    """

    def __init__(self, values: Mapping[str, Any], kept_tensors: Mapping[str, Array] | None = None) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in values):
            raise BadInput(f"values must be numbers and arrays by name, as in {{'beta': 0.0}}, got {values!r}")
        self._schedules = {name: value for name, value in values.items() if _is_schedule(value)}
        self._initial = {
            name: _scheduled(name, self._schedules[name], 0) if name in self._schedules else value
            for name, value in values.items()
        }
        forms = list(_leaves_of(self._initial))
        self._numbers = [leaf for leaf in forms if _is_number(leaf.like)]
        self._arrays = [leaf for leaf in forms if not _is_number(leaf.like)]
        self._kept = dict(kept_tensors or {})
        leaves = self.read(self._initial)
        arrays = (*map(np.array, leaves.arrays), *self._kept.values())  # copies, as the user may change them in place
        self._forms = [(array.dtype.str, array.shape) for array in arrays]
        self.initial = leaves._replace(arrays=arrays)

    def __getstate__(self) -> dict[str, Any]:
        """Return a worker's copy: it needs neither schedules nor the kept arrays, which are in the module."""
        initial = self.initial._replace(arrays=self.initial.arrays[: len(self._arrays)])
        return self.__dict__ | {"_schedules": {}, "_kept": dict.fromkeys(self._kept), "initial": initial}

    def with_kept(self, kept_tensors: Mapping[str, Array]) -> Values:
        """Return these values beside other kept arrays, of the same names and forms."""
        other = copy.copy(self)
        other._kept = dict(kept_tensors)
        arrays = (*self.initial.arrays[: len(self._arrays)], *map(np.array, other._kept.values()))
        other.initial = self.initial._replace(arrays=arrays)
        return other

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values, without arrays that are kept."""
        return tuple(self._initial)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the further arrays."""
        return tuple(self._kept)

    def array_name(self, index: int) -> str:
        """Return the name of an array, by its place among the leaves."""
        return [*(leaf.name for leaf in self._arrays), *self._kept][index]

    @property
    def scheduled(self) -> tuple[str, ...]:
        """The names of the values that a schedule determines."""
        return tuple(self._schedules)

    def read(self, tree: Mapping[str, Any]) -> Leaves:
        """Return the leaves of values in the form of the initial ones, without the kept arrays.

        Raises :class:`~anyk.BadInput` if they have another form or a number is not finite.
        """
        if tree.keys() != self._initial.keys():
            raise BadInput(
                f"the problem has the values {', '.join(self._initial) or 'none'}, got {', '.join(map(str, tree))}; "
                "name all of them in values= when the problem is made"
            )
        by_name = {leaf.name: leaf.like for leaf in _leaves_of(tree)}
        expected = {leaf.name for leaf in (*self._numbers, *self._arrays)}
        if by_name.keys() != expected:
            names = ", ".join(sorted(by_name.keys() ^ expected)[:3])
            raise BadInput(f"values must keep the form that they had when the problem was made; {names} differ")
        numbers = tuple(_checked_number(leaf, by_name[leaf.name]) for leaf in self._numbers)
        return Leaves(numbers, tuple(_checked_array(leaf, by_name[leaf.name]) for leaf in self._arrays))

    def at(self, leaves: Leaves, step: int) -> Leaves:
        """Return the leaves with the values that schedules have at a step."""
        if not self._schedules:
            return leaves
        tree = self.build(leaves)
        tree |= {name: _scheduled(name, schedule, step) for name, schedule in self._schedules.items()}
        scheduled = self.read(tree)
        return scheduled._replace(arrays=(*scheduled.arrays, *leaves.arrays[len(self._arrays) :]))

    def decode(self, numbers: Sequence[float], places: Sequence[int], content: Sequence[Vector]) -> Leaves:
        """Return the leaves that a version carries: its numbers, and the bytes of the arrays at some places.

        All other arrays are the initial ones; a worker's copy lacks the kept ones among them. ``content``: pieces of
        the concatenated bytes, seen as vectors.
        """
        initial, first = self.initial.arrays, 0
        arrays: list[Any] = [*initial, *[None] * (len(self._forms) - len(initial))]
        raw = np.concatenate([piece.view(np.uint8) for piece in content]) if content else np.empty(0, np.uint8)
        for index in places:
            kind, shape = self._forms[index]
            dtype = np.dtype(kind)
            size = math.prod(shape) * dtype.itemsize
            value = raw[first : first + size].copy()  # aligned
            arrays[index] = value.view(dtype).reshape(shape)
            first += size
        return Leaves(tuple(numbers), tuple(arrays))

    @staticmethod
    def plain(tensors: Mapping[str, Any]) -> dict[str, Array]:
        """Return tensors as arrays without copies, by name."""
        return {name: array for name, tensor in tensors.items() if (array := _plain(tensor)) is not None}

    def build(self, leaves: Leaves) -> dict[str, Any]:
        """Return the values by name, in the form in which they were given."""
        by_name: dict[str, Any] = {
            leaf.name: number for leaf, number in zip(self._numbers, leaves.numbers, strict=True)
        } | {leaf.name: _as_given(leaf.like, array) for leaf, array in zip(self._arrays, leaves.arrays, strict=False)}
        return {name: _rebuilt(value, name, by_name) for name, value in self._initial.items()}

    def describe(self, leaves: Leaves, changed: Sequence[int]) -> dict[str, float | str]:
        """Return the numbers by name, and digests of the arrays at some places."""
        numbers = {leaf.name: number for leaf, number in zip(self._numbers, leaves.numbers, strict=True)}
        return numbers | {self.array_name(index): f"digest {_digest(leaves.arrays[index])}" for index in changed}


def taken_by(function: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the values that a function takes, by the names of its parameters; ``"values"`` for all in one mapping.

    >>> taken_by(lambda outputs, targets, beta: 0.0, ["beta", "rate"])
    ('beta',)
    """
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
    except (TypeError, ValueError):  # a compiled function has no signature
        return ()
    if _WHOLE in parameters and _WHOLE not in names:
        return (_WHOLE,)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return ()  # it takes anything, and nothing shows that it expects values
    return tuple(name for name in names if name in parameters)


def arguments(taken: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a function that takes some values (:func:`taken_by`)."""
    return {name: dict(values) if name == _WHOLE and _WHOLE not in values else values[name] for name in taken}


def check_taken(names: Sequence[str], *taken: Sequence[str]) -> None:
    """Raise :class:`~anyk.BadInput` if there are values that no function takes."""
    all_taken = {name for some in taken for name in some}
    if _WHOLE in all_taken:
        return
    unused = [name for name in names if name not in all_taken]
    if unused:
        listed = ", ".join(unused)
        raise BadInput(
            f"nothing takes the values {listed}: give the loss a parameter of each name, as in "
            f"loss(outputs, targets, {listed}), or one called values, for a dictionary of all"
        )


def _digest(array: Array) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(content.data, digest_size=8).hexdigest()


def _is_schedule(value: Any) -> bool:
    return callable(value) and not hasattr(value, "dtype") and not hasattr(value, "state_dict")


def _scheduled(name: str, schedule: Callable[[int], Any], step: int) -> Any:
    try:
        return schedule(step)
    except Exception as error:
        raise BadInput(f"the schedule of '{name}' fails at step {step}: {describe_error(error)}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))


def _leaves_of(tree: Any, name: str = "") -> Iterator[_Leaf]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves_of(value, f"{name}['{key}']" if name else str(key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves_of(value, f"{name}[{index}]")
    elif _is_number(tree) or (hasattr(tree, "dtype") and hasattr(tree, "shape")):
        yield _Leaf(name, tree)
    else:
        hint = "; give its state_dict()" if hasattr(tree, "state_dict") else ""
        raise BadInput(f"values must be numbers and arrays, '{name}' is a {type(tree).__name__}{hint}")


def _checked_number(leaf: _Leaf, value: Any) -> float:
    if not _is_number(value):
        if getattr(value, "shape", None) != ():
            raise BadInput(f"the value '{leaf.name}' must stay a number, got a {type(value).__name__}")
        value = value.item()
    number: float = value.item() if isinstance(value, np.generic) else value
    if not math.isfinite(number) or abs(number) >= 2**63:
        raise BadInput(f"the value '{leaf.name}' must be a finite number, got {number}")
    return number


def _checked_array(leaf: _Leaf, value: Any) -> Array:
    array, like = _plain(value), leaf.like
    if array is None or array.shape != tuple(like.shape) or array.dtype != _plain_dtype(like):
        got = f"{array.dtype} {array.shape}" if array is not None else type(value).__name__
        raise BadInput(f"the value '{leaf.name}' must stay an array of {like.dtype} {tuple(like.shape)}, got {got}")
    return array


def _plain(value: Any) -> Array | None:
    """Return an array or tensor as NumPy's, without a copy where that is possible."""
    if _is_tensor(value):
        import torch

        flat = value.detach().cpu().contiguous()
        return np.asarray((flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy())
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return None if array.dtype.kind == "O" else array
    return None


def _plain_dtype(like: Any) -> Any:
    if not _is_tensor(like):
        return like.dtype
    plain = _plain(like)
    assert plain is not None
    return plain.dtype


def _as_given(like: Any, array: Array) -> Any:
    """Return an array in the form in which the value was given."""
    if not _is_tensor(like):
        return np.array(array)  # a copy, as the user may change it in place
    import torch

    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if like.dtype == torch.bfloat16 else tensor


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def _rebuilt(value: Any, name: str, by_name: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _rebuilt(element, f"{name}['{key}']", by_name) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_rebuilt(element, f"{name}[{index}]", by_name) for index, element in enumerate(value)])
    return by_name[name]
