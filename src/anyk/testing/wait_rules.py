"""Requirements of every wait rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from anyk.base import AtLeastOne, BadInput, keyed_generator, typed
from anyk.codes import Code
from anyk.codes import code as build_code
from anyk.delays import Exponential
from anyk.fleet import pace, simulated_pace
from anyk.strategies import AnyOf, Predicate, Rounds, Wait, Waiting, WaitLike, wait_rule
from anyk.testing.failures import failing_as

_ROUNDS = 30  # of each code
_TIMES = 16  # moments that are looked at between two arrivals
_ALARM = 1e-5  # seconds by which a rule may need more than its deadline, as times are rounded
_UPDATES = 400  # of a simulation, which is compared with the closed form


@typed
def check_wait_rule(wait: WaitLike, *, workers: AtLeastOne = 6, seed: int = 0) -> None:
    """Check all properties of a wait rule that rounds and planners rely on; raise AssertionError for the first failing.

    ``enough`` depends on what it is shown alone; it is False before the first reply; once it is True in a round, it
    remains True; if the rule is not ``approximate``, the replies then give the exact sum. Where time alone makes it
    True, ``deadlines`` names the time, also if it is rounded by an ulp. A rule that uses ``recent`` sets ``remembers``.
    The text of a rule is read back as the same rule. If the rule is ``predictable``, the number of replies and the
    seconds alone decide in uncoded rounds, ``required_replies`` and ``changes`` agree with ``enough``, and the expected
    seconds of a round agree with a simulation.

    ``wait``: a rule or its spec, checked in random rounds of an uncoded sum and, if ``workers`` are even, of a
    repetition code.

    >>> check_wait_rule("5%|0.5s")
    """
    rule = wait_rule(wait, replies=workers)
    codes = [build_code("uncoded", workers=workers)]
    if workers % 2 == 0:
        codes.append(build_code("frc:load=2", workers=workers))
    with failing_as(f"the rule {type(rule).__name__} fails"):
        for code in codes:
            random = keyed_generator(seed, "check-wait-rule", code.spec, workers)
            rounds = [_Round(rule, code, random) for _ in range(_ROUNDS)]
            for one in rounds:
                one.check()
            _check_alone(rule, [answer for one in rounds for answer in one.answers], random)
        _check_text(rule, rounds, workers)
        _check_planning(rule, workers, keyed_generator(seed, "check-wait-rule", "planning"))


@dataclass
class _Moment:
    """A round with some replies, as :class:`~anyk.strategies.Waiting` reads it."""

    code: Code
    arrivals: dict[int, float]  # seconds to each reply so far, in order
    now: float
    began: float = 0.0
    recent: tuple[float, ...] = ()
    decoder: Any = field(init=False)
    task_of: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.expected = self.code.expected
        self.task_of = {reply: number for number, reply in enumerate(self.arrivals)}
        self.decoder = self.code.decoder()
        for reply in self.arrivals:
            self.decoder.add(reply)

    def __str__(self) -> str:
        seconds = ", ".join(f"{time:.4g}" for time in self.arrivals.values())
        return f"{self.now - self.began:.4g} s after the start, with replies of '{self.code.spec}' after {seconds} s"


class _Watched(Waiting):
    """A view that notes whether ``recent`` is read."""

    __slots__ = ("reads_recent",)

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.reads_recent = False

    @property
    def recent(self) -> Sequence[float]:
        """Seconds to each reply in the last rounds."""
        self.reads_recent = True
        return super().recent


def _asked(rule: Wait, moment: _Moment) -> bool:
    """Return whether a round may end at a moment, after checks of the answer."""
    view = _Watched(moment)
    answer = rule.enough(view)
    assert isinstance(answer, (bool, np.bool_)), f"enough() returns {answer!r}, not True or False"
    assert not view.reads_recent or rule.remembers, (
        "enough() reads recent, which is empty in a run unless the rule sets remembers = True"
    )
    return bool(answer)


class _Round:
    """A random round: its moments in order, and what the rule says of them."""

    def __init__(self, rule: Wait, code: Code, random: np.random.Generator) -> None:
        self.rule, self.code = rule, code
        times = random.exponential(size=code.replies) * 10.0 ** random.uniform(-2, 1)
        self.arrivals = {int(reply): float(times[reply]) for reply in np.argsort(times)}
        self.began = float(random.choice([0.0, random.uniform(0.0, 1e4)]))
        self.recent = tuple(random.exponential(size=60).tolist()) if rule.remembers and random.random() < 0.7 else ()
        self.deadlines = self._deadlines()
        self.moments = list(self._sampled())
        self.answers: list[tuple[_Moment, bool]] = []

    def _moment(self, replies: int, seconds: float) -> _Moment:
        arrivals = dict(list(self.arrivals.items())[:replies])
        return _Moment(self.code, arrivals, self.began + seconds, self.began, self.recent)

    def _deadlines(self) -> list[float]:
        """Return the deadlines that the rule names at the start of the round."""
        view = _Watched(self._moment(0, 0.0))
        named = tuple(self.rule.deadlines(view))
        assert named == tuple(self.rule.deadlines(view)), "deadlines() of the same round differ from call to call"
        assert not view.reads_recent or self.rule.remembers, (
            "deadlines() reads recent, which is empty in a run unless the rule sets remembers = True"
        )
        for seconds in named:
            assert 0.0 <= seconds < float("inf"), f"deadlines() names {seconds!r}, not seconds after the round's start"
        return sorted(map(float, named))

    def _sampled(self) -> Iterator[_Moment]:
        """Yield moments: each arrival, and times between arrivals and beyond the last."""
        times = [0.0, *self.arrivals.values()]
        last = max([times[-1], *self.deadlines]) * 1.5 + 1.0
        for replies, (start, end) in enumerate(pairwise([*times, last])):
            between = [start, *np.linspace(start, end, _TIMES, endpoint=False).tolist()[1:]]
            between += [deadline + _ALARM for deadline in self.deadlines if start <= deadline + _ALARM < end]
            for seconds in sorted(between):
                yield self._moment(replies, seconds)

    def check(self) -> None:
        """Check what the rule says of one moment after another."""
        met: _Moment | None = None
        before: _Moment | None = None
        for moment in self.moments:
            enough = _asked(self.rule, moment)
            self.answers.append((moment, enough))
            assert not enough or moment.arrivals, f"enough() is True without a reply, {moment}"
            assert not (enough and not self.rule.approximate) or moment.decoder.decodable, (
                f"enough() is True although the sum is not exact, but the rule is not approximate, {moment}"
            )
            assert enough or met is None, f"enough() is False {moment}, after it was True {met}"
            if enough and met is None:
                met = moment
                if before is not None and len(before.arrivals) == len(moment.arrivals):
                    self._check_named(before, moment)
            before = moment
        self._check_rounding()

    def _check_named(self, before: _Moment, moment: _Moment) -> None:
        """Check that a deadline is named if time alone made the rule true."""
        since, until = before.now - self.began, moment.now - self.began
        named = ", ".join(f"{deadline:.4g}" for deadline in self.deadlines) or "no time"
        assert any(since - _ALARM <= deadline <= until for deadline in self.deadlines), (
            f"enough() becomes True without a reply, between {since:.4g} and {until:.4g} s, but deadlines() names "
            f"{named}, asked once when the round begins: the round would not end until something else happens"
        )

    def _check_rounding(self) -> None:
        """Check that the rule holds when the alarm of its deadline rings, although the times are rounded."""
        for deadline in self.deadlines:
            replies = sum(seconds <= deadline for seconds in self.arrivals.values())
            if not _asked(self.rule, self._moment(replies, deadline + _ALARM)):
                continue
            for power in range(1, 20):
                began = 0.7 * 1.9**power
                moment = self._moment(replies, deadline)
                moment.began, moment.now = began, began + deadline
                if moment.now - began < deadline and not _asked(self.rule, moment):
                    raise AssertionError(
                        f"at its deadline of {deadline!r} s the rule does not hold, as the time since the round began "
                        f"is rounded to {moment.now - began!r} s: let it hold a microsecond earlier"
                    )


def _check_alone(rule: Wait, answers: Sequence[tuple[_Moment, bool]], random: np.random.Generator) -> None:
    """Ask about moments again, in another order: the answers must be the same."""
    for number in random.permutation(len(answers)).tolist():
        moment, before = answers[number]
        assert _asked(rule, moment) == before, f"enough() depends on earlier calls: it was {before} {moment}"


def _check_text(rule: Wait, rounds: Sequence[_Round], workers: int) -> None:
    """Read the rule's text, from which runs are resumed; rules with a function of Python have none."""
    spec = str(rule)
    if _has_function(rule):
        return
    try:
        parsed = wait_rule(spec, replies=workers)
    except BadInput as error:
        raise AssertionError(f"the rule's text '{spec}' cannot be read back: {error}") from None
    for one in rounds:
        for moment in one.moments:
            assert _asked(parsed, moment) == _asked(rule, moment), (
                f"the rule's text '{spec}' is read back as another rule, which differs {moment}"
            )


def _has_function(rule: Wait) -> bool:
    return isinstance(rule, Predicate) or (isinstance(rule, AnyOf) and any(map(_has_function, rule.rules)))


# ------------------------------------------------------------------------------------------- planning


def _check_planning(rule: Wait, workers: int, random: np.random.Generator) -> None:
    """Compare what planners ask with what the rule says of uncoded rounds."""
    for count in rule.counts():
        assert isinstance(count, int) and count >= 1, f"counts() names {count!r}, not a number of replies"
    code = build_code("uncoded", workers=workers)
    residuals = [code.decode(range(count)).residual if count else 1.0 for count in range(workers + 1)]
    ends = sorted({0.0, *rule.changes()})
    assert all(0.0 <= seconds < float("inf") for seconds in ends), f"changes() names {ends}"
    inside = [(first + second) / 2.0 for first, second in pairwise([*ends, ends[-1] * 2.0 + 1.0])]
    for change, seconds in zip(ends, inside, strict=True):
        required = rule.required_replies(workers, change, residuals.__getitem__)
        if required is None:
            assert not rule.predictable, f"the rule is predictable, but required_replies() after {change:.4g} s is None"
            return
        for later in (change, change + _ALARM, seconds):
            asked = rule.required_replies(workers, later, residuals.__getitem__)
            assert asked == required, (
                f"required_replies() is {required} after {change:.4g} s and {asked} after {later:.4g} s, a change that "
                "changes() does not name"
            )
        _check_required(rule, code, required, seconds, random)
    _check_pace(rule, workers)


def _check_required(rule: Wait, code: Code, required: int, seconds: float, random: np.random.Generator) -> None:
    """Ask whether any number of replies is enough after these seconds."""
    for replies in range(1, code.workers + 1):
        for _ in range(3):
            moment = _random_moment(code, replies, seconds, random)
            assert _asked(rule, moment) == (replies >= required), (
                f"required_replies() says that {required} replies end a round after {seconds:.4g} s, but enough() "
                f"is {_asked(rule, moment)} {moment}"
            )


def _random_moment(code: Code, replies: int, seconds: float, random: np.random.Generator) -> _Moment:
    """Return a moment with a number of replies of any workers at any times."""
    who = random.permutation(code.workers)[:replies].tolist()
    times = np.sort(random.uniform(0.0, seconds, size=replies)).tolist()
    return _Moment(code, dict(zip(who, times, strict=True)), seconds, recent=tuple(random.exponential(size=40)))


def _check_pace(rule: Wait, workers: int) -> None:
    strategy, delays = Rounds(build_code("uncoded", workers=workers), wait=rule), Exponential(mean=1.0)
    expected = pace(strategy, delays).seconds
    if expected is None:
        return
    simulated = simulated_pace(strategy, delays, updates=_UPDATES)
    assert abs(simulated.seconds - expected) <= 6.0 * simulated.error + 1e-3 * expected + 1e-5, (
        f"a round of exponential workers takes {expected:.4g} s by required_replies() and changes(), in a simulation "
        f"{simulated.seconds:.4g} ± {2.0 * simulated.error:.2g} s"
    )
