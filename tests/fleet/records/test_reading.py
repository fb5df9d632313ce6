"""Sources of fleet records in their registry: anyk's own, those of plug-ins, and which of them a file is read by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet import Reading, Record, RecordSource, read, record_sources
from anyk.testing import Squares

pytestmark = pytest.mark.in_process


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(record_sources.entries)
    yield
    record_sources.entries.clear()
    record_sources.entries.update(before)


@dataclass(frozen=True)
class Lines(RecordSource):
    """A line for each round, with the seconds of the workers."""

    def recognises(self, path: Path) -> bool:
        return path.name.endswith((".lines", ".csv"))

    def read(self, path: Path, reading: Reading) -> Any:
        factor = {None: 1.0, "s": 1.0, "ms": 1e-3}[reading.unit]
        rows = [[factor * float(cell) for cell in line.split()] for line in path.read_text().splitlines()]
        return Record(np.array(rows), remarks=("lines",))


def test_anyks_own_sources_are_registered() -> None:
    assert [entry.name for entry in record_sources] == ["run", "table", "json", "npz", "spark", "recorder", "files"]
    assert all(entry.summary for entry in record_sources)


def test_each_kind_is_recognised_by_one_of_anyks_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n2,3\n")
    (tmp_path / "a.jsonl").write_text('{"round": 0, "worker": 0, "seconds": 1.5}\n')
    np.savez(tmp_path / "a.npz", np.ones((2, 2)))
    (tmp_path / "log").write_text('{"Event":"SparkListenerTaskEnd"}\n')
    (tmp_path / "each").mkdir()
    (tmp_path / "each" / "w0.csv").write_text("1\n2\n")
    anyk.train(Squares(3), "uncoded", "simulated", workers=3, steps=2, out=tmp_path / "run").close()
    names = {"a.csv": "table", "a.jsonl": "json", "a.npz": "npz", "log": "spark", "each": "files", "run": "run"}
    for name, kind in names.items():
        recognised_by = [entry.name for entry in record_sources if entry.build().recognises(tmp_path / name)]
        assert recognised_by == [kind], name


def test_a_source_of_a_plug_in_is_read_and_named(tmp_path: Path) -> None:
    file = tmp_path / "times.lines"
    file.write_text("100 200\n300 400\n")
    with pytest.raises(BadInput, match="is not a fleet record"):
        read(file)
    record_sources.register("lines")(Lines)
    record = read(file, unit="ms")
    assert record.seconds.tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert record.remarks == ("read by 'lines'", "lines") and "read by 'lines'" in record.summary


def test_a_source_of_a_plug_in_comes_before_anyks_own(tmp_path: Path) -> None:
    """A record says so; anyk's own would have refused this table."""
    file = tmp_path / "times.csv"
    file.write_text("1 2\n3 4\n")
    record_sources.register("lines")(Lines)
    assert read(file).remarks[0] == "read by 'lines'"


def test_two_sources_of_plug_ins_are_ambiguous(tmp_path: Path) -> None:
    (tmp_path / "times.lines").write_text("1 2\n")
    record_sources.register("lines")(Lines)
    record_sources.register("others")(Lines)
    with pytest.raises(
        BadInput, match="is recognised by the sources 'lines' and 'others'; use the plug-in of only one"
    ):
        read(tmp_path / "times.lines")


def test_columns_are_refused_for_sources_without_them(tmp_path: Path) -> None:
    record_sources.register("lines")(Lines)
    (tmp_path / "times.lines").write_text("1 2\n")
    anyk.train(Squares(3), "uncoded", "simulated", workers=3, steps=2, out=tmp_path / "run").close()
    np.savez(tmp_path / "a.npz", np.ones((2, 2)))
    for name in ("times.lines", "run", "a.npz"):
        with pytest.raises(
            BadInput, match=f"--round, --worker and --seconds name the columns of a table; .*{name}' has none"
        ):
            read(tmp_path / name, seconds="t")


def failing(method: str, result: Callable[..., Any]) -> type[RecordSource]:
    return type("Failing", (Lines,), {method: lambda self, *arguments: result(*arguments)})


@pytest.mark.parametrize(
    ("method", "result", "sentence"),
    [
        ("read", lambda path, reading: [][0], "the source 'lines' of fleet records failed: IndexError"),
        ("read", lambda path, reading: np.ones((2, 2)), "the source 'lines' of fleet records returned ndarray, not a Rec"),
        ("read", lambda path, reading: Record([[-1.0]]), "."),
        ("recognises", lambda path: path.nonsense, "the source 'lines' of fleet records failed: AttributeError"),
    ],
)  # fmt: skip
def test_a_source_that_fails_is_named(method: str, result: Any, sentence: str, tmp_path: Path) -> None:
    record_sources.register("lines")(failing(method, result))
    (tmp_path / "times.lines").write_text("1 2\n")
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path / "times.lines")


def test_commands_read_and_list_a_source_of_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record_sources.register("lines")(Lines)
    (tmp_path / "times.lines").write_text("\n".join(f"{i % 3 + 1} 2 3" for i in range(30)))
    result = CliRunner().invoke(main, ["record", "times.lines", "-o", "fleet.csv"])
    assert result.exit_code == 0 and "read by 'lines'" in result.output, result.output
    assert (
        "lines\n    A line for each round, with the seconds of the workers."
        in CliRunner().invoke(main, ["list", "records"]).output
    )
