"""Columns of text tables: what is read as what, what is refused, and the settings that decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.problems import from_data
from anyk.problems.data import Column, load
from anyk.tables import looks_like_a_date, marked_number

ROWS = 60


def write(folder: Path, name: str = "d.csv", **columns: Any) -> Path:
    """Write a table with a numeric target; a column is a list of cells, repeated as needed, or a function of the row."""
    cells = {
        name: [column(i) if callable(column) else column[i % len(column)] for i in range(ROWS)]
        for name, column in columns.items()
    }
    frame = pd.DataFrame(cells | {"y": [i % 7 + 0.5 for i in range(ROWS)]})
    file = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False)
    return file


def read(file: Path, settings: str = "") -> tuple[Any, list[str]]:
    said: list[str] = []
    data = load("file" + (f":{settings}" if settings else ""), file=file, progress=said.append)
    return data, said


def refused(file: Path, sentence: str, settings: str = "") -> None:
    with pytest.raises(BadInput, match=sentence):
        read(file, settings)


# ------------------------------------------------------------------------------------------- dates

DATES = {
    "iso": lambda i: f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}",
    "iso with a time": lambda i: f"2024-{i % 12 + 1:02}-{i % 28 + 1:02} 12:{i % 60:02}:00",
    "iso with a zone": lambda i: f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}T12:00:00.000Z",
    "compact": lambda i: f"2024{i % 12 + 1:02}{i % 28 + 1:02}T000000",
    "day first": lambda i: f"{i % 28 + 1}/{i % 12 + 1:02}/2024",
    "points": lambda i: f"{i % 28 + 1:02}.{i % 12 + 1:02}.24",
    "month names": lambda i: f"{['Jan', 'Feb', 'Mar'][i % 3]} {i % 28 + 1}, 2024",
    "weekdays": lambda i: f"Mon, {i % 28 + 1:02} {['January', 'May', 'Dec'][i % 3]} 2024 08:00:00 GMT",
    "other languages": lambda i: f"{i % 28 + 1}. {['Mai', 'Juni'][i % 2]} 2024",
    "months": lambda i: f"2024-{i % 12 + 1:02}",
    "times": lambda i: f"{i % 24:02}:{i % 60:02}",
    "clock": lambda i: f"{i % 12 + 1}:{i % 60:02} PM",
    "quarters": lambda i: f"2024-Q{i % 4 + 1}",
}


@pytest.mark.parametrize("form", DATES)
def test_dates_are_refused_with_the_settings_that_decide(form: str, tmp_path: Path) -> None:
    for name in ("d.csv", "d.parquet"):
        file = write(tmp_path, name, when=DATES[form], x=lambda i: i / 2)
        refused(file, r"column 'when' of .* holds dates or times, such as '.*' in row 1, which are neither numbers nor")
        data, said = read(file, "drop=when")
        assert data.columns == (Column("x"),) and "without 'when'" in said[-1]
    assert read(file, "columns=x")[0].columns == (Column("x"),)
    assert len(read(file, "text=when")[0].columns[0].categories) > 2
    some = write(tmp_path, "some.csv", when=lambda i: "unknown" if i == 7 else DATES[form](i))
    refused(some, r"'when' .* holds dates or times, .* and other text, such as 'unknown' in row 8, which are neither")


@pytest.mark.parametrize(
    "word", ["10-20", "1.2.3", "Friday", "2024", "may", "A-1", "3:2", "192.168.1.1", "Mar. Street 5"]
)
def test_other_text_is_no_date(word: str) -> None:
    assert not looks_like_a_date(word)


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_iso_dates_become_days_and_new_files_follow(name: str, tmp_path: Path) -> None:
    first = pd.Timestamp("2024-01-01")
    file = write(tmp_path, name, when=lambda i: (first + pd.Timedelta(i * 36, "h")).isoformat())
    data, said = read(file, "dates=when")
    assert data.columns == (Column("when", date=True),) and "'when' as days since 1970-01-01" in said[-1]
    X = np.sort(np.concatenate([data.X_train, data.X_test])[:, 0])
    assert np.allclose(X, (first - pd.Timestamp(0)).days + 1.5 * np.arange(ROWS))
    problem = from_data("file:dates=when", file=file, progress=None)
    run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=5)
    new = tmp_path / "new.csv"
    new.write_text("when,more\n2024-03-01,a\n20240301T120000,b\n")
    a, b = run.predict(new)
    new.write_text("when\n2024-03-01T14:00+02:00\n")
    with pytest.raises(BadInput, match="has dates with a time zone, .* but the model learned from dates without"):
        run.predict(new)
    expected = run.predict({"when": [pd.Timestamp("2024-03-01"), pd.Timestamp("2024-03-01")]})
    assert a == pytest.approx(expected[0]) and b != pytest.approx(a, rel=1e-9)
    assert run.predict(pd.DataFrame({"when": pd.to_datetime(["2024-03-01"])}))[0] == pytest.approx(a)
    new.write_text("when\n01/03/2024\n")
    with pytest.raises(
        BadInput, match=r"column 'when' of new.csv should hold dates, but '01/03/2024' in row 1 is no ISO"
    ):
        run.predict(new)
    mixed = write(tmp_path, "m.csv", when=["2024-01-01T00:00", "2024-01-01T00:00Z"])
    refused(mixed, r"dates with a time zone \('2024-01-01T00:00Z'\) and without", "dates=when")


def test_dates_of_parquet_and_dates_in_digits(tmp_path: Path) -> None:
    file = write(tmp_path, "d.parquet", when=lambda i: pd.Timestamp("2024-01-01") + pd.Timedelta(i, "D"), x=[1.0, 2.0])
    refused(
        file, r"'when' .* has timestamp\[.*\] values, which are neither numbers nor text; .* let dates=when count days"
    )
    assert read(file, "drop=when")[0].columns == (Column("x"),)
    assert read(file, "dates=when")[0].X_train.min() >= 1.0
    digits = write(tmp_path, "n.csv", when=lambda i: 20240101 + i % 28)
    assert any(
        "'when' of n.csv is learned from as numbers, although they look like dates" in line for line in read(digits)[1]
    )
    assert np.ptp(np.concatenate([read(digits, "dates=when")[0].X_train])) <= 27


# ------------------------------------------------------------------------------------------- nearly numbers


@pytest.mark.parametrize("word", ["?", "n/d", "-", "unknown", "none", "12a34", "<5", "3..4", "1O5"])
@pytest.mark.parametrize("distinct", [7, 1000])
def test_a_word_among_numbers_is_refused_with_its_row(word: str, distinct: int, tmp_path: Path) -> None:
    for name in ("d.csv", "d.parquet"):
        file = write(tmp_path, name, x=lambda i: word if i in (41, 50) else str(i % distinct + 0.5), z=[1, 2])
        refused(file, rf"column 'x' of .* holds numbers, but '{'.*'}' in row 42 is none; give missing=")
    data, said = read(file, f"missing=nothing|{word},fill=mean")
    assert (
        data.columns[0] == Column("x", fill=data.columns[0].fill) and "2 missing values filled in by mean" in said[-1]
    )
    refused(file, r"column 'x' .* is missing or not finite in 2 rows", f"missing={word}")
    assert word in read(file, "text=x")[0].columns[0].categories
    assert read(file, "drop=x")[0].columns == (Column("z"),)
    refused(file, r"column 'x' .* should hold numbers, but .* in row 42 is none", "numbers=x")


def test_missing_words_are_the_models_and_may_be_numbers(tmp_path: Path) -> None:
    file = write(tmp_path, x=lambda i: -999 if i == 3 else i, c=lambda i: "?" if i == 4 else "ab"[i % 2])
    settings = "file:missing=-999|?,fill=median"
    data, said = read(file, settings.partition(":")[2])
    assert data.columns[1] == Column("c", ("", "a", "b"), "") and "1 missing value filled in by median" in said[-1]
    assert "one-hot encoding the text column 'c' of d.csv: 3 different values, one of them for 1 missing" in said
    run = anyk.train(from_data(settings, file=file, progress=None), "uncoded", "simulated", workers=2, steps=5)
    (tmp_path / "new.csv").write_text("c,x\n?,-999\n,\nNA,null\n")
    values = run.predict(tmp_path / "new.csv")
    assert values == pytest.approx(np.full(3, values[0]))
    assert run.predict({"x": [-999], "c": ["?"]}) == pytest.approx(values[:1])


def test_words_with_a_few_numbers_stay_categories(tmp_path: Path) -> None:
    data, _ = read(write(tmp_path, size=["S", "M", "L", "38"], grade=["A1", "B2", "C3", "D4"]))
    assert [len(column.categories) for column in data.columns] == [4, 4]


MARKS = {
    "percent": ("45.5%", 45.5, "%"),
    "dollars": ("$1,200.50", 1200.5, "$"),
    "negative": ("-$3", -3.0, "$"),
    "euros": ("12 €", 12.0, "€"),
    "code": ("EUR 12", 12.0, "EUR"),
    "kilograms": ("70 kg", 70.0, "kg"),
    "years": ("10 years", 10.0, "years"),
    "thousands": ("1,234,567", 1234567.0, ""),
    "accounts": ("(12.50)", -12.5, ""),
    "spaces": ("1\u00a0234", 1234.0, ""),
}


@pytest.mark.parametrize("form", MARKS)
def test_numbers_with_a_unit_are_asked_about(form: str, tmp_path: Path) -> None:
    cell, value, unit = MARKS[form]
    assert marked_number(cell) == (value, unit)
    file = write(tmp_path, x=lambda i: cell if i % 2 else cell.replace("2", "3"), z=[1, 2])
    refused(
        file,
        r"column 'x' of .* holds numbers with (units or other signs|commas|separators of thousands), such as '.*numbers=x reads",
    )
    data, said = read(file, "numbers=x")
    assert data.columns[0] == Column("x", unit=unit) and "'x' as numbers" in said[-1]
    assert value in data.X_train[:, 0]
    run = anyk.train(from_data("file:numbers=x", file=file, progress=None), "uncoded", "simulated", workers=2, steps=5)
    (tmp_path / "new.csv").write_text(f'z,x\n1,"{cell}"\n')
    assert run.predict(tmp_path / "new.csv") == pytest.approx(run.predict({"x": [cell], "z": [1]}))
    (tmp_path / "new.csv").write_text("z,x\n1,5 lbs\n")
    with pytest.raises(BadInput, match=r"column 'x' of new.csv has numbers with .*, but '5 lbs' in row 1"):
        run.predict(tmp_path / "new.csv")


def test_units_that_differ_are_refused(tmp_path: Path) -> None:
    sizes = write(tmp_path, x=lambda i: f"{i + 1}{'kM'[i % 2]}")
    refused(sizes, r"column 'x' .* holds numbers with units or other signs, such as '1k' in row 1")
    refused(sizes, r"column 'x' .* has numbers with 'k', but '2M' in row 2; convert them to one unit", "numbers=x")
    assert len(read(write(tmp_path, x=["1st", "2nd", "3rd", "4th"]))[0].columns[0].categories) == 4


# ------------------------------------------------------------------------------------------- codes, labels, identifiers


def test_codes_keep_their_zeros(tmp_path: Path) -> None:
    file = write(tmp_path, zip=["01234", "98101", "10001"], x=[1.0, 2.0])
    data, said = read(file)
    assert data.columns[0].categories == ("01234", "10001", "98101")
    assert any(
        "column 'zip' of d.csv has codes such as '01234', so its values are categories; numbers=zip" in s for s in said
    )
    assert read(file, "numbers=zip")[0].columns[0] == Column("zip", unit="")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["9007199254740993", "9007199254740992", "5"], ("5", "9007199254740992", "9007199254740993")),
        (["6221888200042590281", "6221888200042590280"], ("6221888200042590280", "6221888200042590281")),
        (["007", "008"], ("007", "008")),
        (["1", "01"], ("01", "1")),
    ],
)
def test_labels_come_back_as_they_are_in_the_file(labels: list[str], classes: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n" + "".join(f"{i % 7},{labels[i % len(labels)]}\n" for i in range(60)))
    problem = from_data("file", file=tmp_path / "t.csv", progress=None)
    assert load("file", file=tmp_path / "t.csv", progress=None).classes == classes
    run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=3)
    assert set(run.predict({"x": [0.0, 5.0]}).tolist()) <= set(classes)
    if all(label[0] != "0" for label in labels):
        frame = pd.DataFrame({"x": range(60), "label": [int(labels[i % len(labels)]) for i in range(60)]})
        frame.to_parquet(tmp_path / "t.parquet")
        np.savez(tmp_path / "t.npz", X=frame[["x"]].to_numpy(), y=frame.label.to_numpy())
        for name in ("t.parquet", "t.npz"):
            assert load("file", file=tmp_path / name, progress=None).classes == classes
        with pytest.raises(BadInput, match="cannot be told apart; save labels as text"):
            from_data(f"shards:files={tmp_path / 't.csv'},test=none", progress=None)
        (tmp_path / "t.svm").write_text("".join(f"{label} 1:1\n" for label in labels * 9))
        with pytest.raises(BadInput, match=r"cannot be told apart|holds one class"):
            load("file", file=tmp_path / "t.svm", progress=None)


def test_numbers_of_any_length_are_refused_in_a_sentence(tmp_path: Path) -> None:
    many = "9" * 5000  # int() reads at most 4,300 digits
    with pytest.raises(BadInput, match="column 'x' of .*d.csv has whole numbers too long for float64"):
        read(write(tmp_path, x=[many, many[:-1] + "8"]))
    file = write(tmp_path, x=[1.0, 2.0])
    for setting in ("drop", "text", "numbers"):
        with pytest.raises(BadInput, match="has no column '9+.*' for " + setting):
            read(file, f"{setting}={many}")
    with pytest.raises(BadInput, match="has no column '9+.*' for the target"):
        read(file, f"target={many}")
    assert read(file, "columns=-2,target=-1")[0].columns == (Column("x"),)


def test_long_numbers_to_predict_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i % 7},{10**16 + 7 * i}\n" for i in range(60)))
    data = load("file", file=tmp_path / "t.csv", progress=None)
    assert data.task == "regression" and data.y_train.dtype == np.float64


def test_identifiers_are_noticed(tmp_path: Path) -> None:
    file = write(
        tmp_path, order=lambda i: 7_129_300_520 + 13 * (i * 7 % 60), x=lambda i: i % 5, code=lambda i: f"{i:03}"
    )
    refused(
        file, r"column 'code' .* holds text with 60 different values in 60 rows, .* \(drop=code\); numbers=code reads"
    )
    said = read(file, "numbers=code")[1]
    assert [line.partition(",")[0] for line in said if "identifier" in line] == [
        "a guess: column 'order' of d.csv is learned from"
    ]
    assert "drop=order leaves it out" in "".join(said)
    long = write(tmp_path, order=lambda i: 20_240_101_000_000_000 + 8 * i, x=lambda i: i % 5)
    assert "column 'order' of d.csv is learned from, although nearly every row has another" in read(long)[1][0]


@pytest.mark.parametrize("different", [60, 3])
def test_long_numbers_that_would_become_equal_are_refused(different: int, tmp_path: Path) -> None:
    words = r"column 'user' .* such as '1152921504606846976' and '1152921504606846977', .*text=user.*drop=user"
    for name in ("d.csv", "d.parquet"):
        file = write(tmp_path, name, user=lambda i: 2**60 + i % different, x=lambda i: i % 5)
        refused(file, words)
        assert len(read(file, "drop=user")[0].columns) == 1
    assert len(read(tmp_path / "d.csv", "numbers=user")[0].columns) == 2


def test_points_that_may_separate_thousands_are_a_guess(tmp_path: Path) -> None:
    file = write(
        tmp_path, people=["1.234", "12.345", "999"], metres=["1.234", "12.345", "0.125"], ratio=["1.5", "2.25", "3"]
    )
    said = [line for line in read(file)[1] if "thousands" in line]
    assert len(said) == 1 and said[0].startswith("a guess: column 'people' of d.csv")


def test_numbers_that_may_stand_for_missing_ones_are_a_guess(tmp_path: Path) -> None:
    def pressure(i: int) -> object:
        return 9999 if i % 7 == 0 else 1000 + i

    file = write(
        tmp_path, degrees=lambda i: -999 if i % 7 == 0 else i / 10, pressure=pressure, price=lambda i: 99 + i % 3
    )
    said = [line for line in read(file)[1] if "missing" in line]
    assert [line.partition(" of d.csv")[0] for line in said] == [
        "a guess: -999 in 9 rows of column 'degrees'",
        "a guess: 9999 in 9 rows of column 'pressure'",
    ]
    assert not any("missing=" in line for line in read(file, "missing=-999|9999,fill=mean")[1])


@pytest.mark.parametrize("task", ["auto", "regression"])
def test_numbers_taken_for_classes_are_a_guess(task: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,stars\n" + "".join(f"{i},{i % 5 + 1}\n" for i in range(19)))
    said = read(tmp_path / "t.csv", f"task={task}")[1]
    guess = "a guess: the 5 different whole numbers in column 'stars'"
    assert any(line.startswith(guess) and "task=regression" in line for line in said) == (task == "auto")


# ------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_of_pandas_in_any_order_is_left_out(name: str, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(200)[:ROWS]
    file = write(tmp_path, **{name: lambda i: int(order[i]), "x": [1.0, 2.0, 4.0]})
    data, said = read(file)
    assert data.columns == (Column("x"),) and "row numbers in the first column left out" in said[-1]
    run = anyk.train(from_data("file", file=file, progress=None), "uncoded", "simulated", workers=2, steps=2)
    assert run.predict({"x": [1.0]}).shape == run.predict(file)[:1].shape
    twice = write(tmp_path, **{name: [0, 1, 2], "x": [1.0, 2.0, 4.0]})
    refused(
        twice, r"column 0 of .* has no name, as pandas writes its index, but is not one number for each row; drop=0"
    )
    assert read(twice, "drop=0")[0].columns == (Column("x"),)
    words = write(tmp_path, **{name: lambda i: f"r{i}", "x": [1.0, 2.0]})
    refused(words, "column 0 of .* has no name")


@pytest.mark.slow
def test_columns_of_one_name_are_refused_until_one_is_left(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,label,label\n" + "".join(f"{i % 7},{i % 2},{i % 2}\n" for i in range(40)))
    refused(file, r"has 2 columns 'label'; give target as a number, 1 or 2")
    refused(file, r"has 2 columns 'label'; rename them, or leave all but one out by number \(drop=2\)", "target=1")
    assert read(file, "target=1,drop=2")[0].columns == (Column("a"),)
    refused(file, r"has 2 columns 'label'; in drop give their numbers, 1 or 2", "target=1,drop=label")
    file.write_text("a,a,y\n" + "".join(f"{i % 7},{i % 2},{i}\n" for i in range(40)))
    refused(file, r"has 2 columns 'a'; rename them")
    with pytest.raises(BadInput, match=r"has 2 columns 'a'; rename one"):
        from_data(f"shards:files={file},test=none", progress=None)


def test_settings_of_columns_are_checked(tmp_path: Path) -> None:
    file = write(tmp_path, x=[1, 2], z=["a", "b"])
    refused(file, r"has no column 'xx' for drop; its columns: 'x', 'z', 'y'|did you mean 'x'", "drop=xx")
    refused(file, r"column 'y' is the target; leave it out of drop", "drop=y")
    refused(file, r"column 'x' is named by columns and by drop", "drop=x,columns=x/z")
    refused(file, r"has no columns to learn from beside the target", "drop=x/z")
    refused(file, r"column 'x' is named by two of numbers, dates and text", "numbers=x,text=x")
    assert read(file, "drop=-2")[0].columns == (Column("x"),)
    np.savez(tmp_path / "d.npz", X=np.eye(4), y=np.arange(4))
    refused(tmp_path / "d.npz", r"drop=x is for CSV and Parquet files", "drop=x")
    refused(tmp_path / "d.npz", r"missing=\? is for CSV and Parquet files", "missing=?")


def test_a_stated_format_reads_any_extension(tmp_path: Path) -> None:
    file = write(tmp_path, x=[1.0, 2.0, 4.0])
    other = file.rename(tmp_path / "measured.data")
    refused(other, r"measured.data is not that of a known format; .* format=csv, parquet, svmlight or npz states it")
    run = anyk.train(
        from_data("file:format=csv", file=other, progress=None), "uncoded", "simulated", workers=2, steps=2
    )
    assert len(run.predict(other)) == ROWS
    assert anyk.runs.predict_file(run, other, tmp_path / "out.csv") == ROWS
    assert (tmp_path / "out.csv").read_text().startswith("x,y,prediction\n")


@pytest.mark.slow
def test_missing_text_is_a_category_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path, colour=["red", "", "NA", "blue", "red"], x=[1.0, 2.0])
    for name in ("d.csv", "d.parquet"):
        file = write(tmp_path, name, colour=["red", "", "NA", "blue", "red"], x=[1.0, 2.0])
        data, said = read(file)
        assert data.encoding.names == ("colour=(missing)", "colour=blue", "colour=red", "x")
        assert any("3 different values, one of them for 24 missing" in line for line in said)
    shards = from_data(f"shards:files={tmp_path / 'd.csv'},test=none", progress=None)
    assert shards.encoding.columns == data.columns


@pytest.mark.slow
def test_shards_refuse_what_files_refuse(tmp_path: Path) -> None:
    for cells, sentence in (
        (DATES["iso"], "holds dates or times, such as"),
        (lambda i: "?" if i == 9 else str(i), r"holds numbers, but '\?' is none; convert the column, or leave it out"),
        (lambda i: f"{i}%", "holds numbers with units or other signs, such as '0%'"),
    ):
        file = write(tmp_path, x=cells)
        with pytest.raises(BadInput, match=f"column 'x' of .* {sentence}"):
            from_data(f"shards:files={file},test=none", progress=None)
    file = write(tmp_path, x=["01234", "98101"])
    assert from_data(f"shards:files={file},test=none", progress=None).encoding.columns[0].categories == (
        "01234",
        "98101",
    )


# ------------------------------------------------------------------------------------------- built-in data, commands


def test_built_in_data_take_rows_without_the_ones() -> None:
    run = anyk.train(from_data("digits"), "uncoded", "simulated", workers=2, steps=3)
    X = load("digits").X_test
    assert (run.predict(X[:, :-1]) == run.predict(X)).all()
    with pytest.raises(BadInput, match="X has 63 columns, but the model learned from 65"):
        run.predict(X[:, :63])


def test_the_command_refuses_and_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, when=DATES["iso"], x=lambda i: "?" if i == 3 else i)

    def train(settings: str) -> Any:
        return CliRunner().invoke(
            main,
            ["train", "--data", f"file{settings}", "--data-file", "d.csv", "--cluster", "simulated", "--steps", "2"],
        )

    failed = train("")
    assert failed.exit_code == 2 and failed.stderr.count("\n") == 1
    assert "column 'when' of d.csv holds dates" in failed.stderr.replace(f"{tmp_path}/", "")
    done = train(":dates=when,missing=?,fill=mean")
    assert done.exit_code == 0, done.stderr
    assert "'when' as days since 1970-01-01" in done.stderr


@pytest.mark.slow
def test_pandas_is_imported_when_a_table_is_read(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "d.csv").write_text("a,y\n1,2\n3,4\n5,6\n")
    code = (
        "import sys, anyk, anyk.clusters.remote.worker, anyk.problems\n"
        "parts = anyk.problems.LogisticRegression([[1.0], [2.0]], [0, 1]).split(2)\n"  # what a worker has and does
        "import numpy\n"
        "parts.partial_gradient(0, numpy.zeros(1))\n"
        "assert 'pandas' not in sys.modules, 'too early'\n"
        f"anyk.problems.load('file', file={str(tmp_path / 'd.csv')!r}, progress=None)\n"
        "assert 'pandas' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


@pytest.mark.parametrize(
    "names", ["2019,2020,2021", "400,500,600,700", "400.0,410.0,430.0", "2015,2019,2022", ",7,8,9"]
)
def test_numbers_that_may_be_names_are_asked_about(names: str, tmp_path: Path) -> None:
    width = names.count(",") + 1
    rows = [",".join(f"{(i * 7 + j) % 11 + 0.25}" for j in range(width)) for i in range(20)]
    file = tmp_path / "d.csv"
    file.write_text("\n".join([names, *rows]))
    refused(file, "may be names or data; give header=yes or header=no")
    data, _ = read(file, "header=yes,drop=0" if names[0] == "," else "header=yes")
    assert len(data.X_train) + len(data.X_test) == 20


def test_first_rows_of_numbers_are_data(tmp_path: Path) -> None:
    for first in ("3,1,2", "1.5,2,2.75", "90.5,80.25,99.125"):
        file = tmp_path / "d.csv"
        file.write_text("\n".join([first, *(f"{i % 5}.5,{i % 3},{i}" for i in range(20))]))
        data, _ = read(file)
        assert len(data.X_train) + len(data.X_test) == 21


def test_decimal_commas_are_no_separators_of_thousands(tmp_path: Path) -> None:
    file = write(tmp_path, a=lambda i: f"0,{100 + i}")
    with pytest.raises(BadInput, match="'0,100'") as error:
        read(file)
    assert "numbers=a" not in str(error.value)
    refused(file, "'0,100' in row 1 has a decimal comma; write numbers with a decimal point", "numbers=a")
    assert marked_number("1,234") == (1234.0, "") and marked_number("0,234") is None


@pytest.mark.parametrize(
    ("column", "number"),
    [
        (lambda i: -1 if i % 4 == 0 else 20 + i, "-1"),
        (lambda i: 0 if i % 4 == 0 else 200.5 + i, "0"),
        (lambda i: 1e30 if i % 4 == 0 else i / 8, "1e+30"),
        (lambda i: -1234567.5 if i % 4 == 0 else i / 8, "-1234567.5"),
    ],
)
def test_values_apart_from_all_others_are_a_guess(column: Any, number: str, tmp_path: Path) -> None:
    file = write(tmp_path, a=column, b=lambda i: i % 9)
    for settings in ("", "target=a,task=regression"):
        said = read(file, settings)[1]
        assert sum(line.startswith(f"a guess: {number} in 15 rows of column 'a'") for line in said) == 1
    assert not any("may stand" in line for line in read(file, f"missing={number},fill=mean")[1])


def test_values_beside_others_are_no_guess(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "a": ["0", "0", "1", "5", "9"],
        "b": ["-1", "1"],
        "c": ["-1", "0", "1"],
        "d": ["1", "2", "3", "10"],
        "e": lambda i: max(0, i - 30),
    }
    _, said = read(write(tmp_path, **columns))
    assert not [line for line in said if "may stand for a missing value" in line]


def test_an_index_stored_by_pandas_is_reported(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(30.0) % 7, "y": np.arange(30.0)})
    file = tmp_path / "d.parquet"
    frame.set_index(pd.Index(np.arange(30) ** 2, name="order")).to_parquet(file)
    data, said = read(file)
    assert data.columns == (Column("a"),) and "the index 'order' left out" in said[-1]


def test_two_columns_that_may_be_the_label_are_reported(tmp_path: Path) -> None:
    _, said = read(write(tmp_path, label=["0", "1"], a=lambda i: i % 9))
    assert "label 'label' (column 'y' is learned from; target= names another)" in said[-1]


@pytest.mark.parametrize("settings", ["drop=y", "columns=a"])
def test_a_label_that_is_left_out_is_not_called_learned_from(settings: str, tmp_path: Path) -> None:
    data, said = read(write(tmp_path, label=["0", "1"], a=lambda i: i % 9), settings)
    assert data.columns == (Column("a"),)
    assert "label 'label', " in said[-1] and "is learned from" not in said[-1]
