"""Codes side by side: their cost, their tolerance, and their error when stragglers are left out."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import codes, keyed
from anyk.codes import Code, worst_stragglers
from anyk.codes.base import check_workers
from anyk.codes.decoders import Floats, Indices, method
from anyk.codes.search import is_exhaustive
from anyk.errors import BadInput
from anyk.specs import Entry, parse, show

_SETS = 200  # random straggler sets that an average is taken over
_LARGE = 160_000  # replies x partitions beyond which it is a fifth of these
_POINTS = 25  # numbers of stragglers that codes are compared at
ATTACKED = 10  # draws of a random code for which the worst stragglers are searched


@dataclass(frozen=True)
class Facts:
    """One code for one number of stragglers.

    ``expected`` and ``worst``: root of the mean squared residual over random straggler sets and the largest residual.
    ``expected_known``: whether the first is a closed form (else a mean over 200 sets, 40 for codes with more than
    160,000 entries). ``worst_known``: whether the second is a closed form or a comparison of all sets (else it is a
    lower bound, found by :func:`~anyk.codes.worst_stragglers`). ``gain``: noise gain, ``decode``: seconds for a set not
    seen before; medians over random sets.
    """

    code: Code
    stragglers: int
    expected: float
    expected_known: bool
    worst: float
    worst_known: bool
    gain: float
    decode: float


@dataclass(frozen=True)
class Missing:
    """A code that does not exist for these numbers, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Curve:
    """Residuals of a code against the number of stragglers, and what theory says.

    All of shape (points,): ``random`` (root of the mean squared residual) with ``spread`` (standard error of the mean
    square, carried over), ``adversarial`` (the largest residual if ``exact``, else a lower bound of it, found by
    search), ``expected`` and ``bound`` (closed forms; NaN where there is none; ``bound`` is from above). With several
    ``draws`` of a random code, of which ``code`` is the first, squares are means over them and ``spread`` is of these;
    ``adversarial`` and ``bound`` over the first 10.
    """

    code: Code
    stragglers: Indices
    random: Floats
    spread: Floats
    adversarial: Floats
    exact: NDArray[np.bool_]
    expected: Floats
    bound: Floats
    draws: int = 1


def _random_sets(code: Code, stragglers: int, count: int, seed: int) -> list[Indices]:
    """Replies that are left when random workers straggle."""
    random = keyed.generator(seed, "straggler-sets", code.workers, stragglers)
    c = code.messages
    found = []
    for _ in range(count):
        here = np.sort(random.choice(code.workers, code.workers - stragglers, replace=False))
        found.append((here[:, None] * c + np.arange(c)).ravel())
    return found


def _expected(code: Code, stragglers: int, decoder: str) -> float | None:
    """The closed form, where it is one over uniformly random workers."""
    if code.messages > 1 or isinstance(code, codes.HeterogeneousCode):
        return None
    return code.expected_error(code.workers - stragglers, decoder=decoder)


def facts(code: Code, *, stragglers: int | None = None, sets: int = _SETS, seed: int = 0) -> Facts:
    """Error, gain and decoding time of a code with so many stragglers (a tenth of the workers if left out).

    >>> import anyk
    >>> found = facts(anyk.code("frc:load=3", workers=30), stragglers=3)
    >>> round(found.expected**2 * 30, 4), found.expected_known, round(found.worst**2 * 30, 9)
    (0.0074, True, 3.0)
    """
    n = code.workers
    f = min(n - 1, max(1, n // 10)) if stragglers is None else stragglers
    if not 0 <= f < n:
        raise BadInput(f"stragglers must be at least 0 and below workers ({n}), got {f}")
    how = method("own")
    squares, gains, times = [], [], []
    code.decode(np.arange(code.replies))  # what is built once is not decoding
    count = sets if code.replies * code.partitions <= _LARGE else max(1, sets // 5)
    for replies in _random_sets(code, f, count, seed):
        began = clock.perf_counter()
        decoding = code.judge(how.weights(code, replies))
        times.append(clock.perf_counter() - began)
        squares.append(decoding.residual**2)
        gains.append(decoding.gain)
    known = _expected(code, f, "own")
    mean = float(np.mean(squares)) if known is None else known / code.partitions
    closed = code.worst_error(f) if code.messages == 1 else ((0.0, True) if f <= code.tolerates else None)
    worst_known = closed is not None and closed[1]
    if closed is not None and closed[1]:
        worst = float((closed[0] / code.partitions) ** 0.5)
    else:
        worst = max(worst_stragglers(code, f)[1].residual, float(np.max(squares)) ** 0.5)
        worst_known = is_exhaustive(code, f, how)
    promised = f <= code.tolerates and not code.approximate
    if promised:
        mean = 0.0
    return Facts(
        code,
        f,
        max(0.0, mean) ** 0.5,
        promised or known is not None,
        worst,
        worst_known,
        float(np.median(gains)),
        float(np.median(times)),
    )


def survey(
    workers: int, *, stragglers: int | None = None, seed: int = 0, tell: Callable[[str], None] | None = None
) -> list[Facts | Missing]:
    """All codes for so many workers, each with its usual parameters; with ``stragglers``, built for that many.

    A code that needs further arguments (``matrix`` its file) is :class:`Missing`. ``tell`` is called with the name of
    each when it is done.

    >>> [type(row).__name__ for row in survey(8, stragglers=1)].count("Missing")
    2
    """
    check_workers(workers)
    if stragglers is not None and not 0 <= stragglers < workers:
        raise BadInput(f"stragglers must be at least 0 and below workers ({workers}), got {stragglers}")
    rows: list[Facts | Missing] = []
    for entry in codes.registry:
        try:
            code = codes.code(show(entry.name, _asked(entry, stragglers)), workers=workers)
            rows.append(facts(code, stragglers=stragglers, seed=seed))
        except BadInput as error:
            rows.append(Missing(entry.name, str(error)))
        if tell is not None:
            tell(entry.name)
    return rows


def _asked(entry: Entry[Code], stragglers: int | None) -> dict[str, str]:
    if stragglers is None or "stragglers" not in entry.parameters():
        return {}
    return {"stragglers": str(stragglers)}


def draws_of(spec: str, *, workers: int, draws: int) -> list[Code]:
    """A code and, if it is random, those of the seeds behind its own, ``draws`` in all; else only the code.

    >>> [len(draws_of(spec, workers=12, draws=5)) for spec in ("bgc:load=3", "frc:load=3", "progress:load=3")]
    [5, 1, 1]
    """
    first = codes.code(spec, workers=workers)
    name, values = parse(spec)
    if draws == 1 or "seed" not in codes.registry.entries[name].parameters():
        return [first]
    seed = int(values.get("seed", "0"))
    further = [codes.code(show(name, values | {"seed": str(seed + draw)}), workers=workers) for draw in range(1, draws)]
    same = first.encoding.shape == further[0].encoding.shape and not (first.encoding != further[0].encoding).nnz
    return [first] if same else [first, *further]


def straggler_counts(workers: int, most: int | None = None) -> Indices:
    """Numbers of stragglers at which codes are compared: 0 to ``most`` (half the workers), at most 25."""
    top = workers // 2 if most is None else most
    if not 0 <= top < workers:
        raise BadInput(f"stragglers must be at least 0 and below workers ({workers}), got {top}")
    return np.unique(np.linspace(0, top, min(top + 1, _POINTS)).round().astype(np.int64))


def compare_codes(
    specs: Sequence[str],
    *,
    workers: int,
    decoder: str = "own",
    most: int | None = None,
    draws: int = 1,
    sets: int = _SETS,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
) -> list[Curve]:
    """Residual against the number of stragglers, for several codes, random and adversarial.

    ``decoder``: own, least-squares, one-step or algorithmic. ``most``: the largest number of stragglers (half the
    workers, if left out); up to 25 numbers are tried. ``draws``: of codes that are drawn at random, with the seeds
    after that of the spec; the straggler ``sets`` of a point are shared out among them, at least one each. ``tell`` is
    called with the spec whenever a point is done.

    >>> curve = compare_codes(["frc:load=3"], workers=30, most=6)[0]
    >>> curve.stragglers.tolist(), (30 * curve.adversarial**2).round(9).tolist()
    ([0, 1, 2, 3, 4, 5, 6], [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0])
    """
    for name, count in (("draws", draws), ("sets", sets)):
        if count < 1:
            raise BadInput(f"{name} must be at least 1, got {count}")
    points = straggler_counts(workers, most)
    curves = []
    for spec in specs:
        drawn = draws_of(spec, workers=workers, draws=draws)
        columns: dict[str, list[float]] = {
            name: [] for name in ("random", "spread", "adversarial", "exact", "expected", "bound")
        }
        for f in points.tolist():
            for name, value in _point(drawn, f, decoder=decoder, sets=sets, seed=seed).items():
                columns[name].append(value)
            if tell is not None:
                tell(spec)
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
        curves.append(Curve(drawn[0], points, **arrays, draws=len(drawn)))
    return curves


def _point(drawn: Sequence[Code], stragglers: int, *, decoder: str, sets: int, seed: int) -> dict[str, float]:
    """The columns of a :class:`Curve` for one number of stragglers."""
    how, m = method(decoder), drawn[0].partitions
    each = -(-sets // len(drawn))
    random = _random_sets(drawn[0], stragglers, each * len(drawn), seed)
    squares = np.array(
        [
            [code.decode(replies, decoder=how).residual ** 2 for replies in random[at * each : (at + 1) * each]]
            for at, code in enumerate(drawn)
        ]
    )
    alike = squares.mean(axis=1) if len(drawn) > 1 else squares[0]
    mean, error = float(alike.mean()), float(alike.std()) / len(alike) ** 0.5
    attacked = drawn[:ATTACKED]
    found = [worst_stragglers(code, stragglers, decoder=how)[1].residual ** 2 for code in attacked]
    expected = [_expected(code, stragglers, decoder) for code in drawn]
    bounds = [code.worst_error(stragglers) if decoder == "own" and code.messages == 1 else None for code in attacked]
    return {
        "random": mean**0.5,
        "spread": error / (2.0 * mean**0.5) if mean > 0 else 0.0,
        "adversarial": float(np.mean(np.maximum(found, squares[:ATTACKED].max(axis=1)))) ** 0.5,
        "exact": all(
            is_exhaustive(code, stragglers, how) or (bound is not None and square >= bound[0] / m - 1e-9)
            for code, bound, square in zip(attacked, bounds, found, strict=True)
        ),
        "expected": _root([None if one is None else one / m for one in expected]),
        "bound": _root([None if one is None else one[0] / m for one in bounds]),
    }


def _root(squares: Sequence[float | None]) -> float:
    """Root of the mean; NaN where one is not known."""
    known = [square for square in squares if square is not None]
    return max(0.0, float(np.mean(known))) ** 0.5 if len(known) == len(squares) else np.nan
