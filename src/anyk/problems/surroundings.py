"""The variables that a user's code reads besides its arguments, by name, so that two processes can be compared.

A worker computes with a copy of the user's module, loss and data set. A copy does not carry what they read elsewhere:
variables of imported modules, attributes of classes. And it does not follow what changes afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base.arrays import Array

_LEAVES = 20_000  # variables that are listed at most
_ELEMENTS = 1_000  # elements of a list or dictionary that are listed at most
_DEPTH = 12
_SAMPLED = 1 << 20  # numbers of a larger array are sampled
_SHOWN = 40  # letters of a value that are shown
# packages whose functions read no settings of the user's; their objects' attributes are listed
_LIBRARIES = frozenset(
    {"anyk", "numpy", "scipy", "sklearn", "pandas", "torch", "torchvision", "jax", "jaxlib", "optax", "flax", "equinox"}
)
_HOOKS = {  # a torch module's tables of hooks that a computation calls, by kind
    "_forward_pre_hooks": "forward pre-",
    "_forward_hooks": "forward ",
    "_backward_pre_hooks": "backward pre-",
    "_backward_hooks": "backward ",
}
_WRAPPED = 4  # layers around a function, and functions in functions, that are looked into
_READERS = ("__getitem__", "__getitems__", "__getattr__", "__len__")  # methods by which samples are read
# names with which code reads attributes that it does not name
_INDIRECT = {"getattr", "vars", "eval", "exec", "__dict__"}
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}  # names with which a function reads the environment
_OPEN = 8  # letters of a text in the environment that is shown: a longer one may be a secret
_IS_NAME = re.compile(r"[A-Za-z_]\w{0,80}").fullmatch
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Variables = dict[str, str]  # what is shown of each value, or a digest of it, by the variable's name


def variables_of(roots: Mapping[str, object], *, arrays: bool = True) -> Variables:
    """Return the variables that some objects consist of, and that their functions read, by name.

    Functions are followed into their closures, their defaults and the module variables that they name, also of modules
    imported by them; objects and classes into their attributes. Trained parameters, buffers and generators of random
    numbers are omitted, as are functions of libraries. If a function reads the environment, the variables in it whose
    names are texts in the code, or among the variables, are listed, too. ``roots``: the objects, by the names that
    messages give them.

    >>> variables_of({"the loss": partial(max, 0.5)})
    {'the loss': "function 'max'", 'argument 0 of the loss': '0.5'}
    """
    variables: Variables = {}
    survey = _Survey(arrays=arrays)
    for root, value in roots.items():
        # an object may raise anything where its attributes are read: what was found before counts
        with contextlib.suppress(Exception):
            for name, leaf in survey.leaves(value, root, 0):
                if len(variables) >= _LEAVES:
                    return variables
                variables.setdefault(name, leaf)
    if survey.reads_environment:
        names = sorted(word for word in survey.texts if _IS_NAME(word))
        variables |= {f"environment variable '{name}'": _of_environment(name) for name in names}
    return variables


def differences(before: Variables, after: Variables) -> Iterator[tuple[str, str, str]]:
    """Yield name and both values of each variable of ``before`` that differs; what is missing later does not count.

    >>> list(differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}))
    [('b', '2', '3')]
    """
    for name, value in before.items():
        other = after.get(name)
        if other is not None and other != value:
            yield name, value, other


def is_read(data: object, name: str, functions: Sequence[object]) -> bool:
    """Return whether items of a data set may be read from one of its variables, by the variable's name.

    An attribute is not read if no code names it that ``__getitem__`` reaches: this method, the methods and properties
    that it names in turn, and ``functions`` of items. Data sets inside the data set are looked at in the same way.
    """
    path = re.findall(r"attribute '(\w+)' of", name)[::-1]
    named_by_functions = {word for function in functions for word in _names_of(function)}
    while path and hasattr(type(data), "__getitem__") and hasattr(data, path[0]):
        names = _names_read(type(data)) | named_by_functions
        if path[0] not in names and not names & _INDIRECT:
            return False
        data = getattr(data, path.pop(0))
    return True


def _names_read(kind: type) -> set[str]:
    """Return the names in the code that reads an item of a data set."""
    names: set[str] = set()
    todo = set(_READERS)
    while todo:
        name = todo.pop()
        names.add(name)
        for base in kind.__mro__:
            todo |= set(_names_of(vars(base).get(name))) - names
    return names


def _names_of(member: Any, depth: int = 0, seen: dict[int, Any] | None = None) -> Iterator[str]:
    """Yield the names in a function's code, or in that of a method or property, and of functions that it calls.

    ``seen``: what was looked into before, by its id.
    """
    seen = {} if seen is None else seen
    if id(member) in seen or depth > 2 * _WRAPPED:
        return
    seen[id(member)] = member
    for layer in ("fget", "func", "__func__", "__wrapped__"):
        inner = getattr(member, layer, None)
        if inner is not None:
            yield from _names_of(inner, depth + 1, seen)
    if not isinstance(member, types.FunctionType):
        member = next((vars(base)["__call__"] for base in type(member).__mro__ if "__call__" in vars(base)), None)
    if isinstance(member, types.FunctionType):
        names = set(_names_in(member.__code__))
        yield from names
        called = [member.__globals__.get(name) for name in names]
        for function in (*called, *_enclosed(member)):
            if isinstance(function, types.FunctionType) and not _is_library(function.__module__):
                yield from _names_of(function, depth + 1, seen)


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the variables in a function's closure."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is not assigned yet
            yield cell.cell_contents


def attributes_of(value: object) -> dict[str, Any]:
    """Return an object's own attributes by name, also those that its class declares as slots."""
    attributes = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                attributes[slot] = getattr(value, slot)
    return attributes


class _Survey:
    """Walks through objects, each of which is visited once."""

    def __init__(self, *, arrays: bool) -> None:
        self._arrays = arrays
        self._seen: dict[int, Any] = {}  # keeps the objects alive, as their ids are the keys
        self._holders: dict[str, list[object]] = {}  # what the variables of a name belong to
        self.reads_environment = False
        self.texts: set[str] = set()  # among which are the names of variables in the environment

    def leaves(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the variables that an object called ``name`` consists of."""
        if isinstance(value, (*_PLAIN, np.generic)):
            if isinstance(value, str):
                self.texts.add(value)
            yield name, _shown(value)
            return
        if id(value) in self._seen or depth > _DEPTH or _is_generator(value) or _is_trained(value):
            return
        self._seen[id(value)] = value
        if not self._arrays and _has_many(value):
            return
        array = _array(value)
        if array is not None:
            yield name, _digest(array, tuple(value.shape))
        elif value is os.environ:
            self.reads_environment = True
        elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
            yield from self._container(value, name, depth)
        elif isinstance(value, type):
            yield name, f"class {value.__qualname__}"
            yield from self._class(value, depth)
        elif isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial)):
            yield from self._callable(value, name, depth)
        elif not isinstance(value, types.ModuleType):
            yield from self._object(value, name, depth)

    def _unique(self, name: str, holder: object) -> str:
        """Return a variable's name, with a number if another holder has one of this name, such as another closure."""
        holders = self._holders.setdefault(name, [])
        index = next((index for index, other in enumerate(holders) if other is holder), len(holders))
        if index == len(holders):
            holders.append(holder)
        return f"{name} ({index + 1})" if index else name

    def _container(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the elements of a dictionary, list, tuple or set."""
        if isinstance(value, Mapping):
            for key in list(value)[:_ELEMENTS]:
                if isinstance(key, _PLAIN):
                    self.texts |= {key} if isinstance(key, str) else set()
                    yield from self.leaves(value[key], f"{name}[{key!r}]", depth + 1)
        elif isinstance(value, (list, tuple)):
            for i in range(min(len(value), _ELEMENTS)):
                yield from self.leaves(value[i], f"{name}[{i}]", depth + 1)
        else:
            yield name, _shown(sorted(map(_without_address, value)))

    def _callable(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield a function or method, what it reads, and what it is bound to."""
        if isinstance(value, types.FunctionType):
            yield name, f"{_called(value)} ({_digest_of_code(value.__code__)})"
            yield from self._function(value, depth)
        elif isinstance(value, types.MethodType):
            yield from self.leaves(value.__func__, name, depth + 1)
            yield from self.leaves(value.__self__, name, depth + 1)
        elif isinstance(value, partial):
            yield from self.leaves(value.func, name, depth + 1)
            for i, argument in enumerate(value.args):
                yield from self.leaves(argument, f"argument {i} of {name}", depth + 1)
            for key, argument in value.keywords.items():
                yield from self.leaves(argument, f"argument '{key}' of {name}", depth + 1)
        else:
            yield name, f"function '{value.__name__}'"

    def _function(self, function: types.FunctionType, depth: int) -> Iterator[tuple[str, str]]:
        """Yield what a function reads besides its arguments, unless it is a library's."""
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            yield from self.leaves(wrapped, _called(function), depth + 1)
        if _is_library(function.__module__):
            return
        code = function.__code__
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # it is not assigned yet
                continue
            yield from self.leaves(content, self._unique(f"variable '{variable}'", cell), depth + 1)
        called = self._unique(_called(function), function)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for index, default in enumerate(defaults):
            yield from self.leaves(default, f"default {index} of {called}", depth + 1)
        names = set(filter(str.isidentifier, _names_in(code)))  # others are of assertions that pytest has rewritten
        if names & _ENVIRONMENT:
            self.reads_environment = True
        self.texts |= set(_texts_in(code))
        for variable in sorted(names & function.__globals__.keys()):
            content = function.__globals__[variable]
            if isinstance(content, types.ModuleType):
                yield from self._module(content, names, depth)
            else:
                unique = self._unique(_variable(variable, function.__module__), function.__globals__)
                yield from self.leaves(content, unique, depth + 1)

    def _module(self, module: types.ModuleType, names: set[str], depth: int) -> Iterator[tuple[str, str]]:
        """Yield the variables of an imported module that a function may read."""
        if _is_library(module.__name__):
            return
        for variable in sorted(names & vars(module).keys()):
            content = vars(module)[variable]
            if isinstance(content, types.ModuleType):
                if content.__name__.startswith(f"{module.__name__}."):
                    yield from self._module(content, names, depth + 1)
            else:
                yield from self.leaves(content, _variable(variable, module.__name__), depth + 1)

    def _class(self, kind: type, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the attributes of a user's class and what its methods read."""
        for base in kind.__mro__:
            if base is object or _is_library(base.__module__):
                continue
            base_name = self._unique(base.__name__, base)
            for key, content in list(vars(base).items()):
                if isinstance(content, (staticmethod, classmethod)):
                    content = content.__func__
                elif isinstance(content, property):
                    content = content.fget
                if isinstance(content, types.FunctionType):
                    yield from self.leaves(content, f"{base_name}.{key}", depth + 1)
                elif not key.startswith("__"):
                    yield from self.leaves(content, f"attribute '{key}' of class {base_name}", depth + 1)

    def _object(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the attributes of an object and of its class."""
        if id(type(value)) not in self._seen:
            self._seen[id(type(value))] = type(value)
            yield from self._class(type(value), depth + 1)
        attributes = attributes_of(value)
        if "_parameters" in attributes and "_modules" in attributes:  # a torch module
            for key, layer in attributes["_modules"].items():
                yield from self.leaves(layer, f"{name}.{key}", depth + 1)
            yield from self._hooks(attributes, name, depth)
            attributes = {key: content for key, content in attributes.items() if key not in _module_attributes()}
        for key, content in attributes.items():
            yield from self.leaves(content, f"attribute '{key}' of {name}", depth + 1)

    def _hooks(self, attributes: Mapping[str, Any], name: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the hooks of a torch module, and what they read."""
        for key, kind in _HOOKS.items():
            hooks = [hook for hook in attributes.get(key, {}).values() if not _is_own(hook)]
            yield f"the number of {kind}hooks of {name}", str(len(hooks))
            for index, hook in enumerate(hooks):
                yield from self.leaves(hook, f"{kind}hook {index} of {name}", depth + 1)


@cache
def _module_attributes() -> frozenset[str]:
    """Return the attributes that every torch module has."""
    import torch

    return frozenset(vars(torch.nn.Module()))


def _is_own(hook: Any) -> bool:
    """Return whether a hook is anyk's."""
    return str(getattr(hook, "__module__", "")).startswith("anyk.")


def _variable(name: str, module: str | None) -> str:
    of = "" if module in (None, "__main__") else f" of module '{module}'"
    return f"variable '{name}'{of}"


def _called(function: types.FunctionType) -> str:
    return f"function '{function.__name__}'"


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of global variables and attributes in a function's code, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _texts_in(code: types.CodeType) -> Iterator[str]:
    """Yield the texts in a function's code, and in functions inside it."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)


@cache
def _is_library(module: str | None) -> bool:
    """Return whether a module belongs to Python or to a library that reads no settings of the user's."""
    if module is None or module == "__main__":
        return False
    package = module.partition(".")[0]
    if package in _LIBRARIES or package in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return package in sys.stdlib_module_names
    inside = Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
    return inside and "site-packages" not in file


def _is_generator(value: object) -> bool:
    """Return whether an object draws random numbers, and so changes with each use."""
    if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
        return True
    return type(value).__name__ == "Generator" and type(value).__module__.partition(".")[0] == "torch"


def _is_trained(value: object) -> bool:
    """Return whether an object is a parameter of torch that an optimiser changes, or such a variable of Flax's nnx.

    Variables of nnx that computing itself changes are meant, too.
    """
    if type(value).__name__ == "Parameter" and getattr(value, "requires_grad", False):
        return True
    return any(
        base.__name__ in ("Param", "RngState", "BatchStat") and base.__module__.startswith("flax.nnx")
        for base in type(value).__mro__
    )


def _has_many(value: Any) -> bool:
    """Return whether an object is an array or tensor of several numbers."""
    if not hasattr(type(value), "shape"):  # an object's own __getattr__ may do anything
        return False
    shape = value.shape
    return isinstance(shape, tuple) and any(size != 1 for size in shape)


def _array(value: Any) -> Array | None:
    """Return an array or tensor as NumPy's; None for anything else."""
    kind = type(value).__module__.partition(".")[0]
    try:
        if kind == "torch" and hasattr(value, "detach"):
            import torch

            flat = value.detach().reshape(-1)
            return np.asarray(flat.float().cpu() if flat.dtype == torch.bfloat16 else flat.cpu())
        if isinstance(value, np.ndarray) or (kind in ("jax", "jaxlib") and hasattr(value, "__array__")):
            array = np.asarray(value)
            return None if array.dtype.kind == "O" else array
        if kind == "pandas" and hasattr(value, "to_numpy"):
            from pandas.util import hash_pandas_object

            return np.asarray(hash_pandas_object(value))
    except Exception:  # a tensor without memory, keys of random numbers
        return None
    return None


def _digest(array: Array, shape: tuple[int, ...]) -> str:
    """Return a text that differs if arrays, or their ``shape``, differ; of large arrays a sample of numbers is read."""
    flat = array.reshape(-1)
    sampled = flat[:: -(-flat.size // _SAMPLED)] if flat.size > _SAMPLED else flat
    digest = hashlib.blake2b(np.ascontiguousarray(sampled).view(np.uint8).data, digest_size=8).hexdigest()
    if array.size == 1:
        return _shown(flat[0].item())
    return f"an array of shape {shape} ({digest})"


def _digest_of_code(code: types.CodeType) -> str:
    code_text = repr((code.co_code, code.co_names, _text_of_constant(code.co_consts)))
    return hashlib.blake2b(code_text.encode(errors="replace"), digest_size=4).hexdigest()


def _text_of_constant(constant: Any) -> str:
    """Return a text of a constant in code that is the same in other processes."""
    if isinstance(constant, types.CodeType):
        return _digest_of_code(constant)
    if isinstance(constant, tuple):
        return f"({', '.join(map(_text_of_constant, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_text_of_constant, constant)))}}}"
    return repr(constant)


def _without_address(value: Any) -> str:
    """Return a text of an element of a set that is the same in other processes."""
    if isinstance(value, types.FunctionType):
        return f"{_called(value)} ({_digest_of_code(value.__code__)})"
    value_text = repr(value)
    return type(value).__qualname__ if " at 0x" in value_text else value_text


def _of_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        return "not set"
    digest = hashlib.blake2b(value.encode(errors="replace"), digest_size=8).hexdigest()
    return repr(value) if len(value) <= _OPEN else f"a text of {len(value)} letters ({digest})"


def _shown(value: Any) -> str:
    value_text = repr(value.item() if isinstance(value, np.generic) else value)
    if len(value_text) <= _SHOWN:
        return value_text
    return f"{value_text[:_SHOWN]}… ({hashlib.blake2b(value_text.encode(errors='replace'), digest_size=8).hexdigest()})"
