"""Export formats in their registry: anyk's own, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import anyk
from anyk.cli import main
from anyk.testing import Squares
from anyk.views import Exporter, exporters

pytestmark = pytest.mark.in_process


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    anyk.train(Squares(3), "uncoded", "simulated", workers=3, steps=4, out=tmp_path / "made").close()
    before = dict(exporters.entries)
    yield
    exporters.entries.clear()
    exporters.entries.update(before)


def export(*words: str) -> Result:
    return CliRunner().invoke(main, ["export", "made", *words])


@dataclass(frozen=True)
class Losses(Exporter):
    """The loss of each version, a line each."""

    digits: int = 3
    ending = ".losses.txt"

    def save(self, run: Any, path: Path) -> str:
        losses = run.history["loss"]
        path.write_text("".join(f"{loss:.{self.digits}g}\n" for loss in losses))
        return f"losses: {path} ({len(losses)} versions)"


def test_anyks_own_formats_are_registered() -> None:
    assert [entry.name for entry in exporters] == ["perfetto", "parquet", "csv"]
    for entry in exporters:
        assert entry.summary and isinstance(entry.build(), Exporter)


def test_each_format_has_its_own_default_name(tmp_path: Path) -> None:
    assert "trace: made.perfetto.json.gz" in export().output
    assert "tables: made-tables (rows: " in export("--to", "csv").output
    assert (tmp_path / "made.perfetto.json.gz").is_file() and (tmp_path / "made-tables" / "steps.csv").is_file()


def test_a_format_of_a_plug_in_is_written(tmp_path: Path) -> None:
    exporters.register("losses")(Losses)
    assert export("--to", "losses").output == "losses: made.losses.txt (5 versions)\n"
    assert export("--to", "losses:digits=1", "-o", "short.txt").output == "losses: short.txt (5 versions)\n"
    first = (tmp_path / "short.txt").read_text().split()[0]
    assert first == f"{float((tmp_path / 'made.losses.txt').read_text().split()[0]):.1g}"
    listed = CliRunner().invoke(main, ["list", "exporters"]).output
    assert "losses:digits=3\n    The loss of each version, a line each." in listed


def test_a_plug_in_file_is_given_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "note.py").write_text(
        "from anyk.views import Exporter, exporters\n\n\n@exporters.register('note')\nclass Note(Exporter):\n"
        "    ending = '.note'\n\n    def save(self, run, path):\n        path.write_text('ok')\n        return f'note: {path}'\n"
    )
    assert export("--to", "note", "--plugin", "note.py").output == "note: made.note\n"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("perfeto", "no export format 'perfeto'; did you mean 'perfetto'?"),
        ("xml", "no export format 'xml'; known: perfetto, parquet, csv"),
        ("csv:sep=x", "export format 'csv' has no key 'sep'; its keys: none"),
        ("losses:digits=many", "digits in 'losses:digits=many' should be a whole number, got 'many'"),
        ("broken", "the exporter 'broken' failed: KeyError: 'loss'"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused(spec: str, sentence: str) -> None:
    exporters.register("losses")(Losses)
    if spec != "xml":
        exporters.register("broken")(type("Broken", (Losses,), {"save": lambda self, run, path: {}["loss"]}))
    else:
        del exporters.entries["losses"]
    result = export("--to", spec)
    assert result.exit_code == 2 and sentence in result.output, result.output


def test_a_file_that_cannot_be_written_is_refused_before() -> None:
    exporters.register("losses")(Losses)
    result = export("--to", "losses", "-o", "no/such/folder.txt")
    assert result.exit_code == 2 and "there is no folder 'no/such'" in result.output


class Duck:
    ending = ".duck"

    def save(self, run: Any, path: Path) -> str:
        return "quack"


def failing() -> Exporter:
    raise KeyError("no key")


def exporter(**attributes: Any) -> Any:
    return type("Bad", (Exporter,), {"save": lambda self, run, path: "saved", **attributes})


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (exporter(), "the exporter 'bad' must state the ending of what it writes, as in ending = '.json' in its class; it has none"),
        (exporter(ending=3), "in its class; got 3"),
        (exporter(ending=""), "in its class; got ''"),
        (Duck, "the exporter 'bad' must be a class that extends anyk.views.Exporter, got <"),
        (failing, "the exporter 'bad' cannot be made: KeyError: 'no key'"),
        (type("Bad", (Exporter,), {"ending": ".bad"}), "the exporter 'bad' cannot be made: TypeError: Can't instantiate"),
        (exporter(ending=".bad", save=lambda self, run, path: None), "wrote 'made.bad', but save() returned None instead"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [(), ("-o", "made.bad")])
def test_what_is_no_exporter_is_refused(made: Any, sentence: str, named: tuple[str, ...]) -> None:
    exporters.register("bad")(made)
    result = export("--to", "bad", *named)
    assert result.exit_code == 2 and sentence in " ".join(result.output.split()), result.output
