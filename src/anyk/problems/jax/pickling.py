"""Equinox modules of scripts and notebooks on their way to workers.

cloudpickle makes a class anew in two steps: an empty one, then what is in it. Equinox tells JAX of a class's fields
when the class is made, so that the empty one has to have them already.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any


def packed(value: Any) -> tuple[Callable[..., Any], tuple[bytes, list[pickle.PickleBuffer]]]:
    """Return a value's result of ``__reduce__``: its bytes, and its arrays beside them."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if isinstance(reduced, tuple) and isinstance(obj, type) and is_equinox(obj):
                make, given, *rest = reduced
                return _class_with_fields, (make, given, _own_fields(obj)), *rest
            return reduced

    raw: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    Pickler(stream, protocol=5, buffer_callback=raw.append).dump(value)
    return _unpacked, (stream.getvalue(), raw)


def is_equinox(kind: type) -> bool:
    """Whether a class is one of Equinox modules."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and issubclass(kind, equinox.Module)


def _unpacked(main: bytes, buffers: Sequence[Any]) -> Any:
    return pickle.loads(main, buffers=buffers)


def _own_fields(kind: Any) -> dict[str, dict[str, Any]]:
    """The arguments of the fields that a class adds to those of its bases."""
    own = inspect.get_annotations(kind)
    options = ("default", "default_factory", "init", "kw_only", "metadata")
    return {
        field.name: {
            option: dict(value) if option == "metadata" else value
            for option in options
            if (value := getattr(field, option)) is not dataclasses.MISSING
        }
        for field in dataclasses.fields(kind)
        if field.name in own
    }


def _class_with_fields(make: Callable[..., type], given: tuple[Any, ...], fields: dict[str, dict[str, Any]]) -> type:
    constructor, name, bases, namespace, *rest = given
    namespace = namespace | {"__annotations__": dict.fromkeys(fields, object)}
    namespace |= {name: dataclasses.field(**options) for name, options in fields.items()}
    return make(constructor, name, bases, namespace, *rest)
