"""Requirements of every compressor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyk.base import Floats, Vector, keyed_generator, parse_spec, typed
from anyk.compression import Compressor, Key, Payload, registry
from anyk.compression import compressor as build
from anyk.testing.failures import failing_as

_LENGTHS = (0, 1, 2, 7, 8, 9, 50, 333)
_DTYPES = ("float64", "float32")
_SHORT = 12  # the length of vectors of which many are compressed
_DRAWS = 4000  # for a mean
_FEWER = 64  # for a mean error
_ROUNDING = 2e-3  # by which the mean of a compressor that rounds to few bits may differ, relative to the largest number
_LEAST = 1e-4  # of a vector's squared norm that must arrive through a contractive compressor, on average


@typed
def check_compressor(compressor: Compressor | str, *, seed: int = 0) -> None:
    """Check all properties of a compressor that workers and strategies rely on.

    Its spec builds an equal one. A payload consists of complete 8-byte words, in the number of bytes that ``size``
    states, for vectors of any length; the vector is not changed, and comes back in its length and dtype. Equal keys
    give equal payloads, whatever was compressed before. ``linear``: the compressed sum of a round's messages is the sum
    of the compressed messages. ``linear`` and ``unbiased``, unless ``feedback`` is set: the mean over versions is the
    vector. ``contractive``: the mean squared error is smaller than the squared norm, and ``feedback`` is set. Raises
    AssertionError for the first property that fails.

    >>> check_compressor("top-k:share=0.1")
    """
    built = build(compressor) if isinstance(compressor, str) else compressor
    random = keyed_generator(seed, "check-compressor", built.spec)
    with failing_as("the compressor fails"):
        _check_claims(built)
        for dtype in _DTYPES:
            for length in _LENGTHS:
                sizes = 10.0 ** random.integers(-6, 6)
                _check_payload(built, (sizes * random.standard_normal(length)).astype(dtype))
            _check_payload(built, np.zeros(50, dtype=dtype))
            if built.promise == "linear":
                _check_linear(built, random, dtype)
        if built.promise in ("linear", "unbiased") and not built.feedback:
            _check_mean(built, random)
        if built.promise == "contractive":
            _check_contraction(built, random)


def _key(version: int, partition: int = 0, seed: int = 0) -> Key:
    """Return the key of a message as workers form it: the round comes first, then the partitions."""
    return seed, f"{version}:0 ({partition},)"


def _check_claims(compressor: Compressor) -> None:
    kinds = ("linear", "unbiased", "contractive")
    promise = getattr(compressor, "promise", None)
    assert promise in kinds, f"promise is {promise!r}, not one of {', '.join(kinds)}"
    assert promise != "contractive" or compressor.feedback, (
        "a contractive compressor needs feedback = True: what it omits would be lost"
    )
    name = parse_spec(compressor.spec)[0]
    assert name in registry, (
        f"'{name}' is not registered, and workers build a compressor from its spec '{compressor.spec}'"
    )
    assert build(compressor.spec) == compressor, (
        f"the spec '{compressor.spec}' gives another compressor, {build(compressor.spec)!r}"
    )


def _packed(compressor: Compressor, vector: Vector, key: Key) -> Payload:
    """Return the payload of a vector, after checks of its form."""
    original = vector.copy()
    payload = compressor.pack(original, key)
    assert np.array_equal(original, vector), "pack() changes the vector, which the worker still uses"
    kind = f"{type(payload).__name__} of {getattr(payload, 'dtype', '?')}"
    assert isinstance(payload, np.ndarray) and payload.dtype == np.uint8 and payload.ndim == 1, (
        f"pack() returns {kind}, not a vector of uint8"
    )
    where = f"of {vector.size} numbers of {vector.dtype}"
    assert payload.size % 8 == 0, f"the payload {where} has {payload.size} bytes, which are not complete 8-byte words"
    stated = compressor.size(vector.size, vector.itemsize)
    assert isinstance(stated, int) and stated == payload.size, (
        f"the payload {where} has {payload.size} bytes, size() says {stated!r}"
    )
    return payload


def _through(compressor: Compressor, vector: Vector, key: Key) -> Vector:
    """Return a vector after compression and back."""
    payload = _packed(compressor, vector, key)
    sent = np.frombuffer(payload.tobytes(), dtype=np.uint8)  # as it arrives, read-only
    back = compressor.unpack(sent, vector.size, vector.dtype, key)
    assert isinstance(back, np.ndarray) and back.shape == vector.shape and back.dtype == vector.dtype, (
        f"unpack() returns {getattr(back, 'shape', type(back).__name__)} of {getattr(back, 'dtype', '?')} for a vector "
        f"of shape {vector.shape} of {vector.dtype}"
    )
    assert not np.shares_memory(back, sent), "unpack() returns the memory of the payload; copy it"
    return back


def _check_payload(compressor: Compressor, vector: Vector) -> None:
    """Compress a vector twice and once more by an equal compressor, with others between."""
    vector = vector.copy()
    first = _packed(compressor, vector, _key(3))
    back = _through(compressor, vector, _key(3))
    assert np.isfinite(back).all(), f"a finite vector of {vector.size} numbers of {vector.dtype} comes back not finite"
    assert vector.any() or not back.any(), "zeros do not come back as zeros"
    _packed(compressor, vector[::-1].copy(), _key(4, 1))
    second = _packed(compressor, vector, _key(3))
    assert np.array_equal(first, second), "the same vector with the same key gives another payload the second time"
    other = _packed(build(compressor.spec), vector, _key(3))
    assert np.array_equal(first, other), "an equal compressor gives another payload with the same key"


def _check_linear(compressor: Compressor, random: np.random.Generator, dtype: str) -> None:
    """Compare the sum of two workers' compressed messages with the compressed sum."""
    for length in (1, _SHORT, 333):
        x, y = random.standard_normal((2, length)).astype(dtype)
        parts = 3.0 * _through(compressor, x, _key(5, 0)) - 0.5 * _through(compressor, y, _key(5, 1))
        of_sum = _through(compressor, (3.0 * x - 0.5 * y).astype(dtype), _key(5, 2))
        slack = 1e3 * float(np.finfo(dtype).eps) * (1.0 + float(np.abs(of_sum).max(initial=0.0)))
        assert np.abs(parts - of_sum).max(initial=0.0) <= slack, (
            "it is not linear among the messages of a round: 3 C(x) - C(y) / 2 is not C(3 x - y / 2); its draws may "
            "depend on the seed and the round in the key, up to the first space, and not on the partitions"
        )


def _vectors(random: np.random.Generator) -> dict[str, Floats]:
    """Return vectors of different kinds, by what they are."""
    alternating = np.where(np.arange(_SHORT) % 2, 1.0, -1.0)
    return {
        "normal numbers": random.standard_normal(_SHORT),
        "numbers of very different sizes": random.standard_normal(_SHORT) * 10.0 ** random.integers(-4, 4, _SHORT),
        "a single number and zeros": np.eye(1, _SHORT, int(random.integers(_SHORT)))[0],
        "equal numbers": np.full(_SHORT, 0.3),
        "1 and -1": alternating,
    }


def _check_mean(compressor: Compressor, random: np.random.Generator) -> None:
    for name, x in _vectors(random).items():
        total, squares = np.zeros(_SHORT), np.zeros(_SHORT)
        for version in range(_DRAWS):
            back = _through(compressor, x, _key(version)) if version < _FEWER else _quick(compressor, x, _key(version))
            total += back
            squares += back * back
        mean = total / _DRAWS
        error = np.sqrt(np.maximum(squares / _DRAWS - mean**2, 0.0) / _DRAWS)
        slack = 6.0 * error + _ROUNDING * np.abs(x).max()
        worst = int(np.argmax(np.abs(mean - x) - slack))
        assert abs(mean[worst] - x[worst]) <= slack[worst], (
            f"it is biased: of {name}, {x[worst]:.4g} comes back as {mean[worst]:.4g} ± {2.0 * error[worst]:.2g} on "
            f"average over {_DRAWS} versions"
        )


def _quick(compressor: Compressor, vector: Vector, key: Key) -> Vector:
    return compressor.unpack(compressor.pack(vector, key), vector.size, vector.dtype, key)


def _check_contraction(compressor: Compressor, random: np.random.Generator) -> None:
    for name, x in _vectors(random).items():
        errors: Sequence[float] = [
            float(((x - _through(compressor, x, _key(version))) ** 2).sum()) for version in range(_FEWER)
        ]
        mean, norm = sum(errors) / len(errors), float(x @ x)
        assert mean <= (1.0 - _LEAST) * norm, (
            f"it is not contractive: of {name} with the squared norm {norm:.4g}, the squared error is {mean:.4g} on "
            "average"
        )
