"""Codes compared: their cost, their tolerance, and their error without stragglers' replies."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyk import codes
from anyk.base import AtLeastOne, BadInput, Flags, Floats, Indices, keyed_generator, parse_spec, show_spec, typed
from anyk.codes import Code, check_count, check_workers, is_exhaustive, method, replies_of, worst_stragglers
from anyk.problems import Tell

_SETS = 200  # random straggler sets of an average
_LARGE = 160_000  # replies x partitions beyond which a fifth of these sets is used
_POINTS = 25  # numbers of stragglers at which codes are compared
ATTACKED = 10  # draws of a random code for which the worst stragglers are searched


@dataclass(frozen=True)
class Facts:
    """Error, gain and decoding time of a code for one number of stragglers.

    ``expected``: root of the mean squared residual over random straggler sets, which is a closed form if
    ``expected_known`` (else a mean over 200 sets, 40 for codes with more than 160,000 entries). ``worst``: the largest
    residual, which is a closed form or a comparison of all sets if ``worst_known`` (else a lower bound by
    :func:`~anyk.codes.worst_stragglers`). ``gain`` (noise gain) and ``decode`` (seconds for a new set) are medians over
    random sets.
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
class MissingCode:
    """A code that does not exist for these numbers, and the reason."""

    name: str
    why: str


@dataclass(frozen=True)
class Curve:
    """Residuals of a code against the number of stragglers, measured and in theory.

    All of shape (points,): ``random`` (root of the mean squared residual) with ``spread`` (standard error of the mean
    square, propagated), ``adversarial`` (the largest residual if ``exact``, else a lower bound by search), ``expected``
    and ``bound`` (closed forms, else NaN; ``bound`` is an upper bound). With several ``draws`` of a random code, whose
    first draw is ``code``, squares are means over the draws with their ``spread``; ``adversarial`` and ``bound`` are
    means over the first 10 draws.
    """

    code: Code
    stragglers: Indices
    random: Floats
    spread: Floats
    adversarial: Floats
    exact: Flags
    expected: Floats
    bound: Floats
    draws: int = 1


def _random_sets(code: Code, stragglers: int, count: int, seed: int) -> list[Indices]:
    """Return the remaining replies of ``count`` random sets of stragglers."""
    random = keyed_generator(seed, "straggler-sets", code.workers, stragglers)
    workers = [random.choice(code.workers, code.workers - stragglers, replace=False) for _ in range(count)]
    return [replies_of(code, np.sort(present)) for present in workers]


def _expected(code: Code, stragglers: int, decoder: str) -> float | None:
    """Return the closed form of the expected error over uniformly random workers, if there is one."""
    if code.messages > 1 or isinstance(code, codes.HeterogeneousCode):
        return None
    return code.expected_error(code.workers - stragglers, decoder=decoder)


def facts(code: Code, *, stragglers: int | None = None, sets: int = _SETS, seed: int = 0) -> Facts:
    """Return error, gain and decoding time of a code with ``stragglers`` stragglers (default: a tenth of the workers).

    >>> import anyk
    >>> frc = facts(anyk.code("frc:load=3", workers=30), stragglers=3)
    >>> round(frc.expected**2 * 30, 4), frc.expected_known, round(frc.worst**2 * 30, 9)
    (0.0074, True, 3.0)
    """
    n = code.workers
    f = min(n - 1, max(1, n // 10)) if stragglers is None else stragglers
    check_count(f, n)
    how = method("own")
    squares, gains, times = [], [], []
    code.decode(np.arange(code.replies))  # the first call also prepares the decoder
    count = sets if code.replies * code.partitions <= _LARGE else max(1, sets // 5)
    for replies in _random_sets(code, f, count, seed):
        began = clock.perf_counter()
        decoding = code.judge(how.weights(code, replies))
        times.append(clock.perf_counter() - began)
        squares.append(decoding.residual**2)
        gains.append(decoding.gain)
    expected = _expected(code, f, "own")
    mean = float(np.mean(squares)) if expected is None else expected / code.partitions
    closed = code.worst_error(f) if code.messages == 1 else ((0.0, True) if f <= code.tolerates else None)
    if closed is not None and closed[1]:
        worst, worst_known = float((closed[0] / code.partitions) ** 0.5), True
    else:
        worst = max(worst_stragglers(code, f)[1].residual, float(np.max(squares)) ** 0.5)
        worst_known = is_exhaustive(code, f, how)
    tolerated = f <= code.tolerates and not code.approximate
    return Facts(
        code=code,
        stragglers=f,
        expected=0.0 if tolerated else max(0.0, mean) ** 0.5,
        expected_known=tolerated or expected is not None,
        worst=worst,
        worst_known=worst_known,
        gain=float(np.median(gains)),
        decode=float(np.median(times)),
    )


def survey(
    workers: int, *, stragglers: int | None = None, seed: int = 0, tell: Tell | None = None
) -> list[Facts | MissingCode]:
    """Return facts about all codes for a number of workers, with usual parameters or for ``stragglers`` stragglers.

    A code that needs further arguments (``matrix`` its file) is a :class:`MissingCode`. ``tell`` is called with the
    name of each code when its facts are computed.

    >>> [type(row).__name__ for row in survey(8, stragglers=1)].count("MissingCode")
    2
    """
    check_workers(workers)
    check_count(stragglers or 0, workers)
    rows: list[Facts | MissingCode] = []
    for entry in codes.registry:
        try:
            tolerant = stragglers is not None and "stragglers" in entry.parameters()
            spec = show_spec(entry.name, {"stragglers": stragglers} if tolerant else {})
            code = codes.code(spec, workers=workers)
            rows.append(facts(code, stragglers=stragglers, seed=seed))
        except BadInput as error:
            rows.append(MissingCode(entry.name, str(error)))
        if tell is not None:
            tell(entry.name)
    return rows


def draws_of(spec: str, *, workers: int, draws: int) -> list[Code]:
    """Return a code and, if it is random, the codes of the following seeds, ``draws`` in all; else only the code.

    >>> [len(draws_of(spec, workers=12, draws=5)) for spec in ("bgc:load=3", "frc:load=3", "progress:load=3")]
    [5, 1, 1]
    """
    first = codes.code(spec, workers=workers)
    name, values = parse_spec(spec)
    if draws == 1 or "seed" not in codes.registry.entries[name].parameters():
        return [first]
    seed = int(values.get("seed", "0"))
    further = [codes.code(show_spec(name, values | {"seed": seed + draw}), workers=workers) for draw in range(1, draws)]
    same = first.encoding.shape == further[0].encoding.shape and not (first.encoding != further[0].encoding).nnz
    return [first] if same else [first, *further]


def straggler_counts(workers: int, most: int | None = None) -> Indices:
    """Return up to 25 numbers of stragglers at which codes are compared, 0 to ``most`` (default: half the workers)."""
    top = workers // 2 if most is None else most
    check_count(top, workers)
    return np.unique(np.linspace(0, top, min(top + 1, _POINTS)).round().astype(np.int64))


@typed
def compare_codes(
    specs: Sequence[str],
    *,
    workers: int,
    decoder: str = "own",
    most: int | None = None,
    draws: AtLeastOne = 1,
    sets: AtLeastOne = _SETS,
    seed: int = 0,
    tell: Tell | None = None,
) -> list[Curve]:
    """Return residuals against the number of stragglers, for several codes, random and adversarial.

    ``decoder``: own, least-squares, one-step or algorithmic. ``most``: the largest number of stragglers (default: half
    the workers); up to 25 numbers are compared. ``draws`` of a random code: its seed and the following ones; the
    straggler ``sets`` of a point are divided among the draws, at least one each. ``tell`` is called with the spec after
    each point.

    >>> curve = compare_codes(["frc:load=3"], workers=30, most=6)[0]
    >>> curve.stragglers.tolist(), (30 * curve.adversarial**2).round(9).tolist()
    ([0, 1, 2, 3, 4, 5, 6], [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0])
    """
    points = straggler_counts(workers, most)
    curves = []
    for spec in specs:
        codes_drawn = draws_of(spec, workers=workers, draws=draws)
        rows = []
        for f in points.tolist():
            rows.append(_point(codes_drawn, f, decoder=decoder, sets=sets, seed=seed))
            if tell is not None:
                tell(spec)
        random, spread, adversarial, exact, expected, bound = map(np.array, zip(*rows, strict=True))
        curves.append(
            Curve(
                code=codes_drawn[0],
                stragglers=points,
                random=random,
                spread=spread,
                adversarial=adversarial,
                exact=exact,
                expected=expected,
                bound=bound,
                draws=len(codes_drawn),
            )
        )
    return curves


def _point(
    drawn: Sequence[Code], stragglers: int, *, decoder: str, sets: int, seed: int
) -> tuple[float, float, float, bool, float, float]:
    """Return random, spread, adversarial, exact, expected and bound of a :class:`Curve` at one point."""
    squares = _random_squares(drawn, stragglers, decoder=decoder, sets=sets, seed=seed)
    samples = squares.mean(axis=1) if len(drawn) > 1 else squares[0]
    mean, error = float(samples.mean()), float(samples.std()) / len(samples) ** 0.5
    worst, exact, bounds = _worst_squares(drawn[:ATTACKED], stragglers, decoder)
    return (
        mean**0.5,
        error / (2.0 * mean**0.5) if mean > 0 else 0.0,
        float(np.mean(np.maximum(worst, squares[:ATTACKED].max(axis=1)))) ** 0.5,
        exact,
        _root([_per_partition(code, _expected(code, stragglers, decoder)) for code in drawn]),
        _root(bounds),
    )


def _random_squares(drawn: Sequence[Code], stragglers: int, *, decoder: str, sets: int, seed: int) -> Floats:
    """Return squared residuals over random sets, shape (codes, sets of each), ``sets`` or a few more in all."""
    of_each = -(-sets // len(drawn))
    random = _random_sets(drawn[0], stragglers, of_each * len(drawn), seed)
    how = method(decoder)
    return np.array(
        [
            [code.decode(replies, decoder=how).residual ** 2 for replies in random[k * of_each : (k + 1) * of_each]]
            for k, code in enumerate(drawn)
        ]
    )


def _worst_squares(
    attacked: Sequence[Code], stragglers: int, decoder: str
) -> tuple[list[float], bool, list[float | None]]:
    """Return each code's largest squared residual, whether all are exact, and the upper bounds that are known."""
    how, partitions = method(decoder), attacked[0].partitions
    worst = [worst_stragglers(code, stragglers, decoder=how)[1].residual ** 2 for code in attacked]
    closed = [code.worst_error(stragglers) if decoder == "own" and code.messages == 1 else None for code in attacked]
    bounds = [None if form is None else form[0] / partitions for form in closed]
    exact = all(
        is_exhaustive(code, stragglers, how) or (bound is not None and square >= bound - 1e-9)
        for code, square, bound in zip(attacked, worst, bounds, strict=True)
    )
    return worst, exact, bounds


def _per_partition(code: Code, error: float | None) -> float | None:
    return None if error is None else error / code.partitions


def _root(squares: Sequence[float | None]) -> float:
    """Return the root of the mean of squares; NaN if a square is None."""
    valid = [square for square in squares if square is not None]
    return max(0.0, float(np.mean(valid))) ** 0.5 if len(valid) == len(squares) else np.nan
