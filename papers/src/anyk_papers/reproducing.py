"""Running items, the figures and tables of papers, and writing tables, pictures, verdicts and a page of all items."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyk.base import AtLeastOne, BadInput, MissingPackage, as_bad_input, check_value, suggest
from anyk.runs.api import check_plain
from anyk_papers.gallery import items
from anyk_papers.item import Item, Verdict, Word, overall
from anyk_papers.item_table import Table
from anyk_papers.lab import Lab, Progress
from anyk_papers.pictures import draw

QUICK = "; quick: smaller than the paper, and than the title and the differences say"
_HEADER = ("claim", "paper", "here", "verdict")


@dataclass(frozen=True)
class Reproduction:
    """The result of an item. ``picture``: the file, or None if none was written."""

    item: Item
    table: Table
    verdicts: tuple[Verdict, ...]
    seeds: int
    quick: bool
    cluster: str
    seconds: float
    picture: Path | None

    @property
    def word(self) -> Word:
        """The verdict on the item."""
        return overall(self.verdicts)

    @property
    def setting(self) -> str:
        """The clock, the seeds and the size of the reproduction in words."""
        seeds = (
            "no random draws" if self.item.clock == "none" else f"seeds 0 to {self.seeds - 1}, mean (least to largest)"
        )
        clock_text = {"none": "closed forms", "simulated": "virtual clock"}.get(
            self.cluster, f"real clock, {self.cluster}"
        )
        return f"{clock_text}; {seeds}{QUICK if self.quick else ''}"

    def plain(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        return {
            "name": self.item.name,
            "title": self.item.title,
            "source": self.item.source,
            "verdict": self.word,
            "claims": [dict(zip(_HEADER, verdict, strict=True)) for verdict in self.verdicts],
            "clock": self.cluster,
            "seeds": self.seeds,
            "quick": self.quick,
            "differs": self.item.differs,
            "seconds": self.seconds,
            "table": self.table.plain(),
        }

    def markdown(self, picture: str | None = None) -> str:
        """Return the item's section of the gallery page."""
        columns = list(self.item.columns)
        lines = [f"## {self.item.name}: {self.word}", "", f"{self.item.title}. *{self.item.source}*", ""]
        if picture is not None:
            lines += [f"![{self.item.title}]({picture})", ""]
        lines += _markdown_table(_HEADER, [list(verdict) for verdict in self.verdicts])
        lines += ["", *_markdown_table(columns, self.table.cells(columns))]
        lines += ["", f"{self.setting[0].upper()}{self.setting[1:]}. Differs from the paper: {self.item.differs}", ""]
        return "\n".join(lines)


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(header)} |", "|" + " --- |" * len(header), *(f"| {' | '.join(row)} |" for row in escaped)]


def reproduce(
    item: Item | str,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    seeds: int | None = None,
    cluster: str | None = None,
    data_folder: str | Path | None = None,
    keep: str | Path | None = None,
    progress: Progress = lambda sentence, done, of: None,
) -> Reproduction:
    """Run an item; write its table (CSV, JSON), page (Markdown) and picture into the folder ``out``, if given.

    ``cluster``: ``processes`` runs an item on the real clock that otherwise uses the virtual clock. ``keep``: a folder
    that stores the result of each case by its settings (default: ``.results`` in ``out``), so that only the
    remaining cases are run after an interruption. Raises :class:`~anyk.BadInput` if the item does not exist, or
    its data is missing.

    >>> reproduction = reproduce("erasurehead-theory", quick=True, seeds=1)
    >>> reproduction.word
    'holds in part'
    """
    item = _named_item(item) if isinstance(item, str) else item
    clock_name = _clock_of(item, cluster)
    count = 1 if item.clock == "none" else item.seeds if seeds is None else check_value(seeds, AtLeastOne, "seeds")
    folder = None if out is None else Path(out)
    if folder is not None:
        _prepare_folder(folder, *(f"{item.name}.{kind}" for kind in ("json", "csv", "md", "png")), ".results")
        keep = folder / ".results" if keep is None else keep
    lab = Lab(
        item=item.name,
        seeds=count,
        quick=quick,
        cluster="simulated" if clock_name == "none" else clock_name,
        keep=None if keep is None else Path(keep),
        data_folder=None if data_folder is None else Path(data_folder),
        progress=progress,
    )
    start = clock.monotonic()
    table = item.table(lab)
    verdicts = tuple(item.verdicts(table))
    picture = None if folder is None else _draw_picture(item, table, folder)
    reproduction = Reproduction(
        item=item,
        table=table,
        verdicts=verdicts,
        seeds=count,
        quick=quick,
        cluster=clock_name,
        seconds=clock.monotonic() - start,
        picture=picture,
    )
    if folder is not None:
        _write(reproduction, folder)
    return reproduction


def _named_item(name: str) -> Item:
    """Return an item; raise BadInput if it does not exist."""
    known_items = items()
    if name not in known_items:
        hint = suggest(name, known_items, "'anyk reproduce' lists them", cutoff=0.4)
        raise BadInput(f"there is no item '{name}'; {hint}")
    return known_items[name]


def _clock_of(item: Item, cluster: str | None) -> str:
    """Return the clock that an item runs on; raise BadInput for a cluster that it cannot run on."""
    clock_name = item.clock if cluster is None else cluster
    if item.clock != "simulated" and clock_name != item.clock:
        raise BadInput(f"'{item.name}' runs on its own clock ({item.clock}) only; omit cluster={clock_name}")
    if clock_name not in ("simulated", "processes", "none"):
        raise BadInput(f"cluster must be simulated or processes, got '{clock_name}'")
    return clock_name


def _write(reproduction: Reproduction, folder: Path) -> None:
    """Write the result, its table and its page beside the picture."""
    name, picture = reproduction.item.name, reproduction.picture
    (folder / f"{name}.json").write_text(json.dumps(reproduction.plain(), indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.csv").write_text(reproduction.table.csv(), encoding="utf-8")
    page = reproduction.markdown(None if picture is None else picture.name)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


def _prepare_folder(folder: Path, *names: str) -> None:
    """Check the paths of files and folders that will be written into a folder, and create the folder if necessary."""
    check_plain(*(folder / name for name in names))
    with as_bad_input(f"the folder '{folder}' cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)


def _draw_picture(item: Item, table: Table, folder: Path) -> Path | None:
    """Draw the item's picture into the folder and return its file; None without matplotlib."""
    file = folder / f"{item.name}.png"
    try:
        draw(item.title, item.panels, table, file)
    except MissingPackage:
        return None
    return file


def reproduce_all(
    *,
    out: str | Path,
    names: Sequence[str] = (),
    quick: bool = False,
    seeds: int | None = None,
    data_folder: str | Path | None = None,
    progress: Progress = lambda sentence, done, of: None,
    before: Callable[[Item], None] = lambda item: None,
    after: Callable[[Reproduction], None] = lambda reproduction: None,
) -> tuple[list[Reproduction], dict[str, str]]:
    """Run all items, or the named items, and write the gallery page, ``gallery.md``, after each item.

    ``before`` and ``after`` are called before and after each item. Returns the results, and the reasons why other items
    could not be run (such as missing data), by name.
    """
    folder = Path(out)
    _prepare_folder(folder, "gallery.md")
    reproductions: list[Reproduction] = []
    failures: dict[str, str] = {}
    for item in items().values():
        if names and item.name not in names:
            continue
        before(item)
        try:
            reproduction = reproduce(
                item, out=folder, quick=quick, seeds=seeds, data_folder=data_folder, progress=progress
            )
        except BadInput as error:
            failures[item.name] = str(error)
            continue
        reproductions.append(reproduction)
        after(reproduction)
        (folder / "gallery.md").write_text(page(reproductions, failures), encoding="utf-8")
    (folder / "gallery.md").write_text(page(reproductions, failures), encoding="utf-8")
    return reproductions, failures


def _link(reproduction: Reproduction) -> str:
    return f"[{reproduction.item.name}](#{reproduction.item.name}-{reproduction.word.replace(' ', '-')})"


def page(reproductions: Sequence[Reproduction], failures: dict[str, str]) -> str:
    """Return the gallery page: a table of verdicts, then each item; ``failures``: reasons by item."""
    words = [reproduction.word for reproduction in reproductions]
    lines = [
        "# Gallery",
        "",
        "Figures and tables of papers, reproduced by `anyk reproduce --all`. A claim about a number *holds* if the "
        "number is met within the stated tolerance, and *holds in part* if only its direction is. A claim about an "
        "order, or in words, *holds* if its test passes. Verdicts are computed from the numbers.",
        "",
        f"{words.count('holds')} hold, {words.count('holds in part')} hold in part, "
        f"{words.count('does not hold')} do not hold; {len(failures)} could not be run.",
        "",
        *_markdown_table(
            ["item", "what", "verdict"],
            [[_link(result), result.item.title, result.word] for result in reproductions]
            + [[name, reason.partition(";")[0], "not run"] for name, reason in failures.items()],
        ),
        "",
        *(result.markdown(None if result.picture is None else result.picture.name) for result in reproductions),
    ]
    return "\n".join(lines)
