"""Wait rules: what each means, how they combine, how they are written and read back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput, UnknownName
from anyk.strategies import (
    Adaptive,
    AllOf,
    AnyOf,
    Count,
    Deadline,
    Decodable,
    Predicate,
    ResidualBelow,
    Wait,
    wait_rules,
)
from anyk.strategies.wait import register_wait, wait_rule

pytestmark = pytest.mark.in_process


class Moment(NamedTuple):
    """A round as a rule sees it."""

    replies: int
    decodable: bool
    residual: float
    elapsed: float
    replied: tuple[int, ...]
    recent: tuple[float, ...] = ()


def moments() -> Iterator[Moment]:
    for replies, residual, elapsed in product((0, 1, 2, 3, 8), (0.0, 0.03, 0.05, 0.3, 1.0), (0.0, 0.5, 0.75, 2.0, 3.0)):
        yield Moment(replies, residual == 0.0 and replies > 0, residual, elapsed, tuple(range(replies)))


def same(rule: Wait, meaning: Callable[[Moment], bool]) -> bool:
    return all(rule.enough(moment) == meaning(moment) for moment in moments())


def decodable(m: Moment) -> bool:
    return m.decodable


def three(m: Moment) -> bool:
    return m.replies >= 3


def near(m: Moment) -> bool:
    return m.residual < 0.05


def late(m: Moment) -> bool:
    return m.replies > 0 and m.elapsed >= 0.5


# ------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("decodable", decodable),
        ("3", three),
        (" 3 ", three),
        ("all", lambda m: m.replies >= 8),
        ("5%", near),
        ("0.5s", late),
        ("500e-3s", late),
        ("3|0.5s", lambda m: three(m) or late(m)),
        ("3&0.5s", lambda m: three(m) and late(m)),
        ("5%|3&0.5s", lambda m: near(m) or (three(m) and late(m))),
        ("3&0.5s|5%", lambda m: near(m) or (three(m) and late(m))),
        ("3 & 0.5s | 5% & decodable", lambda m: (three(m) and late(m)) or (near(m) and decodable(m))),
        ("5%|3|0.5s", lambda m: near(m) or three(m) or late(m)),
        ("5%&3&0.5s", lambda m: near(m) and three(m) and late(m)),
        ("(3&0.5s)|5%", lambda m: near(m) or (three(m) and late(m))),
    ],
)
def test_what_a_written_rule_means(text: str, meaning: Callable[[Moment], bool]) -> None:
    assert same(wait_rule(text, replies=8), meaning)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("(5%|3)&0.5s", lambda m: (near(m) or three(m)) and late(m)),
        ("0.5s&(5%|3)", lambda m: (near(m) or three(m)) and late(m)),
        ("(5%|0.5s)&(3|decodable)", lambda m: (near(m) or late(m)) and (three(m) or decodable(m))),
    ],
)
def test_brackets_mean_what_they_mean_everywhere(text: str, meaning: Callable[[Moment], bool]) -> None:
    assert same(wait_rule(text, replies=8), meaning)


def test_brackets_must_match() -> None:
    for rule in ("(3", "3)", "((3)", "3|(0.5s", ")3("):
        with pytest.raises(BadInput, match="wait"):
            wait_rule(rule, replies=8)


def test_what_is_not_text() -> None:
    assert wait_rule(None, replies=8) == Decodable()
    assert wait_rule(3, replies=8) == Count(3)
    given_rule = Deadline(0.5)
    assert wait_rule(given_rule, replies=8) is given_rule
    rule = wait_rule(lambda waiting: 2 in waiting.replied, replies=8)
    assert isinstance(rule, Predicate) and same(rule, lambda m: m.replies > 2)
    assert str(Predicate(three)) == "<three>"


def test_python_operators_combine() -> None:
    assert same(Count(3) | Deadline(0.5), lambda m: three(m) or late(m))
    assert same(Count(3) & Deadline(0.5), lambda m: three(m) and late(m))
    assert same((ResidualBelow(0.05) | Count(3)) & Deadline(0.5), lambda m: (near(m) or three(m)) and late(m))
    assert same(ResidualBelow(0.05) | Count(3) & Deadline(0.5), lambda m: near(m) or (three(m) and late(m)))
    assert same(Predicate(three) & Decodable(), lambda m: three(m) and decodable(m))


def test_a_deadline_without_a_reply_is_not_enough() -> None:
    assert not Deadline(0.5).enough(Moment(0, False, 1.0, 9.0, ()))
    assert Deadline(0.5).enough(Moment(1, False, 0.9, 0.5, (4,)))
    assert not Deadline(0.5).enough(Moment(1, False, 0.9, 0.49, (4,)))


def test_a_residual_must_be_below_its_bound() -> None:
    assert not ResidualBelow(0.05).enough(Moment(3, False, 0.05, 0.0, (0, 1, 2)))
    assert ResidualBelow(0.05).enough(Moment(3, False, 0.0499, 0.0, (0, 1, 2)))


def test_what_rules_tell_the_round() -> None:
    """The deadlines it must set alarms for, the counts named, and whether it may end without the exact sum."""
    rule = (Count(3) | Deadline(0.5)) & (Deadline(2.0) | ResidualBelow(0.1))
    moment = Moment(0, False, 1.0, 0.0, ())
    assert sorted(rule.deadlines(moment)) == [0.5, 2.0] and rule.counts() == (3,)
    assert Decodable().deadlines(moment) == () and Decodable().counts() == ()
    for exact in (Decodable(), Decodable() & Deadline(0.5), Decodable() | Decodable() & Count(3)):
        assert not exact.approximate
    for loose in (Count(3), Decodable() | Deadline(0.5), Count(3) & Deadline(0.5), ResidualBelow(0.1)):
        assert loose.approximate


# ------------------------------------------------------------------------------------------- there and back

leaves = st.one_of(
    st.integers(1, 8).map(Count),
    st.just(Decodable()),
    st.sampled_from([0.03, 0.05, 0.1, 0.29, 0.3, 0.57, 0.58, 1.0]).map(ResidualBelow),
    st.sampled_from([0.25, 0.5, 0.7, 2.0, 2.5, 30.0]).map(Deadline),
    st.sampled_from([0.0, 1.5, 3.0]).map(Adaptive),
)
flat = st.lists(st.lists(leaves, min_size=1, max_size=3), min_size=1, max_size=3)


def unfolded(groups: list[list[Any]]) -> Wait:
    either = [group[0] if len(group) == 1 else AllOf(*group) for group in groups]
    return either[0] if len(either) == 1 else AnyOf(*either)


@settings(deadline=None, max_examples=80)
@given(flat.map(unfolded))
def test_a_rule_is_read_back_from_how_it_is_written(rule: Wait) -> None:
    parsed = wait_rule(str(rule), replies=8)
    assert same(parsed, rule.enough) and str(parsed) == str(rule)


@settings(deadline=None, max_examples=80)
@given(
    st.recursive(leaves, lambda rules: st.builds(AllOf, rules, rules) | st.builds(AnyOf, rules, rules), max_leaves=5)
)
def test_a_nested_rule_is_read_back_from_how_it_is_written(rule: Wait) -> None:
    """A run is resumed and replayed from its strategy's spec."""
    parsed = wait_rule(str(rule), replies=8)
    assert same(parsed, rule.enough) and str(parsed) == str(rule)


@settings(deadline=None, max_examples=80)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1.0))
def test_rules_are_written_with_every_digit(seconds: float, bound: float) -> None:
    assert wait_rule(str(Deadline(seconds)), replies=8) == Deadline(seconds)
    parsed = wait_rule(str(ResidualBelow(bound)), replies=8)
    assert isinstance(parsed, ResidualBelow) and parsed.bound == pytest.approx(bound, rel=1e-14)


# ------------------------------------------------------------------------------------------- complaints

FORMS = "wait should be a number of replies, a share of the workers such as 0.75n, 'decodable', 'all', a residual such as 5%, a deadline such as 0.5s or 3mad, joined by"


@pytest.mark.parametrize(
    ("wait", "sentence"),
    [
        (0, "wait must be 1 to 8 (the number of replies), got 0"),
        (9, "wait must be 1 to 8 (the number of replies), got 9"),
        ("-1", "wait must be 1 to 8 (the number of replies), got -1"),
        ("5%|9", "wait must be 1 to 8 (the number of replies), got 9"),
        ("0%", "a residual to wait for must be above 0% and at most 100%, got '0%'"),
        ("101%", "a residual to wait for must be above 0% and at most 100%, got '101%'"),
        ("nan%", "a residual to wait for must be above 0% and at most 100%, got 'nan%'"),
        ("0s", "a deadline must be above 0 s, got '0s'"),
        ("-1s", "a deadline must be above 0 s, got '-1s'"),
        ("infs", "a deadline must be above 0 s, got 'infs'"),
        ("soon", "no wait rule 'soon'; " + FORMS + " | or &"),
        ("guess", "no wait rule 'guess'; " + FORMS + " | or &"),
        ("decodeable", "no wait rule 'decodeable'; did you mean 'decodable'?"),
        ("3&(dedline:seconds=1|5)", "no wait rule 'dedline'; did you mean 'deadline'?"),
        ("ALL", "no wait rule 'ALL'; did you mean 'all'?"),
        ("deadline:second=1", "wait rule 'deadline' has no key 'second'; did you mean 'seconds'?"),
        ("3|0.5sec", FORMS + " | or &; got '0.5sec'; did you mean '0.5s'?"),
        ("5percent", FORMS + " | or &; got '5percent'; did you mean '5%'?"),
        ("0.75N", FORMS + " | or &; got '0.75N'; did you mean '0.75n'?"),
        ("500ms", FORMS + " | or &; got '500ms'"),
        ("", FORMS + " | or &; got ''"),
        ("3|", FORMS + " | or &; got ''"),
        ("3&&4", FORMS + " | or &; got ''"),
        (2.5, FORMS + " | or &; got '2.5'"),
        ("0.5", FORMS + " | or &; got '0.5'"),
    ],
)
def test_what_cannot_be_waited_for(wait: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        wait_rule(wait, replies=8)
    assert str(caught.value) == sentence


def test_a_plug_in_rule_is_suggested_and_its_absence_is_unknown() -> None:
    @register_wait("test-quorum")
    @dataclass(frozen=True)
    class Quorum(Wait):
        least: int = 2

        def enough(self, waiting: Any) -> bool:
            return bool(waiting.replies >= self.least)

    try:
        with pytest.raises(UnknownName, match=r"no wait rule 'test-qorum'; did you mean 'test-quorum'\?"):
            wait_rule("(test-qorum:least=3)|1s", replies=8)
    finally:
        del wait_rules.entries["test-quorum"]
    with pytest.raises(UnknownName) as caught:  # by which a run folder asks for its plug-ins
        wait_rule("test-quorum:least=3", replies=8)
    assert caught.value.what == "wait rule 'test-quorum'"


# ------------------------------------------------------------------------------------------- a deadline that adapts


def test_an_adapting_deadline_is_median_plus_deviations() -> None:
    rule = Adaptive(3.0)
    seen = tuple(
        1.0 + 0.1 * (i % 5) for i in range(40)
    )  # median 1.2, absolute deviations 0.2 0.1 0 0.1 0.2: median 0.1
    assert rule.after(seen) == pytest.approx(1.5)
    assert not rule.enough(Moment(1, False, 1.0, 1.49, (0,), seen))
    assert rule.enough(Moment(1, False, 1.0, 1.5, (0,), seen))
    assert not rule.enough(Moment(0, False, 1.0, 1.5, (), seen))  # and a reply
    assert rule.deadlines(Moment(1, False, 1.0, 0.0, (0,), seen)) == pytest.approx((1.5,))
    assert rule.after(seen[:29]) is None  # too few to say
    assert not rule.enough(Moment(1, False, 1.0, 9.0, (0,), seen[:29]))
    assert str(wait_rule("15&3mad", replies=30)) == "15&3mad"
    with pytest.raises(BadInput, match="median absolute deviations must be at least 0mad, got '-1mad'"):
        wait_rule("-1mad", replies=30)


def test_a_run_with_an_adapting_deadline_leaves_the_slow_behind() -> None:
    cluster = anyk.cluster("simulated", workers=10, delays="bimodal:fast=0.1,slow=5,probability=0.1", seed=1)
    run = anyk.train(anyk.testing.Squares(10), "uncoded:wait=5&3mad", cluster, steps=40)
    said = [note["text"] for note in run.notes if note["kind"] == "strategy"]
    assert said == ["wait=5&3mad waits for all until enough arrivals have been seen", "wait=5&3mad adapts"]
    assert run.history["replies"][1:4].tolist() == [10, 10, 10] and run.history["replies"][4:].max() < 10
    assert str(anyk.replay(run, problem=anyk.testing.Squares(10))).endswith("the same bits of model")


# ------------------------------------------------------------------------------------------- rules of plug-ins


def test_a_registered_rule_works_as_a_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyk.strategies.wait_rules, "entries", dict(anyk.strategies.wait_rules.entries))

    @anyk.strategies.register_wait("quorum")
    @dataclass(frozen=True)
    class Quorum(Wait):
        least: int = 2
        seconds: float = 0.0

        def enough(self, waiting: Any) -> bool:
            return waiting.replies >= self.least and waiting.elapsed >= self.seconds

    assert wait_rule("quorum:least=3", replies=8) == Quorum(3)
    for spec in ("frc:load=2,wait=(quorum:least=3,seconds=0.5)", "uncoded:wait=5%|(quorum:least=3,seconds=0.5)&0.2s"):
        strategy = anyk.strategy(spec, workers=8)
        assert strategy.spec == spec and anyk.strategy(strategy.spec, workers=8).spec == spec
    assert (
        anyk.train(anyk.testing.Squares(10), "uncoded:wait=quorum:least=3", "simulated", workers=6, steps=4).steps == 4
    )
    with pytest.raises(BadInput, match=r"wait rule 'quorum' has no key 'most'; its keys: least, seconds"):
        wait_rule("quorum:most=3", replies=8)
