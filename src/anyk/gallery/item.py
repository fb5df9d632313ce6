"""An item of the gallery: settings, one table, claims with criteria, and panels of a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from anyk.gallery.table import Table

if TYPE_CHECKING:
    from anyk.gallery.lab import Lab
    from anyk.gallery.pictures import Panel

Word = Literal["holds", "holds in part", "does not hold"]
_NEAR = 0.25  # a printed ratio is met within so much of it


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
class Ratio:
    """A printed number, met within 25 %; ``least``: "up to" and "at least" claims are also met by more."""

    text: str
    paper: float
    here: Callable[[Table], float]
    unit: str = ""
    least: bool = False

    def judge(self, table: Table) -> Verdict:
        """See :class:`Claim`."""
        found = self.here(table)
        near = abs(found / self.paper - 1.0) <= _NEAR or (self.least and found >= self.paper)
        right = (found > 1.0) == (self.paper > 1.0)  # of a ratio at least the direction
        word: Word = "holds" if near else "holds in part" if right else "does not hold"
        here = f"{found:.3g}{self.unit}" if isfinite(found) else "no number: not reached"
        return Verdict(self.text, f"{self.paper:g}{self.unit}", here, word)


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
