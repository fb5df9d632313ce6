"""Tables that fit the width of the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

_GAP = 2  # blanks between columns
_LEAST = 12  # characters, at the least, of a shortened spec


class Columns:
    """Rows of cells: first a spec or a name, then numbers.

    If the rows are wider than the screen, the names are shortened in the middle. If that is not enough, or would make
    two names equal, each row becomes a block of lines. Numbers are never shortened. Titles may have several lines.

    >>> from rich.console import Console
    >>> table = Columns(["strategy", "seconds", "speed-up"], [["agc:load=3,wait=11", "2.561", "10.1x"]])
    >>> Console(width=40).print(table)
    strategy            seconds  speed-up
    agc:load=3,wait=11    2.561     10.1x
    >>> Console(width=32).print(table)
    strategy       seconds  speed-up
    agc:lo…ait=11    2.561     10.1x
    >>> Console(width=24).print(table)
    agc:load=3,wait=11
      seconds   2.561
      speed-up  10.1x
    """

    def __init__(self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, dim: Sequence[int] = ()) -> None:
        """``dim``: numbers of the rows in a fainter colour."""
        self.titles, self.rows, self.dim = list(titles), [list(row) for row in rows], set(dim)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines for a screen of this width."""
        heads = [title.split("\n") for title in self.titles]
        widths = [
            max(cell_len(cell) for cell in (*head, *(row[i] for row in self.rows))) for i, head in enumerate(heads)
        ]
        names = [row[0] for row in self.rows]
        room = options.max_width - sum(widths[1:]) - _GAP * (len(widths) - 1)
        if widths[0] > room:
            short_names = self._shortened_names(room, heads[0], "…" if options.encoding.startswith("utf") else "...")
            if short_names is None:
                yield from self._blocks()
                return
            names = short_names
            widths[0] = max(cell_len(cell) for cell in (*heads[0], *names))
        for line in _title_lines(heads):
            yield _line(line, widths, "bold")
        for i, (name, row) in enumerate(zip(names, self.rows, strict=True)):
            yield _line([name, *row[1:]], widths, "dim" if i in self.dim else "")

    def _shortened_names(self, room: int, head: Sequence[str], mark: str) -> list[str] | None:
        """Return the names in so many cells; None if there is no room for them, or two would be equal."""
        if room < max(_LEAST, *map(cell_len, head)):
            return None
        names = [shortened(row[0], room, mark) for row in self.rows]
        return names if len(set(names)) == len({row[0] for row in self.rows}) else None

    def _blocks(self) -> Iterator[Text]:
        titles = [title.replace("\n", " ") for title in self.titles[1:]]
        width = max(map(cell_len, titles))
        for row in self.rows:
            yield _text(row[0], "bold")
            for title, cell in zip(titles, row[1:], strict=True):
                if cell:
                    yield _text(f"  {title}{' ' * (width - cell_len(title))}  {cell}", "")


def _title_lines(heads: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield the lines of the titles, which end in the same line."""
    depth = max(map(len, heads))
    yield from zip(*([""] * (depth - len(head)) + list(head) for head in heads), strict=True)


def shortened(line: str, width: int, mark: str = "…") -> str:
    """Return a text without its middle if it is longer than ``width`` cells.

    >>> shortened("agc:load=3,wait=11", 13)
    'agc:lo…ait=11'
    """
    length = width - len(mark)
    if cell_len(line) <= width or length < 2:
        return line
    return line[: length - length // 2] + mark + line[-(length // 2) :]


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    first, *others = cells
    parts = [first + " " * (widths[0] - cell_len(first))]
    parts += [" " * (width - cell_len(cell)) + cell for cell, width in zip(others, widths[1:], strict=True)]
    return _text((" " * _GAP).join(parts).rstrip(), style)


def _text(line: str, style: str) -> Text:
    return Text(line, style=style, no_wrap=True, overflow="ignore", end="\n")
