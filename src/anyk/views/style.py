"""The style of pictures and pages, light and dark, with all colours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.base import as_bad_input, needing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {  # light and dark; colour-blind readers can distinguish the curves (Okabe and Ito, 2008)
    "paper": ("#ffffff", "#14191f"),
    "ink": ("#1d2733", "#e6ebf1"),
    "dim": ("#55616f", "#a5b1bf"),
    "line": ("#d9dfe6", "#36414d"),
    "card": ("#f5f7fa", "#1d242c"),
    "curve-0": ("#0072b2", "#4aa8e8"),
    "curve-1": ("#d55e00", "#ff8f4a"),
    "curve-2": ("#009e73", "#3ecf9f"),
    "curve-3": ("#cc79a7", "#f29ccb"),
    "curve-4": ("#b8860b", "#e2b64a"),
    "curve-5": ("#56b4e9", "#8fd0ff"),
    "curve-6": ("#7a5cc0", "#b39df5"),
    "curve-7": ("#8c8c8c", "#c4c4c4"),
    "waiting": ("#b9c6d8", "#5d6f88"),
    "idle": ("#e3e3e3", "#333c46"),
    "sending": ("#e69f00", "#f0b429"),
    "spare": ("#cfcfcf", "#6b7683"),
    "lost": ("#b91c1c", "#f87171"),
    "open": ("#f2f2f2", "#262e36"),
}
_DECADES = 1e4  # ratio of the ends of a logarithmic axis from which on only powers of ten are named
LIGHT, DARK = ({name: both[i] for name, both in _COLOURS.items()} for i in (0, 1))
COLOURS = tuple(colour for name, colour in LIGHT.items() if name.startswith("curve"))


@contextlib.contextmanager
def picture(
    path: str | Path | None,
    size: tuple[float, float],
    *,
    columns: int = 1,
    look: Mapping[str, str] = LIGHT,
) -> Iterator[tuple[Figure, Any]]:
    """Yield an empty figure and its axes; write it to ``path``, if given, when it is drawn.

    ``size``: width and height in inches. The ending of ``path`` chooses the format.
    """
    with needing("matplotlib", "plot", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    curves = [colour for name, colour in look.items() if name.startswith("curve")]
    settings: Any = {
        "axes.axisbelow": True,
        "axes.edgecolor": look["dim"],
        "axes.facecolor": look["paper"],
        "axes.grid": True,
        "axes.labelcolor": look["ink"],
        "axes.prop_cycle": f"cycler(color={curves})",
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "figure.facecolor": look["paper"],
        "figure.titlesize": 11,
        "grid.color": look["line"],
        "grid.linewidth": 0.6,
        "image.interpolation": "nearest",
        "legend.fontsize": 9,
        "legend.frameon": False,
        "text.color": look["ink"],
        "xtick.color": look["ink"],
        "ytick.color": look["ink"],
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(1, columns)
        if path is not None:
            with as_bad_input(f"the picture '{path}' cannot be written", OSError, ValueError):
                figure.savefig(path, dpi=140)


def name_ticks(axis: Any) -> None:
    """Name the ticks of a logarithmic axis 0.1, 0.2, 0.5 and 1; over many decades only powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _DECADES * low else (1.0,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def picture_formats() -> list[str]:
    """Return the endings of a picture's file name, sorted."""
    with picture(None, (1.0, 1.0)) as (figure, _):
        return sorted(figure.canvas.get_supported_filetypes())


def css() -> str:
    """Return the colours as variables of a style sheet."""
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in look.items()) for look in (LIGHT, DARK))
    return f':root{{{light}}}:root[data-theme="dark"]{{{dark}color-scheme:dark}}'
