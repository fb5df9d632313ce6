"""Compressors: a vector to a payload of fewer bytes and back.

What can be done with compressed messages depends on what a compressor promises:

- ``linear``: ``C(a x + b y) = a C(x) + b C(y)`` for messages of one round, so it composes exactly with every linear
  code and wait rule: what is decoded is the compressed sum.
- ``unbiased``: ``E C(x) = x``. A decoded sum is right on average; its noise is amplified by the decoding weights.
- ``contractive``: ``|x - C(x)|^2 <= (1 - c) |x|^2``. Only with error feedback: what was left out is added to the next
  message. A message that was not used leaves the memory as it was, so it composes where messages are single workers'
  gradients or changes, used or not, and with no code that mixes workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.specs import Registry, show

Vector = NDArray[np.floating[Any]]
Payload = NDArray[np.uint8]  # a whole number of 8-byte words
Key = tuple[int, str]  # seed, and what else the draw depends on


def _words(*parts: NDArray[Any]) -> Payload:
    """Arrays, one after another, as bytes, filled up to whole words."""
    raw = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return np.frombuffer(raw + bytes(-len(raw) % 8), dtype=np.uint8)


def _padded(size: int) -> int:
    return size + -size % 8


@dataclass(frozen=True)
class Compressor(ABC):
    """One way to make vectors smaller.

    ``promise`` is the property that it guarantees (see the module); with ``feedback``, what it leaves out is kept and
    added to the next message.
    """

    name: ClassVar[str] = ""
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]]
    feedback: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """The short form."""
        return show(self.name, {f.name: getattr(self, f.name) for f in fields(self)})

    @abstractmethod
    def size(self, length: int, itemsize: int) -> int:
        """Bytes of the payload of a vector of ``length`` numbers of ``itemsize`` bytes."""

    @abstractmethod
    def pack(self, vector: Vector, key: Key) -> Payload:
        """The payload of a vector; equal keys give equal draws."""

    @abstractmethod
    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        """The vector that a payload stands for."""


def _kept(share: float, length: int) -> int:
    return min(length, max(1, round(share * length)))


@typed
@dataclass(frozen=True)
class RandomK(Compressor):
    """The same random coordinates of every worker's message, scaled up; linear, and unbiased.

    The coordinates are drawn by (seed, version) and need not be sent. ``E |C(x) - x|^2 = (1/share - 1) |x|^2``.

    >>> RandomK(share=0.5).size(10, 8)
    40
    """

    share: float = 0.1
    name: ClassVar[str] = "random-k"
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]] = "linear"

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise BadInput(f"share of 'random-k' must be above 0 and at most 1, got {self.share:g}")

    def size(self, length: int, itemsize: int) -> int:
        return _padded(_kept(self.share, length) * itemsize)

    def _places(self, length: int, key: Key) -> NDArray[np.int64]:
        random = keyed.generator(key[0], "random-k", key[1].partition(" ")[0], length)
        return np.sort(random.choice(length, _kept(self.share, length), replace=False))

    def pack(self, vector: Vector, key: Key) -> Payload:
        places = self._places(vector.size, key)
        return _words(vector[places] * vector.dtype.type(vector.size / places.size))

    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        places = self._places(length, key)
        out = np.zeros(length, dtype=dtype)
        out[places] = payload.view(dtype)[: places.size]
        return out


@typed
@dataclass(frozen=True)
class QSGD(Compressor):
    """Random rounding to ``levels`` steps of the norm, a byte a number (Alistarh et al. 2017); unbiased.

    ``|x|_2 sign(x_i) l / levels`` with l one of the two whole numbers around ``levels |x_i| / |x|_2``, so that the mean
    is right; ``E |C(x) - x|^2 <= min(d / levels^2, sqrt(d) / levels) |x|^2``. Replicas of the same message draw alike.
    """

    levels: int = 64
    name: ClassVar[str] = "qsgd"
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]] = "unbiased"

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 127:
            raise BadInput(f"levels of 'qsgd' must be 1 to 127 (a byte a number), got {self.levels}")

    def size(self, length: int, itemsize: int) -> int:
        del itemsize
        return _padded(8 + length)

    def pack(self, vector: Vector, key: Key) -> Payload:
        norm = float(np.sqrt(np.add.reduce(vector * vector, dtype=np.float64)))
        if not np.isfinite(norm):
            return _words(np.array([norm]), np.zeros(vector.size, dtype=np.int8))
        scaled = np.abs(vector, dtype=np.float64) * (self.levels / norm if norm else 0.0)
        draws = keyed.generator(key[0], "qsgd", key[1], vector.size).random(vector.size)
        steps = np.minimum(np.floor(scaled + draws), 127)
        return _words(np.array([norm]), (np.sign(vector) * steps).astype(np.int8))

    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        del key
        norm = float(payload[:8].view(np.float64)[0])
        return (payload[8 : 8 + length].view(np.int8) * (norm / self.levels)).astype(dtype)


@dataclass(frozen=True)
class Half(Compressor):
    """Half precision (16 bits a number), scaled by the largest; off by at most 2^-11 of each; nearly unbiased."""

    name: ClassVar[str] = "half"
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]] = "unbiased"

    def size(self, length: int, itemsize: int) -> int:
        del itemsize
        return _padded(8 + 2 * length)

    def pack(self, vector: Vector, key: Key) -> Payload:
        del key
        top = float(np.abs(vector).max(initial=0.0))
        scaled = vector / top if 0.0 < top < np.inf else np.zeros_like(vector)
        return _words(np.array([top]), (scaled * 2.0**10).astype(np.float16))

    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        del key
        top = float(payload[:8].view(np.float64)[0])
        values = payload[8 : 8 + 2 * length].view(np.float16).astype(np.float64)
        return np.asarray(values * (top * 2.0**-10), dtype=dtype)


@typed
@dataclass(frozen=True)
class TopK(Compressor):
    """The coordinates that are largest, with error feedback (Stich, Cordonnier and Jaggi 2018); contractive.

    ``|x - C(x)|^2 <= (1 - share) |x|^2``.
    """

    share: float = 0.01
    name: ClassVar[str] = "top-k"
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]] = "contractive"
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 0.5:
            raise BadInput(
                "share of 'top-k' must be above 0 and at most 0.5 (positions are sent as well as values), "
                f"got {self.share:g}"
            )

    def size(self, length: int, itemsize: int) -> int:
        return _padded(_kept(self.share, length) * (4 + itemsize))

    def pack(self, vector: Vector, key: Key) -> Payload:
        del key
        kept = _kept(self.share, vector.size)
        if not kept:
            return np.empty(0, dtype=np.uint8)
        places = np.sort(np.argpartition(-np.abs(vector), kept - 1)[:kept]).astype(np.int32)
        return _words(vector[places], places)

    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        del key
        kept, item = _kept(self.share, length), np.dtype(dtype).itemsize
        out = np.zeros(length, dtype=dtype)
        out[payload[kept * item : kept * (item + 4)].view(np.int32)] = payload[: kept * item].view(dtype)
        return out


@typed
@dataclass(frozen=True)
class Sign(Compressor):
    """Signs, times the mean size, with error feedback (Karimireddy et al. 2019), a bit a number; contractive.

    ``|x - C(x)|^2 = (1 - |x|_1^2 / (d |x|_2^2)) |x|^2``.
    """

    name: ClassVar[str] = "sign"
    promise: ClassVar[Literal["linear", "unbiased", "contractive"]] = "contractive"
    feedback: ClassVar[bool] = True

    def size(self, length: int, itemsize: int) -> int:
        del itemsize
        return _padded(8 + -(-length // 8))

    def pack(self, vector: Vector, key: Key) -> Payload:
        del key
        mean = float(np.abs(vector, dtype=np.float64).mean()) if vector.size else 0.0
        return _words(np.array([mean]), np.packbits(vector < 0.0))

    def unpack(self, payload: Payload, length: int, dtype: np.dtype[Any], key: Key) -> Vector:
        del key
        mean = float(payload[:8].view(np.float64)[0])
        negative = np.unpackbits(payload[8:], count=length).astype(bool)
        return np.asarray(np.where(negative, -mean, mean), dtype=dtype)


registry: Registry[Compressor] = Registry("compressor")
register = registry.register
for _compressor in (RandomK, QSGD, Half, TopK, Sign):
    register(_compressor.name)(_compressor)


def compressor(spec: str) -> Compressor:
    """Build a compressor from its spec.

    >>> compressor("top-k:share=0.01").promise
    'contractive'
    """
    return registry.build(spec)
