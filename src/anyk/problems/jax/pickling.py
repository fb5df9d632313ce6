"""Pickling of Equinox modules whose classes are defined in scripts and notebooks.

cloudpickle restores a class in two steps: an empty class, then its contents. Equinox tells JAX the fields of a class
when the class is created, so that the empty class must have them already.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from anyk.plain import ByName


def packed(value: Any) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Return the result of ``__reduce__`` for a value: its bytes, and its arrays beside them."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if isinstance(reduced, tuple) and isinstance(obj, type) and is_equinox(obj):
                make, arguments, *further = reduced
                return _class_with_fields, (make, arguments, _own_fields(obj)), *further
            return reduced

    raw: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    Pickler(stream, protocol=5, buffer_callback=raw.append).dump(value)
    return partial(pickle.loads, buffers=raw), (stream.getvalue(),)


def is_equinox(kind: type) -> bool:
    """Return whether a class is one of Equinox modules."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and issubclass(kind, equinox.Module)


def _own_fields(kind: Any) -> dict[str, ByName]:
    """Return the arguments of the fields that a class adds to its bases."""
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


def _class_with_fields(make: Callable[..., type], given: tuple[Any, ...], fields: dict[str, ByName]) -> type:
    constructor, name, bases, namespace, *further = given
    namespace = namespace | {"__annotations__": dict.fromkeys(fields, object)}
    namespace |= {name: dataclasses.field(**options) for name, options in fields.items()}
    return make(constructor, name, bases, namespace, *further)
