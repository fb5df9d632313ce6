"""Wait rules, which determine when a round may end, and their combinations."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from statistics import median
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from anyk.base import installed
from anyk.base.checks import NonnegativeNumber, PositiveNumber, PositiveShare, check_range, typed
from anyk.base.errors import BadInput, UnknownName, suggest
from anyk.base.registries import Registry
from anyk.base.specs import bracket_depths, show_spec, split_outside

Rule = TypeVar("Rule", bound="Wait")

_SEEN = 30  # arrivals that an adapting deadline needs


def _digits(value: float) -> str:
    """Return a number as text that is read back as the same number."""
    return repr(float(value)).removesuffix(".0")


class Waiting:
    """The view of a round that a wait rule gets."""

    __slots__ = ("_messages", "_state")

    def __init__(self, state: Any, messages: int = 1) -> None:
        self._state, self._messages = state, messages

    @property
    def replies(self) -> int:
        """Number of usable replies."""
        return len(self._state.task_of)

    @property
    def expected(self) -> int:
        """Number of replies of all workers that take part."""
        return int(self._state.expected)

    @property
    def decodable(self) -> bool:
        """Whether the replies give the exact sum."""
        return bool(self._state.decoder.decodable)

    @property
    def residual(self) -> float:
        """Residual if the step were taken now, before scaling."""
        return float(self._state.decoder.residual)

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return float(self._state.now - self._state.began)

    @property
    def replied(self) -> tuple[int, ...]:
        """Workers that replied, in order of arrival."""
        return tuple(reply // self._messages for reply in self._state.task_of)

    @property
    def arrivals(self) -> tuple[float, ...]:
        """Seconds from the start of this round to each reply, in the order of ``replied``."""
        arrivals = self._state.arrivals
        return tuple(arrivals[reply] for reply in self._state.task_of)

    @property
    def recent(self) -> Sequence[float]:
        """Seconds from a round's start to each reply in the last rounds, if a rule remembers them."""
        return tuple(self._state.recent)


@dataclass
class _UncodedRound:
    """The state and decoder of an uncoded round with some replies after some seconds, for closed forms."""

    task_of: range
    expected: int
    now: float
    residual_of: Callable[[int], float]
    began = 0.0

    @property
    def decoder(self) -> _UncodedRound:
        return self

    @property
    def decodable(self) -> bool:
        return len(self.task_of) == self.expected

    @property
    def residual(self) -> float:
        return self.residual_of(len(self.task_of))


class Wait:
    """A rule; ``a | b`` ends the round when one of the two is met, ``a & b`` when both are."""

    name: ClassVar[str] = ""  # in specs

    @property
    def approximate(self) -> bool:
        """Whether the rule may end a round without the exact sum."""
        return True

    @property
    def predictable(self) -> bool:
        """Whether the number of replies that it requires of an uncoded round depends on the time alone."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether the rule uses ``recent``, the seconds to each reply in the last rounds."""
        return False

    def enough(self, waiting: Waiting) -> bool:
        """Return whether the round may end."""
        raise NotImplementedError("a wait rule defines enough()")

    def deadlines(self, waiting: Waiting) -> tuple[float, ...]:
        """Return the seconds after the start of this round at which ``enough`` is to be called again.

        A round asks once, when it begins and has no replies yet.
        """
        return ()

    def counts(self) -> tuple[int, ...]:
        """Return the numbers of replies in the rule."""
        return ()

    def changes(self) -> tuple[float, ...]:
        """Return the seconds after which a predictable rule requires fewer replies."""
        return self.deadlines(Waiting(None)) if self.predictable else ()

    def required_replies(self, workers: int, seconds: float, residual_of: Callable[[int], float]) -> int | None:
        """Return the number of replies that end an uncoded round after ``seconds``; None if it is not known beforehand.

        Above ``workers`` if no number does. ``residual_of(k)``: the residual of k replies.
        """
        if not self.predictable:
            return None

        def is_enough(count: int) -> bool:
            return self.enough(Waiting(_UncodedRound(range(count), workers, seconds, residual_of)))

        return 1 + bisect_left(range(1, workers + 1), True, key=is_enough)

    def __str__(self) -> str:
        """Return the rule as text, from which it can be built again; by default its name and fields."""
        values = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        spec = show_spec(self.name, values)
        return f"({spec})" if "," in spec else spec

    def __or__(self, other: Wait) -> Wait:
        return AnyOf(self, other)

    def __and__(self, other: Wait) -> Wait:
        return AllOf(self, other)


registry: Registry[Wait] = Registry("wait rule")


def register_wait(name: str) -> Callable[[type[Rule]], type[Rule]]:
    """Register a dataclass as a wait rule; its fields become the keys of ``name:key=value``.

    >>> @register_wait("quorum")
    ... @dataclass(frozen=True)
    ... class Quorum(Wait):
    ...     least: int = 2
    ...
    ...     def enough(self, waiting):
    ...         return waiting.replies >= self.least
    >>> str(wait_rule("quorum:least=3|0.5s", replies=8))
    'quorum:least=3|0.5s'
    """

    def add(rule: type[Rule]) -> type[Rule]:
        rule.name = name
        return registry.register(name)(rule)

    return add


@register_wait("decodable")
@dataclass(frozen=True)
class Decodable(Wait):
    """Wait until the exact sum can be decoded."""

    approximate = False
    predictable = True

    def enough(self, waiting: Waiting) -> bool:
        return waiting.decodable


@register_wait("count")
@typed
@dataclass(frozen=True)
class Count(Wait):
    """Wait until ``number`` replies have arrived."""

    number: int
    predictable = True

    def enough(self, waiting: Waiting) -> bool:
        return waiting.replies >= self.number

    def counts(self) -> tuple[int, ...]:
        return (self.number,)

    def __str__(self) -> str:
        return str(self.number)


@register_wait("fraction")
@typed
@dataclass(frozen=True)
class Fraction(Wait):
    """Wait for a ``share`` of the workers that are present, rounded down (``0.75n`` in a spec)."""

    share: PositiveShare
    predictable = True

    def of(self, expected: int) -> int:
        """Return the number of replies to wait for, at least 1."""
        return max(1, int(self.share * expected + 1e-9))

    def enough(self, waiting: Waiting) -> bool:
        return waiting.replies >= self.of(waiting.expected)

    def __str__(self) -> str:
        return f"{_digits(self.share)}n"


@register_wait("residual")
@typed
@dataclass(frozen=True)
class ResidualBelow(Wait):
    """Wait until the residual is below ``bound`` (0.05 in a spec is ``5%``)."""

    bound: PositiveShare
    predictable = True

    def enough(self, waiting: Waiting) -> bool:
        return waiting.residual < self.bound

    def __str__(self) -> str:
        return f"{_digits(self.bound * 100)}%"


@register_wait("deadline")
@typed
@dataclass(frozen=True)
class Deadline(Wait):
    """Wait until ``seconds`` have passed and at least one reply has arrived."""

    seconds: PositiveNumber
    predictable = True

    def enough(self, waiting: Waiting) -> bool:
        # to a microsecond: now - began is rounded, and the alarm rings at began + seconds only once
        return waiting.replies > 0 and waiting.elapsed >= self.seconds - 1e-6

    def deadlines(self, waiting: Waiting) -> tuple[float, ...]:
        return (self.seconds,)

    def after(self, recent: Sequence[float]) -> float:
        """Return the deadline in seconds."""
        return self.seconds

    def __str__(self) -> str:
        return f"{_digits(self.seconds)}s"


@lru_cache(maxsize=64)  # called at every reply, while ``recent`` changes once a round
def _past_median(recent: tuple[float, ...], times: float) -> float:
    """Return the median plus ``times`` median absolute deviations."""
    middle = median(recent)
    return float(middle + times * median([abs(value - middle) for value in recent]))


@register_wait("adaptive")
@typed
@dataclass(frozen=True)
class Adaptive(Wait):
    """Wait until ``times`` median absolute deviations after the median of recent arrivals, and for at least one reply.

    A deadline that adapts to the workers (``3mad`` in a spec; ``15&3mad`` waits for 15 replies in any case). It waits
    for all workers until 30 arrivals are known from earlier rounds.
    """

    times: NonnegativeNumber
    remembers = True

    def after(self, recent: Sequence[float]) -> float | None:
        """Return the deadline in seconds that follows from recent arrivals; None if they are too few."""
        return None if len(recent) < _SEEN else _past_median(tuple(recent), self.times)

    def enough(self, waiting: Waiting) -> bool:
        bound = self.after(waiting.recent)
        return bound is not None and waiting.replies > 0 and waiting.elapsed >= bound - 1e-6

    def deadlines(self, waiting: Waiting) -> tuple[float, ...]:
        bound = self.after(waiting.recent)
        return () if bound is None else (bound,)

    def __str__(self) -> str:
        return f"{_digits(self.times)}mad"


@dataclass(frozen=True)
class Predicate(Wait):
    """Wait until a function of the :class:`Waiting` round returns True (Python only: it has no spec)."""

    holds: Callable[[Waiting], bool]

    def enough(self, waiting: Waiting) -> bool:
        return self.holds(waiting)

    def __str__(self) -> str:
        return f"<{getattr(self.holds, '__name__', 'predicate')}>"


@dataclass(frozen=True, init=False)
class AnyOf(Wait):
    """Wait until one of the rules is met."""

    rules: tuple[Wait, ...]

    def __init__(self, *rules: Wait) -> None:
        object.__setattr__(self, "rules", rules)

    @property
    def approximate(self) -> bool:
        return any(rule.approximate for rule in self.rules)

    @property
    def predictable(self) -> bool:
        return all(rule.predictable for rule in self.rules)

    @cached_property
    def remembers(self) -> bool:  # asked at every reply
        return any(rule.remembers for rule in self.rules)

    def enough(self, waiting: Waiting) -> bool:
        return any(rule.enough(waiting) for rule in self.rules)

    def deadlines(self, waiting: Waiting) -> tuple[float, ...]:
        return tuple(t for rule in self.rules for t in rule.deadlines(waiting))

    def counts(self) -> tuple[int, ...]:
        return tuple(k for rule in self.rules for k in rule.counts())

    def __str__(self) -> str:
        return "|".join(map(str, self.rules))


class AllOf(AnyOf):
    """Wait until all of the rules are met."""

    @property
    def approximate(self) -> bool:
        return all(rule.approximate for rule in self.rules)

    def enough(self, waiting: Waiting) -> bool:
        return all(rule.enough(waiting) for rule in self.rules)

    def __str__(self) -> str:
        return "&".join(f"({rule})" if type(rule) is AnyOf else str(rule) for rule in self.rules)


WaitLike: TypeAlias = Wait | int | str | Callable[[Waiting], bool] | None
_FORMS = (
    "a number of replies, a share of the workers such as 0.75n, 'decodable', 'all', a residual such as 5%, a deadline "
    "such as 0.5s or 3mad, joined by | or &"
)
_SUFFIXES: dict[str, tuple[Callable[[float], Wait], str]] = {
    "%": (lambda percent: ResidualBelow(percent / 100), "a residual to wait for must be above 0% and at most 100%"),
    "mad": (Adaptive, "a deadline in median absolute deviations must be at least 0mad"),
    "s": (Deadline, "a deadline must be above 0 s"),
    "n": (Fraction, "a share of the workers to wait for must be above 0n and at most 1n"),
}

_UNITS = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "percent": "%", "mads": "mad"}  # as others write them


def _misspelt(spec: str) -> BadInput:
    """Return the error about a part of a rule that cannot be read, with what may have been meant."""
    name = re.fullmatch(r"([a-z][\w-]*)(:.*)?", spec, re.IGNORECASE)
    if name is not None:
        names = [*registry.entries, "all"]
        hint = suggest(name[1].lower(), names, f"wait should be {_FORMS}")
        return UnknownName(f"wait rule '{name[1]}'", "; ".join([hint, *installed.failures()]))
    number = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)([a-z]+)", spec, re.IGNORECASE)
    unit = number[2].lower() if number else ""
    suffix = _UNITS.get(unit, unit if unit in _SUFFIXES else "")
    hint = f"; did you mean '{number[1]}{suffix}'?" if number and suffix else ""
    return BadInput(f"wait should be {_FORMS}; got '{spec}'{hint}")


def _rule(spec: str, replies: int) -> Wait:
    if spec == "all":
        return Count(replies)
    if spec[:1].isalpha() and spec.partition(":")[0] in registry:
        return registry.build(spec)
    suffix = next(filter(spec.endswith, _SUFFIXES), "")
    try:
        number = float(spec.removesuffix(suffix)) if suffix else int(spec)
    except ValueError:
        raise _misspelt(spec) from None
    if suffix:
        rule, requirement = _SUFFIXES[suffix]
        try:
            return rule(number)
        except BadInput:
            raise BadInput(f"{requirement}, got '{spec}'") from None
    check_range("wait", number, 1, replies, " (the number of replies)")
    return Count(int(number))


def wait_rule(wait: WaitLike, *, replies: int) -> Wait:
    """Return the rule that a setting specifies; ``replies``: the largest number of replies in a round.

    >>> str(wait_rule("11", replies=30)), str(wait_rule("5%|0.5s", replies=30))
    ('11', '5%|0.5s')
    """
    if wait is None:
        return Decodable()
    if isinstance(wait, Wait):
        return wait
    if callable(wait):
        return Predicate(wait)
    spec = str(wait).replace(" ", "")
    depths = [0, *bracket_depths(spec)]
    if min(depths) < 0 or depths[-1]:
        raise BadInput(f"the brackets of wait='{wait}' do not match; wait should be {_FORMS}")
    return _parse(spec, replies)


def _parse(spec: str, replies: int) -> Wait:
    """Return the rule of ``a | b & (c | d)``, in which ``&`` binds tighter."""
    for sign, join in (("|", AnyOf), ("&", AllOf)):
        parts = split_outside(spec, sign)
        if len(parts) > 1:
            return join(*(_parse(term, replies) for term in parts))
    return _parse(spec[1:-1], replies) if spec[:1] + spec[-1:] == "()" else _rule(spec, replies)
