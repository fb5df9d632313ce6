"""The suite that defines what a compressor is: anyk's own pass, and each thing that it must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import anyk
from anyk.base.keyed import keyed_generator
from anyk.compression import Compressor, registry
from anyk.testing import check_compressor

pytestmark = pytest.mark.in_process

SPECS = [
    "random-k:share=0.25",
    "random-k:share=1",
    "qsgd:levels=4",
    "qsgd:levels=127",
    "half",
    "top-k:share=0.2",
    "sign",
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_anyks_compressors_pass(spec: str) -> None:
    check_compressor(spec)


def test_every_registered_compressor_is_tested_here() -> None:
    built_in = {entry.name for entry in registry if entry.build.__module__.startswith("anyk.")}
    assert built_in == {spec.partition(":")[0] for spec in SPECS}


def words(array: Any) -> Any:
    raw = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % 8), dtype=np.uint8)


class Plain(Compressor):
    """Sends every number as it is, for one thing to go wrong."""

    promise: ClassVar[Any] = "linear"

    def size(self, length: int, itemsize: int) -> int:
        return length * itemsize + -length * itemsize % 8

    def pack(self, vector: Any, key: Any) -> Any:
        return words(self.changed(vector, key))

    def unpack(self, payload: Any, length: int, dtype: Any, key: Any) -> Any:
        return payload.view(dtype)[:length].copy()

    def changed(self, vector: Any, key: Any) -> Any:
        return vector


KINDS: dict[str, tuple[type[Compressor], str]] = {}


def wrong(sentence: str) -> Callable[[Any], Any]:
    def add(kind: type[Compressor]) -> type[Compressor]:
        cls_made = dataclass(frozen=True)(kind)
        cls_made.name = f"test-{kind.__name__.lower()}"
        KINDS[cls_made.name] = cls_made, sentence
        return cls_made

    return add


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name, (kind, _) in KINDS.items():
        registry.register(name)(kind)
    yield
    for name in KINDS:
        del registry.entries[name]


def test_what_is_right_passes() -> None:
    kind = dataclass(frozen=True)(type("Right", (Plain,), {"name": "test-right"}))
    registry.register("test-right")(kind)
    try:
        check_compressor(kind())
        kind.promise = "unbiased"
        check_compressor("test-right")
        kind.promise, kind.feedback = "contractive", True
        check_compressor("test-right")
    finally:
        del registry.entries["test-right"]


@wrong("not linear among the messages of a round")
class DrawsByMessage(Plain):
    """Every worker has other coordinates."""

    def changed(self, vector: Any, key: Any) -> Any:
        chosen = keyed_generator(key[0], "test", key[1], vector.size).random(vector.size) < 0.5
        return 2 * vector * chosen


@wrong("not linear among the messages of a round")
class Clipped(Plain):
    def changed(self, vector: Any, key: Any) -> Any:
        return np.clip(vector, -1, 1)


@wrong("it is biased")
class AlwaysTheSame(Plain):
    """Linear, but coordinates that it omits are omitted for ever."""

    def changed(self, vector: Any, key: Any) -> Any:
        return vector * (np.arange(vector.size) % 2 == 0)


@wrong("it is biased")
class Unscaled(Plain):
    """Omits half of the coordinates, and does not scale the others."""

    def changed(self, vector: Any, key: Any) -> Any:
        chosen = keyed_generator(key[0], "test", key[1].partition(" ")[0], vector.size).random(vector.size) < 0.5
        return vector * chosen


@wrong("it is biased")
class RoundsDown(Plain):
    promise = "unbiased"

    def changed(self, vector: Any, key: Any) -> Any:
        largest = np.abs(vector).max(initial=0.0)
        return np.floor(8 * vector / largest) * largest / 8 if largest else vector


@wrong("contractive compressor needs feedback")
class NoFeedback(Plain):
    promise = "contractive"


@wrong("it is not contractive: of normal numbers")
class TooLarge(Plain):
    """An unbiased compressor's scale, which error feedback makes grow."""

    promise, feedback = "contractive", True

    def changed(self, vector: Any, key: Any) -> Any:
        return 4 * vector


@wrong("it is not contractive")
class DropsSingles(Plain):
    """Sends the mean: nothing of numbers whose mean is zero."""

    promise, feedback = "contractive", True

    def changed(self, vector: Any, key: Any) -> Any:
        return np.full_like(vector, vector.mean()) if vector.size else vector


@wrong("promise is 'exact', not one of linear, unbiased, contractive")
class Unknown(Plain):
    promise = "exact"


@wrong("the payload of 1 numbers of float64 has 8 bytes, size.. says 9")
class WrongSize(Plain):
    def size(self, length: int, itemsize: int) -> int:
        return length * itemsize + length % 2


@wrong("not complete 8-byte words")
class Unfilled(Plain):
    def size(self, length: int, itemsize: int) -> int:
        return length * itemsize

    def pack(self, vector: Any, key: Any) -> Any:
        return np.frombuffer(vector.tobytes(), dtype=np.uint8)


@wrong("size.. says 8.0")
class FractionalSize(Plain):
    def size(self, length: int, itemsize: int) -> Any:
        return super().size(length, itemsize) * (1.0 if length else 1)


@wrong("pack.. returns ndarray of float64, not a vector of uint8")
class Unpacked(Plain):
    def pack(self, vector: Any, key: Any) -> Any:
        return vector.astype(np.float64)


@wrong("pack.. changes the vector")
class InPlace(Plain):
    def changed(self, vector: Any, key: Any) -> Any:
        vector *= 2
        return vector / 2


@wrong("unpack.. returns the memory of the payload")
class SharesPayload(Plain):
    def unpack(self, payload: Any, length: int, dtype: Any, key: Any) -> Any:
        return payload.view(dtype)[:length]


@wrong(r"unpack.. returns \(0,\) of float32 for a vector of shape \(0,\) of float64")
class Narrowed(Plain):
    def unpack(self, payload: Any, length: int, dtype: Any, key: Any) -> Any:
        return payload.view(dtype)[:length].astype(np.float32)


@wrong("another payload the second time")
class Unkeyed(Plain):
    promise = "unbiased"

    def changed(self, vector: Any, key: Any) -> Any:
        return vector * (1 + 1e-3 * np.random.standard_normal())  # noqa: NPY002


@wrong("another payload the second time")
class HasMemory(Plain):
    """Its error feedback is its own, not the worker's."""

    promise, feedback = "contractive", True

    def changed(self, vector: Any, key: Any) -> Any:
        memory = self.__dict__.setdefault("memory", {})
        total = vector + memory.get(vector.size, 0)
        memory[vector.size] = 0.5 * total
        return 0.5 * total


@wrong("an equal compressor gives another payload")
class OwnDraw(Plain):
    promise = "unbiased"

    def changed(self, vector: Any, key: Any) -> Any:
        return vector * (1 + 1e-12 * (id(self) % 1000))


@wrong("zeros do not come back as zeros")
class AddsNoise(Plain):
    promise = "unbiased"

    def changed(self, vector: Any, key: Any) -> Any:
        draws = keyed_generator(key[0], "test", key[1], vector.size).standard_normal(vector.size)
        return (vector + draws).astype(vector.dtype)


@wrong("comes back not finite|the compressor fails")
class Normalising(Plain):
    """Divides by a norm that is zero for zeros."""

    promise = "unbiased"

    def changed(self, vector: Any, key: Any) -> Any:
        with np.errstate(all="ignore"):
            norm = np.linalg.norm(vector)
            return (vector / norm) * norm if vector.size else vector


@wrong("the compressor fails: ZeroDivisionError")
class NoLength(Plain):
    """A message may be empty: data may be sparse."""

    def changed(self, vector: Any, key: Any) -> Any:
        return vector * (1 / vector.size) * vector.size


@pytest.mark.parametrize("name", list(KINDS))
def test_what_is_wrong_is_found(name: str) -> None:
    kind, sentence = KINDS[name]
    with pytest.raises(AssertionError, match=sentence):
        check_compressor(kind())


def test_a_spec_that_forgets_a_setting_is_found() -> None:
    @dataclass(frozen=True)
    class Forgetful(Plain):
        share: float = 1.0
        name = "test-forgetful"

        @property
        def spec(self) -> str:
            return self.name

    with pytest.raises(AssertionError, match="'test-forgetful' is not registered"):
        check_compressor(Forgetful())
    registry.register("test-forgetful")(Forgetful)
    try:
        with pytest.raises(AssertionError, match="the spec 'test-forgetful' gives another compressor"):
            check_compressor(Forgetful(share=0.5))
    finally:
        del registry.entries["test-forgetful"]


def test_a_compressor_that_does_not_exist_is_bad_input() -> None:
    with pytest.raises(anyk.BadInput, match="no compressor 'top-l'; did you mean 'top-k'"):
        check_compressor("top-l")


def test_random_coordinates_of_an_empty_message_are_none() -> None:
    """A partition of sparse data without an entry has no coordinates."""
    compressor = anyk.compression.compressor("random-k:share=0.5")
    key = (0, "0:0 (0,)")
    assert (
        compressor.unpack(compressor.pack(np.empty(0), key), 0, np.dtype(float), key).size == 0 == compressor.size(0, 8)
    )
