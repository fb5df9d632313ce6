"""A self-contained page about runs and races."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from anyk.base import BadInput, MissingPackage, as_bad_input, printable
from anyk.fleet import percent
from anyk.runs import Race, Run
from anyk.views.prose import duration
from anyk.views.result_tables import number
from anyk.views.style import css

_HERE = Path(__file__).parent


PAGE = "report.html"  # in the folder of a run or race


def report(of: Run | Race | Sequence[Run | Race], path: str | Path | None = None) -> Path:
    """Write an HTML page about runs and races, and return its path.

    ``path``: by default report.html in the folder of the run or race, if there is only one. The page is self-contained
    and opens without a network. It describes the settings and the result; draws metric and loss against seconds or
    steps, every task on a timeline, seconds by worker and step, the endings of each worker's tasks, residual, staleness
    and the use of time; and shows the receipt of any step. Several runs are compared by :func:`anyk.runs.compare`. With
    several seeds, only the first seed's run is described on its own.

    Raises :class:`~anyk.BadInput` if there is no run, if several or one in memory have no path, or if the file
    cannot be written, and :class:`~anyk.base.errors.MissingPackage` without Bokeh and Jinja2 (``anyk[report]``).

    >>> import anyk, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, "frc:load=3", "simulated", workers=6, delays="exp:mean=1", steps=5)
    >>> report(run, Path(tempfile.mkdtemp()) / "report.html").stat().st_size < 4_000_000
    True
    """
    items = list(of) if isinstance(of, Iterable) else [of]
    for item in items:
        if not isinstance(item, Run | Race):
            raise BadInput(f"a report is about runs and races, as anyk.Run.open(path) gives them, got {of!r}")
    runs = [run for item in items for run in (item.runs if isinstance(item, Race) else [item])]
    if not runs:
        raise BadInput("there is no run to report on")
    if path is None:
        folder = items[0].path if len(items) == 1 else None
        if folder is None:
            raise BadInput(
                "a report on several runs, or on one in memory, needs the name of its file, such as report.html"
            )
        path = folder / PAGE
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"a report is written as .html, got '{path}'")
    content = page(runs, [title for item in items if isinstance(item, Race) for title in item.waiting])
    with as_bad_input(f"the report '{path}' cannot be written"):
        target.write_text(printable(content), encoding="utf-8")
    return target


def check_packages() -> None:
    """Raise :class:`~anyk.base.errors.MissingPackage` if a package that pages need is not installed."""
    try:
        import bokeh.document  # noqa: F401
        import jinja2  # noqa: F401
    except ImportError as error:
        package = "jinja2" if "jinja" in str(error) else "bokeh"
        raise MissingPackage(package, "report", "a report") from None


def page(runs: Sequence[Run], waiting: Sequence[str], *, live: str | None = None) -> str:
    """Return the page as text, with its scripts inside or, with ``live``, for a server of the scripts.

    ``live``: the newest seals of the logs, by which the page notices that the logs have grown.
    """
    check_packages()
    from bokeh.document import Document
    from markupsafe import Markup

    from anyk.views.page.content import content

    document = Document()
    filled = content(runs, waiting)
    roots = {}
    with document.models.freeze():  # else all models are counted again for each figure
        for i, (name, figure) in enumerate(filled.pop("figures").items()):
            document.add_root(figure)
            roots[name] = f"figure-{i}"
            filled["about"]["roots"][figure.id] = roots[name]
    if live is not None:
        filled["about"]["live"] = live
    plain = json.dumps(document.to_json(deferred=False), separators=(",", ":"))
    for sign in "<>&":  # so that no text can end the surrounding script
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return render(
        "page",
        **filled,
        roots=roots,
        live=live is not None,
        scripts=[] if live is not None else [Markup(script) for script in (*bokeh_scripts(), script("page.js"))],
        document=Markup(plain),
    )


def render(name: str, **values: object) -> str:
    """Return a page made from a template of this folder, in the style of all pages; templates escape text."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"duration": duration, "number": number, "percent": percent}
    return environment.get_template(f"{name}.html.jinja").render(css=Markup(css() + script("page.css")), **values)


def bokeh_scripts() -> list[str]:
    """Return Bokeh's own scripts."""
    from bokeh.resources import INLINE

    return list(type(INLINE)(mode="inline", components=["bokeh"]).js_raw)


def script(name: str) -> str:
    """Return the text of a script of this folder."""
    return (_HERE / name).read_text(encoding="utf-8")
