"""An item of the gallery: settings, one table, claims with criteria, and panels of a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from anyk.papers.table import Table

if TYPE_CHECKING:
    from anyk.papers.lab import Lab
    from anyk.papers.pictures import Panel

Word = Literal["holds", "holds in part", "does not hold"]


class Verdict(NamedTuple):
    """What became of one claim: in words what the ``paper`` says and what was found ``here``."""

    claim: str
    paper: str
    here: str
    word: Word


class Claim(Protocol):
    """Something that a paper says, with a criterion that was fixed before anything was run."""

    @property
    def text(self) -> str:
        """What it says."""
        ...

    def judge(self, table: Table) -> Verdict:
        """Whether the numbers bear it out."""
        ...


@dataclass(frozen=True)
class Value:
    """A number, met within ``within`` of it (relative); by default an exact one, met to rounding.

    ``reason``: why this much is allowed where the number is measured. ``least``: "up to" and "at least" claims are also
    met by more. ``says``: the paper's words where the number follows from them but is not printed.
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
        """See :class:`Claim`."""
        value = self.here(table)
        paper = self.says or f"{self.paper:.8g}{self.unit}"
        if not isfinite(value):
            return Verdict(self.text, paper, "no number: not reached", "does not hold")
        near = self._error(value) <= self.within or (self.least and value >= self.paper)
        word: Word = "holds" if near else "holds in part" if self._same_direction(value) else "does not hold"
        digits = 8 if self.within < 1e-3 else 3
        test = self._allowed() + (f": {self.reason}" if self.reason else "")
        return Verdict(self.text, paper, f"{value:.{digits}g}{self.unit} (test: {test})", word)

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
    """A measured ratio, of which 1 is no effect: *holds in part* where it misses the number but not the direction."""

    within: float = 0.25
    reason: str = "printed with one digit"

    def _same_direction(self, value: float) -> bool:
        return (value > 1.0) == (self.paper > 1.0)


@dataclass(frozen=True)
class Percentage(Value):
    """A measured difference in per cent, of which 0 is no effect; ``within`` is in percentage points."""

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
    """Things are printed in an order; ``here`` gives their numbers, which must fall from one to the next."""

    text: str
    names: Sequence[str]
    here: Callable[[Table], Sequence[float]]

    def judge(self, table: Table) -> Verdict:
        """See :class:`Claim`."""
        found = list(self.here(table))
        kept = all(a > b for a, b in pairwise(found))
        shown = (" > " if kept else ", ").join(f"{value:.3g}" if isfinite(value) else "never" for value in found)
        return Verdict(self.text, " > ".join(self.names), shown, "holds" if kept else "does not hold")


@dataclass(frozen=True)
class Criterion:
    """A claim in words with a test of it: ``here`` gives whether it passes, and the numbers in words."""

    text: str
    paper: str
    here: Callable[[Table], tuple[bool, str]]

    def judge(self, table: Table) -> Verdict:
        """See :class:`Claim`."""
        passed, shown = self.here(table)
        return Verdict(self.text, self.paper, shown, "holds" if passed else "does not hold")


@dataclass(frozen=True)
class Item:
    """One figure or table of a paper.

    ``minutes``: of the full size, on two cores; ``clock``: ``simulated``, ``processes`` or ``none`` (closed forms
    alone); ``seeds``: over which numbers are averaged where nobody says; ``differs``: from the paper, in words;
    ``columns``: of the table that is shown, in order.
    """

    name: str
    title: str
    source: str
    minutes: float
    table: Callable[[Lab], Table]
    claims: Sequence[Claim]
    panels: Sequence[Panel]
    columns: Sequence[str]
    differs: str
    clock: Literal["simulated", "processes", "none"] = "simulated"
    seeds: int = 3

    def verdicts(self, table: Table) -> list[Verdict]:
        """Of all claims, in order."""
        return [claim.judge(table) for claim in self.claims]


def overall(verdicts: Sequence[Verdict]) -> Word:
    """The word for an item: that of its claims where they agree, else *holds in part*.

    >>> overall([Verdict("", "", "", "holds"), Verdict("", "", "", "does not hold")])
    'holds in part'
    """
    words = {verdict.word for verdict in verdicts}
    return words.pop() if len(words) == 1 else "holds in part"
