"""An item, a reproduced figure or table: settings, a table, claims with criteria, and panels of a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from anyk_papers.item_table import Table

if TYPE_CHECKING:
    from anyk_papers.lab import Lab
    from anyk_papers.pictures import Drawing

Word = Literal["holds", "holds in part", "does not hold"]


class Verdict(NamedTuple):
    """The verdict on a claim, with the paper's result and the result ``here`` in words."""

    claim: str
    paper: str
    here: str
    word: Word


class Claim(Protocol):
    """A statement of a paper, with a criterion that was fixed before the first run."""

    @property
    def text(self) -> str:
        """The statement."""
        ...

    def judge(self, table: Table) -> Verdict:
        """Return whether the numbers support the statement."""
        ...


@dataclass(frozen=True)
class Value:
    """A number with the relative tolerance ``within``, by default for exact numbers.

    ``reason``: the reason for the tolerance of a measured number. ``least``: larger numbers meet the claim as well, as
    for "up to" and "at least". ``says``: the paper's words, if the number follows from them but is not printed.
    """

    text: str
    paper: float
    here: Callable[[Table], float]
    unit: str = ""
    least: bool = False
    within: float = 1e-6
    reason: str = ""
    says: str = ""

    def judge(self, table: Table) -> Verdict:
        value = self.here(table)
        paper = self.says or f"{self.paper:.8g}{self.unit}"
        if not isfinite(value):
            return Verdict(claim=self.text, paper=paper, here="no number: not reached", word="does not hold")
        near = self._error(value) <= self.within or (self.least and value >= self.paper)
        word: Word = "holds" if near else "holds in part" if self._same_direction(value) else "does not hold"
        digits = 8 if self.within < 1e-3 else 3
        test = self._allowed() + (f": {self.reason}" if self.reason else "")
        return Verdict(claim=self.text, paper=paper, here=f"{value:.{digits}g}{self.unit} (test: {test})", word=word)

    def _error(self, value: float) -> float:
        """The relative distance from the paper's number."""
        return abs(value / self.paper - 1.0)

    def _same_direction(self, value: float) -> bool:
        """Return whether a number that misses the paper's is at least on the same side of no effect."""
        return False

    def _allowed(self) -> str:
        return f"within {100 * self.within:g} %" if self.within >= 1e-3 else f"equal to {self.within:g}"


@dataclass(frozen=True)
class Ratio(Value):
    """A measured ratio; 1 is no effect. It *holds in part* if it misses the number but not the direction."""

    within: float = 0.25
    reason: str = "printed with one digit"

    def _same_direction(self, value: float) -> bool:
        return (value > 1.0) == (self.paper > 1.0)


@dataclass(frozen=True)
class Percentage(Value):
    """A measured difference in per cent; 0 is no effect. ``within`` is in percentage points."""

    unit: str = " %"
    within: float = 5.0

    def _error(self, value: float) -> float:
        return abs(value - self.paper)

    def _same_direction(self, value: float) -> bool:
        return (value > 0.0) == (self.paper > 0.0)

    def _allowed(self) -> str:
        return f"within {self.within:g} points"


@dataclass(frozen=True)
class Order:
    """A printed order; ``here`` returns the numbers, which must be strictly decreasing."""

    text: str
    names: Sequence[str]
    here: Callable[[Table], Sequence[float]]

    def judge(self, table: Table) -> Verdict:
        numbers = list(self.here(table))
        falls = all(a > b for a, b in pairwise(numbers))
        in_words = (" > " if falls else ", ").join(f"{value:.3g}" if isfinite(value) else "never" for value in numbers)
        return Verdict(
            claim=self.text, paper=" > ".join(self.names), here=in_words, word="holds" if falls else "does not hold"
        )


@dataclass(frozen=True)
class Criterion:
    """A claim in words; ``here`` returns whether its test passes, and the numbers in words."""

    text: str
    paper: str
    here: Callable[[Table], tuple[bool, str]]

    def judge(self, table: Table) -> Verdict:
        passed, in_words = self.here(table)
        return Verdict(claim=self.text, paper=self.paper, here=in_words, word="holds" if passed else "does not hold")


@dataclass(frozen=True)
class Item:
    """A reproduced figure or table of a paper.

    ``minutes``: duration at full size, on two cores; ``clock``: ``simulated``, ``processes`` or ``none`` (closed forms
    only); ``seeds``: the default number of seeds over which numbers are averaged; ``differs``: the differences from
    the paper, in words; ``columns``: the columns of the table, in order.
    """

    name: str
    title: str
    source: str
    minutes: float
    table: Callable[[Lab], Table]
    claims: Sequence[Claim]
    panels: Sequence[Drawing]
    columns: Sequence[str]
    differs: str
    clock: Literal["simulated", "processes", "none"] = "simulated"
    seeds: int = 3

    def verdicts(self, table: Table) -> list[Verdict]:
        """Judge all claims, in order."""
        return [claim.judge(table) for claim in self.claims]


def overall(verdicts: Sequence[Verdict]) -> Word:
    """Return the verdict on an item: the verdict on all its claims if they agree, otherwise *holds in part*.

    >>> overall([Verdict("", "", "", "holds"), Verdict("", "", "", "does not hold")])
    'holds in part'
    """
    words = {verdict.word for verdict in verdicts}
    return words.pop() if len(words) == 1 else "holds in part"
