"""Reports of workers as bytes, and back: numbers, texts and plain arrays of known types; nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import msgspec
import numpy as np

from anyk.base.arrays import Array, DType
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Report

Form = tuple[str, int]  # type and number of entries of a vector
_ALIGN = 16  # bytes
# of messages, payloads and optimisers' states
_TYPES = {np.dtype(kind).str: np.dtype(kind) for kind in ("f2", "f4", "f8", "g", "u1", "i8", "?")}
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[Report, Form | None]]).decode


def form_of(vector: Array | None) -> Form | None:
    """Return the type and the number of entries of a vector; None if there is no vector."""
    return None if vector is None else (vector.dtype.str, int(vector.size))


def vector_type(form: Form) -> DType:
    """Return the type of a vector; raise ValueError for a type that no message has, and for a negative length."""
    kind, size = form
    if kind not in _TYPES or size < 0:
        raise ValueError(f"a vector of {size} numbers of type {kind[:20]!r}")
    return _TYPES[kind]


def pack_reports(news: Sequence[tuple[Report, Array | None]]) -> bytes:
    """Return reports and their vectors as bytes."""
    head = _pack([(report, form_of(vector)) for report, vector in news])
    parts: list[bytes | memoryview] = [len(head).to_bytes(8, "little"), head]
    size = 8 + len(head)
    for _, vector in news:
        if vector is not None:
            parts.append(bytes(-size % _ALIGN))
            parts.append(np.ascontiguousarray(vector).reshape(-1).view(np.uint8).data)
            size += -size % _ALIGN + vector.nbytes
    return b"".join(parts)


def unpack_reports(data: bytes | memoryview) -> list[tuple[Report, Array | None]]:
    """Return the reports and vectors that :func:`pack_reports` packed; vectors are views of ``data``.

    Raises ValueError (also msgspec's errors) for anything else.
    """
    view = memoryview(data).cast("B").toreadonly()
    end = 8 + int.from_bytes(view[:8], "little")
    if not 8 < end <= len(view):
        raise ValueError("it was cut short")
    news: list[tuple[Report, Array | None]] = []
    for report, form in _unpack(bytes(view[8:end])):
        vector: Array | None = None
        if form is not None:
            start = end + -end % _ALIGN
            vector = np.frombuffer(view, dtype=vector_type(form), count=form[1], offset=start)
            end = start + vector.nbytes
        news.append((report, vector))
    if end != len(view):
        raise ValueError(f"it has {len(view)} bytes where {end} were announced")
    return news


def refuse(worker: int, reason: object) -> NoReturn:
    """Raise :class:`~anyk.RunFailed` for what no worker of anyk sends."""
    shortened = " ".join(str(reason).split())[:200]
    raise RunFailed(
        f"worker {worker} sent what no worker sends ({shortened}): its process is damaged, or not anyk's; resume the "
        "run"
    ) from None
