"""The door to readjax, a distribution of its own in anyk's source, which writes JAX functions as NumPy source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyk.base.errors import BadInput, needing


@contextmanager
def decompiling(purpose: str) -> Iterator[None]:
    """Let a block import and use readjax, and turn its errors into :class:`~anyk.BadInput`.

    Raises :class:`~anyk.base.errors.MissingPackage` if readjax is not installed.
    """
    with needing("readjax", "./decompile", purpose):
        from readjax import ReadJaxError
    try:
        yield
    except ReadJaxError as error:
        raise BadInput(str(error)) from None
