"""Compressors: a vector to a payload of fewer bytes and back.

The use of compressed messages depends on the compressor's promise:

- ``linear``: ``C(a x + b y) = a C(x) + b C(y)`` for messages of one round, so it composes exactly with every linear
  code and wait rule: decoding gives the compressed sum.
- ``unbiased``: ``E C(x) = x``. A decoded sum is right on average; its noise is amplified by the decoding weights.
- ``contractive``: ``|x - C(x)|^2 <= (1 - c) |x|^2``. Only with error feedback: the omitted part is added to the
  next message. An unused message leaves the memory unchanged, so it composes if messages are single workers'
  gradients or changes, used or not, and with no code that mixes workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from anyk.base.arrays import Array, DType, Indices, Vector
from anyk.base.checks import PositiveShare, value_class
from anyk.base.keyed import keyed_generator
from anyk.base.registries import Registry
from anyk.base.specs import show_spec

Payload = NDArray[np.uint8]  # complete 8-byte words
Key = tuple[int, str]  # seed and purpose of the draw


def _words(*parts: Array) -> Payload:
    """Return consecutive arrays as bytes, filled up to complete words."""
    raw = b"".join(np.ascontiguousarray(array).tobytes() for array in parts)
    return np.frombuffer(raw + bytes(-len(raw) % 8), dtype=np.uint8)


def _padded(size: int) -> int:
    return size + -size % 8


@dataclass(frozen=True)
class Compressor(ABC):
    """A method to make vectors smaller.

    ``promise`` is the property that it guarantees (see the module); with ``feedback``, the omitted part is stored and
    added to the next message.
    """

    name: ClassVar[str] = ""
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]]
    feedback: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """Short form from which :func:`compressor` builds an equal value."""
        return show_spec(self.name, asdict(self))

    @abstractmethod
    def size(self, length: int, itemsize: int) -> int:
        """Return the bytes of the payload of a vector of ``length`` numbers of ``itemsize`` bytes."""

    @abstractmethod
    def pack(self, vector: Vector, key: Key) -> Payload:
        """Return the payload of a vector, shape (length,); equal keys give equal draws."""

    @abstractmethod
    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        """Return the vector of a payload, shape (length,)."""


def _count(share: float, length: int) -> int:
    return min(length, max(1, round(share * length)))


@value_class
class RandomK(Compressor):
    """The same random coordinates of every worker's message, scaled up; linear, and unbiased.

    The coordinates are sampled by (seed, version) and need not be sent. ``E |C(x) - x|^2 = (1/share - 1) |x|^2``.

    >>> RandomK(share=0.5).size(10, 8)
    40
    """

    share: PositiveShare = 0.1
    name = "random-k"
    promise = "linear"

    def size(self, length: int, itemsize: int) -> int:
        return _padded(_count(self.share, length) * itemsize)

    def _places(self, length: int, key: Key) -> Indices:
        random = keyed_generator(key[0], "random-k", key[1].partition(" ")[0], length)
        return np.sort(random.choice(length, _count(self.share, length), replace=False))

    def pack(self, vector: Vector, key: Key) -> Payload:
        places = self._places(vector.size, key)
        return _words(vector[places] * vector.dtype.type(vector.size / max(places.size, 1)))

    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        places = self._places(length, key)
        out = np.zeros(length, dtype=dtype)
        out[places] = payload.view(dtype)[: places.size]
        return out


@value_class
class QSGD(Compressor):
    """Random rounding to ``levels`` steps of the norm, one byte per number (Alistarh et al. 2017); unbiased.

    ``|x|_2 sign(x_i) l / levels`` with l one of the two integers around ``levels |x_i| / |x|_2``, so that the mean
    is right; ``E |C(x) - x|^2 <= min(d / levels^2, sqrt(d) / levels) |x|^2``. Replicas of the same message draw alike.
    """

    levels: Annotated[int, Meta(ge=1, le=127)] = 64
    name = "qsgd"
    promise = "unbiased"

    def size(self, length: int, itemsize: int) -> int:
        return _padded(8 + length)

    def pack(self, vector: Vector, key: Key) -> Payload:
        norm = float(np.sqrt(np.add.reduce(vector * vector, dtype=np.float64)))
        if not np.isfinite(norm):
            return _words(np.array([norm]), np.zeros(vector.size, dtype=np.int8))
        scaled = np.abs(vector, dtype=np.float64) * (self.levels / norm if norm else 0.0)
        draws = keyed_generator(key[0], "qsgd", key[1], vector.size).random(vector.size)
        steps = np.minimum(np.floor(scaled + draws), 127)
        return _words(np.array([norm]), (np.sign(vector) * steps).astype(np.int8))

    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        norm = float(payload[:8].view(np.float64)[0])
        return (payload[8 : 8 + length].view(np.int8) * (norm / self.levels)).astype(dtype)


@dataclass(frozen=True)
class Half(Compressor):
    """Half precision (16 bits a number), scaled by the largest; relative error at most 2^-11; nearly unbiased."""

    name = "half"
    promise = "unbiased"

    def size(self, length: int, itemsize: int) -> int:
        return _padded(8 + 2 * length)

    def pack(self, vector: Vector, key: Key) -> Payload:
        top = float(np.abs(vector).max(initial=0.0))
        scaled = vector / top if 0.0 < top < np.inf else np.zeros_like(vector)
        return _words(np.array([top]), (scaled * 2.0**10).astype(np.float16))

    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        top = float(payload[:8].view(np.float64)[0])
        values = payload[8 : 8 + 2 * length].view(np.float16).astype(np.float64)
        return np.asarray(values * (top * 2.0**-10), dtype=dtype)


@value_class
class TopK(Compressor):
    """The largest coordinates, with error feedback (Stich, Cordonnier and Jaggi 2018); contractive.

    ``|x - C(x)|^2 <= (1 - share) |x|^2``.
    """

    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.01  # positions are sent as well as values
    name = "top-k"
    promise = "contractive"
    feedback = True

    def size(self, length: int, itemsize: int) -> int:
        return _padded(_count(self.share, length) * (4 + itemsize))

    def pack(self, vector: Vector, key: Key) -> Payload:
        count = _count(self.share, vector.size)
        if not count:
            return np.empty(0, dtype=np.uint8)
        places = np.sort(np.argpartition(-np.abs(vector), count - 1)[:count]).astype(np.int32)
        return _words(vector[places], places)

    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        count, item = _count(self.share, length), np.dtype(dtype).itemsize
        out = np.zeros(length, dtype=dtype)
        out[payload[count * item : count * (item + 4)].view(np.int32)] = payload[: count * item].view(dtype)
        return out


@value_class
class Sign(Compressor):
    """Signs, times the mean size, with error feedback (Karimireddy et al. 2019), a bit a number; contractive.

    ``|x - C(x)|^2 = (1 - |x|_1^2 / (d |x|_2^2)) |x|^2``.
    """

    name = "sign"
    promise = "contractive"
    feedback = True

    def size(self, length: int, itemsize: int) -> int:
        return _padded(8 + -(-length // 8))

    def pack(self, vector: Vector, key: Key) -> Payload:
        mean = float(np.abs(vector, dtype=np.float64).mean()) if vector.size else 0.0
        return _words(np.array([mean]), np.packbits(vector < 0.0))

    def unpack(self, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
        mean = float(payload[:8].view(np.float64)[0])
        negative = np.unpackbits(payload[8:], count=length).astype(bool)
        return np.asarray(np.where(negative, -mean, mean), dtype=dtype)


registry: Registry[Compressor] = Registry("compressor")
register = registry.register
for _compressor in (RandomK, QSGD, Half, TopK, Sign):
    register(_compressor.name)(_compressor)


def compressor(spec: str) -> Compressor:
    """Return the compressor of a spec; raise :class:`~anyk.BadInput` if there is none.

    >>> compressor("top-k:share=0.01").promise
    'contractive'
    """
    return registry.build(spec)
