"""The suite that defines what a wait rule is: anyk's own pass, and each thing that it must find."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import anyk
from anyk.strategies import Count, Deadline, Decodable, Predicate, Wait, wait, wait_rules
from anyk.testing import check_wait_rule

pytestmark = pytest.mark.in_process


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["decodable", "all", "3", "0.5n", "5%", "40%", "0.5s", "3mad", "2&3mad", "3|0.5s", "3&0.5s", "(5%|3)&0.2s",
     "0.1s|2s", "decodable&1s"],
)  # fmt: skip
def test_anyks_rules_pass(spec: str) -> None:
    check_wait_rule(spec)


def test_every_registered_rule_is_tested_here() -> None:
    built_in = {entry.name for entry in wait_rules if inspect.getmodule(entry.build) is wait and not entry.origin}
    assert built_in == {"decodable", "count", "fraction", "residual", "deadline", "adaptive"}


def test_a_function_of_python_passes() -> None:
    check_wait_rule(lambda waiting: 2 in waiting.replied)
    check_wait_rule(Deadline(0.2) | Predicate(lambda waiting: waiting.replies >= 3))


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_any_number_of_workers_will_do(workers: int) -> None:
    check_wait_rule("decodable|1s", workers=workers)


RULES: dict[str, tuple[Callable[[], Any], str]] = {}


def wrong(sentence: str) -> Callable[[Any], Any]:
    def add(kind: type[Wait]) -> type[Wait]:
        cls_made = dataclass(frozen=True)(kind)
        name = f"test-{kind.__name__.lower()}"
        cls_made.name = name
        RULES[name] = cls_made, sentence
        return cls_made

    return add


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name, (kind, _) in RULES.items():
        wait_rules.register(name)(kind)
    yield
    for name in RULES:
        del wait_rules.entries[name]


@wrong("is False .* after it was True")
class Exactly(Wait):
    """An exact number: a reply more, and it waits for ever."""

    number: int = 3

    def enough(self, waiting: Any) -> bool:
        return waiting.replies == self.number


@wrong("is False .* after it was True")
class Soon(Wait):
    """Only before a time."""

    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= 2 and waiting.elapsed < 0.5


@wrong("although the sum is not exact")
class Hasty(Wait):
    """Claims to be exact."""

    approximate = False

    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= 4


@wrong("is True without a reply")
class Impatient(Wait):
    seconds: float = 0.5

    def enough(self, waiting: Any) -> bool:
        return waiting.elapsed >= self.seconds - 1e-6

    def deadlines(self, waiting: Any) -> Any:
        return (self.seconds,)


@wrong("becomes True without a reply.*deadlines.. names no time, asked once")
class Unannounced(Wait):
    seconds: float = 0.5

    def enough(self, waiting: Any) -> bool:
        return waiting.replies > 0 and waiting.elapsed >= self.seconds


@wrong("becomes True without a reply.*deadlines.. names 2")
class AnnouncedLate(Unannounced):
    def deadlines(self, waiting: Any) -> Any:
        return (2.0,)


@wrong("the rule does not hold, as the time since the round began is rounded")
class Rounded(Unannounced):
    seconds: float = 0.3

    def deadlines(self, waiting: Any) -> Any:
        return (self.seconds,)


@wrong("depends on earlier calls|is False .* after it was True")
class Counting(Wait):
    """Is true from the first round on that it has seen complete."""

    def enough(self, waiting: Any) -> bool:
        if waiting.replies == waiting.expected:
            self.__dict__["complete"] = True
        return waiting.replies > 0 and self.__dict__.get("complete", False)


@wrong("reads recent, which is empty in a run unless the rule sets remembers")
class Forgetful(Wait):
    def enough(self, waiting: Any) -> bool:
        return waiting.replies > 0 and waiting.elapsed > sum(waiting.recent)


@wrong("deadlines.. reads recent")
class ForgetfulDeadline(Deadline):
    seconds: float = 1.0

    def deadlines(self, waiting: Any) -> Any:
        return (min(waiting.recent, default=self.seconds),)


@wrong("is read back as another rule")
class Abridged(Wait):
    """Its text leaves out a field."""

    least: int = 4

    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= self.least

    def __str__(self) -> str:
        return self.name


@wrong("cannot be read back")
class Unreadable(Wait):
    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= 2

    def __str__(self) -> str:
        return "when two are there"


@wrong("says that .* replies end a round")
class Choosy(Wait):
    """Claims that the number of replies decides, and looks at who they are."""

    predictable = True

    def enough(self, waiting: Any) -> bool:
        return 0 in waiting.replied and waiting.replies >= 2


@wrong("says that .* replies end a round")
class Gap(Wait):
    """Claims the same, and looks at when they came."""

    predictable = True

    def enough(self, waiting: Any) -> bool:
        times = getattr(waiting, "arrivals", ())
        return waiting.replies >= 2 and times[1] - times[0] > 0.01

    def required_replies(self, workers: int, seconds: float, residual_of: Any) -> int:
        return 2


@wrong("required_replies.. says that 1 replies end a round")
class Optimistic(Count):
    number: int = 3

    def required_replies(self, workers: int, seconds: float, residual_of: Any) -> int:
        return 1


@wrong("a change that changes.. does not name")
class Unplanned(Wait):
    """Names its deadline for rounds, not for planners."""

    predictable = True

    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= (1 if waiting.elapsed >= 0.5 - 1e-6 else 4)

    def deadlines(self, waiting: Any) -> Any:
        return (0.5,)

    def changes(self) -> Any:
        return ()


@wrong("predictable, but required_replies.. after 0 s is None")
class Silent(Decodable):
    def required_replies(self, workers: int, seconds: float, residual_of: Any) -> None:
        return None


@wrong("returns 0, not True or False")
class Number(Wait):
    def enough(self, waiting: Any) -> Any:
        return waiting.replies and 3


@wrong("deadlines.. names -1")
class Negative(Wait):
    def enough(self, waiting: Any) -> bool:
        return waiting.replies >= 2

    def deadlines(self, waiting: Any) -> Any:
        return (-1.0,)


@wrong("counts.. names 0")
class NoCount(Decodable):
    def counts(self) -> Any:
        return (0,)


@wrong("fails: AttributeError")
class Misspelt(Wait):
    def enough(self, waiting: Any) -> bool:
        return bool(waiting.replys)


@pytest.mark.parametrize("name", list(RULES))
def test_what_is_wrong_is_found(name: str) -> None:
    kind, sentence = RULES[name]
    with pytest.raises(AssertionError, match=sentence):
        check_wait_rule(kind(least=2) if name == "test-abridged" else kind())


def test_a_wrong_rule_is_found_inside_a_combination() -> None:
    kind, sentence = RULES["test-unannounced"]
    with pytest.raises(AssertionError, match=sentence):
        check_wait_rule(kind() | Count(5))
    with pytest.raises(AssertionError, match="although the sum is not exact"):
        check_wait_rule(RULES["test-hasty"][0]() & Deadline(0.01))


def test_a_rule_that_does_not_exist_is_bad_input() -> None:
    with pytest.raises(anyk.BadInput, match="no wait rule 'test-exacly'; did you mean 'test-exactly'"):
        check_wait_rule("test-exacly")


def test_unconfirmed_expected_seconds_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the fault is in the planner itself: the rule's own answers are right."""
    right = anyk.strategies.Rounds.facts.fget  # type: ignore[attr-defined]

    def wrong_facts(self: Any) -> Any:
        facts = right(self)
        return replace(facts, pace=lambda law: replace(facts.pace(law), seconds=2.0))

    monkeypatch.setattr(anyk.strategies.Rounds, "facts", property(wrong_facts))
    with pytest.raises(AssertionError, match="takes 2 s by required_replies.. and changes.., in a simulation"):
        check_wait_rule("3")
