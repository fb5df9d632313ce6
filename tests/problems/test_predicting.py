"""Predictions of trained models: with the names, categories, scaling and fillings of training, and what is refused."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.datasets import dump_svmlight_file
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.problems import Coefficients, from_data
from anyk.problems.data import load
from anyk.runs import Run, predict_file
from anyk.testing.problems import Squares
from anyk.views import coefficients_report, coefficients_table

CITIES = ["Rome", "Oslo", "Paris"]


def frame(rows: int = 60, *, gaps: bool = False, task: str = "binary") -> pd.DataFrame:
    random = np.random.default_rng(3)
    age, city = random.integers(18, 80, rows).astype(float), random.choice(CITIES, rows)
    member, score = random.random(rows) < 0.5, random.normal(size=rows) * 1e4 + 1e5
    value = age / 20 + (city == "Rome") * 2 - member + (score - 1e5) / 1e4
    y: Any = value
    if task == "binary":
        y = np.where(value > np.median(value), "yes", "no")
    elif task == "multiclass":
        y = np.digitize(value, np.quantile(value, [0.3, 0.6])) + 4
    table = pd.DataFrame({"age": age, "city": city, "member": member, "score": score, "target": y})
    if gaps:
        table.loc[[1, 5, 9], "age"] = np.nan
        table.loc[[2, 5], "city"] = None
    return table


def trained(folder: Path, table: pd.DataFrame, spec: str = "file", *, out: str = "run", **options: Any) -> Run:
    table.to_csv(folder / "train.csv", index=False)
    problem = from_data(spec, file=folder / "train.csv", progress=None, **options)
    return anyk.train(problem, "uncoded", "simulated", workers=2, steps=30, out=folder / out)


def told(call: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    return call(said.append), said


def fails(sentence: str, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(BadInput, match=sentence):
        call(*args, **more)


# ------------------------------------------------------------------------------------------- rows of all kinds


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("model", ["linear", "linear:standardize=true", "two-layer:hidden=3"])
def test_predictions_are_the_models_own(task: str, model: str, tmp_path: Path) -> None:
    """By hand from the encoded test rows; the same of a frame in another order, a dictionary, a file, an open folder."""
    if task == "regression" and model.startswith("two"):
        return
    table = frame(task=task)
    with trained(tmp_path, table, model=model) as run:
        problem: Any = from_data("file", file=tmp_path / "train.csv", progress=None, model=model)
        scores = problem._scores(problem.X_test, run.model)
        data = load("file", file=tmp_path / "train.csv", progress=None)
        if task == "regression":
            expected = scores.ravel()
        else:
            labels = np.array(["no", "yes"] if task == "binary" else [4, 5, 6])
            expected = labels[(scores.ravel() > 0).astype(int) if problem.outputs == 1 else scores.argmax(axis=1)]
            chances = (
                softmax(scores, axis=1) if problem.outputs > 1 else np.column_stack([expit(-scores), expit(scores)])
            )
            assert run.predict(data.X_test, probabilities=True) == pytest.approx(chances)
        predictions = run.predict(data.X_test)  # encoded already
        assert predictions == pytest.approx(expected) if task == "regression" else (predictions == expected).all()
        all_predictions = run.predict(table)
        shuffled = table[["score", "member", "target", "city", "age"]].assign(more=1)
        as_objects = table[["age", "city", "member", "score"]].to_numpy(dtype=object)
        for X in (shuffled, {name: list(table[name]) for name in table}, tmp_path / "train.csv", as_objects):
            assert (run.predict(X) == all_predictions).all()
        with Run.open(tmp_path / "run") as reopened:
            assert (reopened.predict(table) == all_predictions).all()
        assert (pickle.loads(pickle.dumps(run)).predict(table) == all_predictions).all()
    assert anyk.verify(tmp_path / "run").whole


def test_filled_and_standardised_as_scikit_learn_does(tmp_path: Path) -> None:
    """With the training rows' statistics alone, at the optimum; coefficients are in the units of the input."""
    table = frame(gaps=True, task="regression").drop(columns=["city", "member"])
    table.to_csv(tmp_path / "train.csv", index=False)
    problem = from_data(
        "file:fill=median", file=tmp_path / "train.csv", model="linear:standardize=true", l2=0.1, progress=None
    )
    run = anyk.train(problem, "uncoded", "simulated", workers=2, optimizer=anyk.optimizers.GD(lr=0.5), steps=300)
    order = anyk.base.keyed_generator(0, "split").permutation(60)
    rows = table.iloc[order[:48]]
    theirs = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), Ridge(alpha=0.1 * 48))
    theirs.fit(rows[["age", "score"]], rows["target"])
    new = pd.DataFrame({"age": [np.nan, 30.0], "score": [1e5, np.nan]})
    assert run.predict(new) == pytest.approx(theirs.predict(new))
    names, weights, intercepts, outputs = run.coefficients
    assert names == ("age", "score") and outputs == ("target",)
    assert weights[:, 0] == pytest.approx(theirs[-1].coef_ / theirs[1].scale_)
    filled = theirs[0].transform(new)
    assert filled @ weights[:, 0] + intercepts[0] == pytest.approx(run.predict(new))


@pytest.mark.slow
def test_text_that_is_missing_or_new(tmp_path: Path) -> None:
    table = frame(gaps=True)
    with trained(tmp_path, table, "file:fill=mean") as run:
        new = pd.DataFrame(
            {
                "age": 30.0,
                "city": [None, "N/A", "Rome", "Berlin"],
                "member": ["True", "true", "False", None],
                "score": 0.0,
            }
        )
        chances, said = told(lambda tell: run.predict(new, probabilities=True, tell=tell))
        assert len(said) == 1 and "has values that the model has not seen, such as 'Berlin', in 1 row" in said[0]
        with pytest.warns(RuntimeWarning, match="column 'city' of X has values that the model has not seen") as warned:
            run.predict(new)
        assert warned[0].filename == __file__
        assert chances[0] == pytest.approx(chances[1])
        names, weights, intercepts, outputs = run.coefficients
        assert names == (
            "age",
            "city=(missing)",
            "city=Oslo",
            "city=Paris",
            "city=Rome",
            "member",
            "score",
        ) and outputs == ("yes",)
        mean = float(run.predictor.encoding.columns[2].fill)
        assert 0 < mean < 1  # Berlin is none of the cities
        assert chances[3, 1] == pytest.approx(expit(30 * weights[0, 0] + mean * weights[5, 0] + intercepts[0]))
    with trained(tmp_path, frame(), out="strict") as run:
        new["member"] = True
        fails(
            r"column 'city' of X is missing or not finite in 2 rows; remove or fill them, or train with fill=median",
            run.predict,
            new,
        )


def test_numbers_that_are_categories_stay_text(tmp_path: Path) -> None:
    """Codes with leading zeros: a file whose codes all look like numbers is read as the text that was learned from."""
    codes = ["007", "7", "08", "x1"] * 10
    table = pd.DataFrame({"code": codes, "size": range(40), "target": [3.0, 1.0, -2.0, 0.5] * 10})
    with trained(tmp_path, table, "file:task=regression") as run:
        (tmp_path / "new.csv").write_text("size,code\n1,007\n1,7\n1,08\n")
        first, second, third = run.predict(tmp_path / "new.csv")
        assert first > second > third
        fails(
            "column 'code' of X holds numbers, but the model learned from text there; save it as text",
            run.predict,
            {"code": [7], "size": [1]},
        )


def test_tables_without_names(tmp_path: Path) -> None:
    """By order, with or without the target's column."""
    rows = [[a, b, a - 2 * b] for a in range(5) for b in range(4)]
    (tmp_path / "train.csv").write_text("".join(f"{y}.5,{a},{b}.5\n" for a, b, y in rows))
    problem = from_data("file:target=0,header=no,task=regression", file=tmp_path / "train.csv", progress=None)
    run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=400)
    expected = run.predict([[a, b + 0.5] for a, b, _ in rows])
    assert run.predict(tmp_path / "train.csv") == pytest.approx(expected)
    (tmp_path / "new.csv").write_text("".join(f"{a},{b}.5\n" for a, b, _ in rows))
    predict_file(run, tmp_path / "new.csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.reader(file))
    assert [cells[:2] for cells in written] == [[f"{a}", f"{b}.5"] for a, b, _ in rows]
    assert [float(cells[2]) for cells in written] == pytest.approx(expected)
    (tmp_path / "new.csv").write_text("1,2,3,4\n1,2,3,5\n")
    run.predict(tmp_path / "new.csv")  # the first is the target's place
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    fails("column 'column 1' of new.csv holds text, such as 'a'", run.predict, tmp_path / "new.csv")
    assert predict_file(run, tmp_path / "new.csv", tmp_path / "out.csv", header=True) == 1
    assert (tmp_path / "out.csv").read_text().startswith("a,b,prediction\n1,2,")
    (tmp_path / "new.csv").write_text("1\n2\n")
    fails("new.csv has 1 columns, but the model learned from a file of 3", run.predict, tmp_path / "new.csv")
    fails(r"X has 3 columns, but the model learned from 2", run.predict, np.ones((2, 3)))


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("base", [0, 1])
def test_svmlight(base: int, tmp_path: Path) -> None:
    """Columns keep their numbers, also in files whose first ones or last ones are empty."""
    X = sparse.csr_matrix(np.round(np.random.default_rng(0).random((40, 6)), 1))
    y = np.asarray(X.sum(axis=1)).ravel() - X[:, [1]].toarray().ravel() * 3
    dump_svmlight_file(X, y, str(tmp_path / "train.svm"), zero_based=not base)
    problem = from_data("file:task=regression", file=tmp_path / "train.svm", progress=None)
    run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=50)
    new = sparse.csr_matrix([[0, 0, 1, 0, 0, 0], [0, 0, 0, 2, 0, 0]], dtype=float)
    dump_svmlight_file(new, [0.0, 0.0], str(tmp_path / "new.svm"), zero_based=not base)
    assert run.predict(tmp_path / "new.svm") == pytest.approx(run.predict(new.toarray()))
    assert predict_file(run, tmp_path / "new.svm", tmp_path / "out.csv") == 2
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "prediction"
    (tmp_path / "new.svm").write_text(f"0 {6 + base}:1\n")
    fails("new.svm has 7 columns, but the model learned from 6", run.predict, tmp_path / "new.svm")
    (tmp_path / "new.svm").write_text("0 0:1\n")
    if base:
        fails(
            "new.svm has a column 0, but the columns that the model learned from begin with 1",
            run.predict,
            tmp_path / "new.svm",
        )
    elsewhere = anyk.train(anyk.problems.LeastSquares(X, y), "uncoded", "simulated", workers=2, steps=2)
    (tmp_path / "new.svm").write_text("0 2:1\n")
    fails(
        "may begin with 0 or with 1; add an entry of column 0, or of column 6", elsewhere.predict, tmp_path / "new.svm"
    )


def test_npz(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(30, 3)), random.normal(size=30)
    X[4, 1] = np.nan
    np.savez(tmp_path / "train.npz", X=X, y=y)
    problem = from_data("file:fill=mean", file=tmp_path / "train.npz", progress=None)
    run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=20)
    order = anyk.base.keyed_generator(0, "split").permutation(30)[:24]
    filled = np.where(np.isnan(X), np.nanmean(X[order, 1]), X)
    assert run.predict(tmp_path / "train.npz") == pytest.approx(run.predict(filled))
    assert predict_file(run, tmp_path / "train.npz", tmp_path / "out.csv") == 30
    np.savez(tmp_path / "new.npz", Z=X)
    fails("new.npz holds 'Z', but needs the array X", run.predict, tmp_path / "new.npz")
    plain = anyk.train(anyk.problems.LeastSquares(filled, y), "uncoded", "simulated", workers=2, steps=2)
    fails("column 1 of X is missing or not finite in 1 row", plain.predict, X)
    fails(r"X must be a table \(rows x columns\), got shape \(30,\)", plain.predict, y)


def test_parquet(tmp_path: Path) -> None:
    table = frame()
    with trained(tmp_path, table) as run:
        new = table.drop(columns="target").assign(day=pd.Timestamp("2024-01-01"), city=table.city.astype("category"))
        new.to_parquet(tmp_path / "new.parquet")  # with dates, which the model does not need
        for ending in ("parquet", "csv"):
            out = tmp_path / f"out.{ending}"
            predict_file(run, tmp_path / "new.parquet", out, probabilities=True)
            written = pd.read_parquet(out) if ending == "parquet" else pd.read_csv(out)
            assert list(written) == [
                "age",
                "city",
                "member",
                "score",
                "day",
                "prediction",
                "probability_no",
                "probability_yes",
            ]
            assert (written.prediction == run.predict(table)).all() and (written.score == new.score).all()
            assert written.probability_yes.to_numpy() == pytest.approx(run.predict(table, probabilities=True)[:, 1])


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's cells as they stand and one more; one sentence and exit code 2 for what does not fit."""
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, frame()).close()
    Path("new.csv").write_text('note,score,city,age,member\n"a, ""b""",1e5,Rome,030,true\n,99999.50, Oslo,41,FALSE\n')

    def call(*words: str) -> Any:
        return CliRunner().invoke(main, ["predict", *words])

    done = call("run", "new.csv", "-o", "out.csv")
    assert done.exit_code == 0 and done.stdout == "" and "2 predictions: out.csv" in done.stderr
    header, first, second = csv.reader(Path("out.csv").read_text().splitlines())
    assert header == ["note", "score", "city", "age", "member", "prediction"]
    assert first[:-1] == ['a, "b"', "1e5", "Rome", "030", "true"] and second[:-1] == [
        "",
        "99999.50",
        "Oslo",
        "41",
        "FALSE",
    ]
    piped = call("run", "new.csv", "--probabilities")
    assert piped.stdout.splitlines()[0].endswith("prediction,probability_no,probability_yes")
    chances = [list(map(float, line.split(",")[-2:])) for line in piped.stdout.splitlines()[1:]]
    assert np.sum(chances, axis=1) == pytest.approx(1.0)
    for content, sentence in (
        ("score,city,Age,member\n1,Rome,2,true\n", "new.csv lacks a column 'age', which the model learned from; did you mean 'Age'?"),
        ("score,member\n1,true\n", "new.csv lacks the columns 'age', 'city', which the model learned from; its columns: 'score', 'member'"),
        ("score,city,age,member\n1,Rome,old,true\n", "column 'age' of new.csv holds text, such as 'old', but the model learned from numbers there"),
        ("score,city,age,member,prediction\n1,Rome,2,true,3\n", "new.csv has a column 'prediction' already; rename it"),
        ("score,city,age,member\n", "new.csv has no rows"),
        ("score,city,age,member,age\n1,Rome,2,true,3\n", "new.csv has more columns called 'age' than the model learned from; leave one under that name"),
    ):  # fmt: skip
        Path("new.csv").write_text(content)
        failed = call("run", "new.csv", "-o", "out.csv")
        assert failed.exit_code == 2 and failed.stderr == f"anyk: {sentence}\n"
    assert Path("out.csv").read_text().startswith("note,")  # as it was
    assert (
        call("run", "new.csv", "-o", "new.csv").stderr
        == "anyk: 'new.csv' holds the rows themselves; give predictions another file\n"
    )
    assert "predictions for new.csv go to a file that ends in .csv" in call("run", "new.csv", "-o", "out.txt").stderr
    Path("note.txt").write_text("x")
    assert "the extension of note.txt is not that of a known format" in call("run", "note.txt").stderr


# ------------------------------------------------------------------------------------------- runs


def test_what_a_run_keeps(tmp_path: Path) -> None:
    with trained(tmp_path, frame(task="regression")) as run:
        before = run.predict(frame())
        fails("the model predicts numbers, which have no probabilities", run.predict, frame(), probabilities=True)
    (tmp_path / "train.csv").unlink()  # the data is not needed
    with Run.open(tmp_path / "run") as run:
        assert (run.predict(frame()) == before).all()
    file = tmp_path / "run" / "predictor.json"
    file.write_text(file.read_text().replace('"fill": null', '"fill": 1.0', 1))
    with Run.open(tmp_path / "run") as run:
        fails("predictor.json' is damaged or was edited", run.predict, frame())
    assert "predictor" in [check.name for check in anyk.verify(tmp_path / "run").checks if check.whole is False]
    other = anyk.train(Squares(4, 3), "uncoded", "simulated", workers=2, optimizer=anyk.optimizers.GD(), steps=1)
    fails("has no predictor: only linear models", other.predict, [[1.0]])
    race = anyk.race(from_data("digits"), ["uncoded"], workers=2, cluster="simulated", steps=1, out=tmp_path / "race")
    race.close()
    fails("name one of the runs in it", predict_file, tmp_path / "race", file)


def test_filling_is_of_training_rows_and_said(tmp_path: Path) -> None:
    frame(gaps=True).to_csv(tmp_path / "train.csv", index=False)
    fails(
        r"column 'age' of .*train.csv is missing or not finite in 3 rows; remove or fill them \(fill=median\)",
        load,
        "file",
        file=tmp_path / "train.csv",
    )
    data, said = told(lambda tell: load("file:fill=median", file=tmp_path / "train.csv", progress=tell))
    assert "3 missing values filled in by median" in said[-1] and np.isfinite(data.X_train.toarray()).all()
    (tmp_path / "train.svm").write_text("1 1:2\n2 1:3\n")
    fails(
        "fill=mean is for CSV, Parquet and npz; what .* leaves out is 0, not missing",
        load,
        "file:fill=mean",
        file=tmp_path / "train.svm",
    )
    (tmp_path / "train.csv").write_text("a,b,y\n,1,1\n,2,2\n,3,4\n")
    fails(
        "column 'a' of .* has no value in the rows to learn from; leave it out",
        load,
        "file:fill=mean",
        file=tmp_path / "train.csv",
    )
    (tmp_path / "train.csv").write_text("a,y\n1,1\ninf,2\n,4\n")
    fails(
        "column 'a' of .* is infinite in 1 row; only missing values can be filled",
        load,
        "file:fill=median",
        file=tmp_path / "train.csv",
    )


def test_of_several_models_the_first_predicts() -> None:
    problem = from_data("digits")
    run = anyk.runs.train_many([problem, problem], "uncoded", "simulated", workers=2, steps=2)
    assert run.predict(load("digits").X_test).shape == problem.y_test.shape
    fails("a two-layer network has no coefficients", lambda: anyk.train(
        from_data("digits", model="two-layer:hidden=2"), "uncoded", "simulated", workers=2, steps=1
    ).coefficients)  # fmt: skip


def test_coefficients_on_the_command_line(tmp_path: Path) -> None:
    with trained(tmp_path, frame(), model="linear:standardize=true") as run:
        names, weights, intercepts, _ = run.coefficients
    done = CliRunner().invoke(main, ["coefficients", str(tmp_path / "run")])
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[0] == ["column", "yes"] and [line[0] for line in lines[1:]] == ["intercept", *names]
    assert [float(line[1]) for line in lines[1:]] == pytest.approx([*intercepts, *weights[:, 0]], rel=1e-5)
    wide = Coefficients(tuple(map(str, range(300))), np.arange(300.0)[:, None], np.zeros(1), ("y",))
    table, note = coefficients_table(wide)
    assert [row[0] for row in table.rows] == ["intercept", *map(str, range(200, 300))] and "of 300 columns" in note
    assert len(coefficients_report(wide)["coefficients"]) == 300


# ------------------------------------------------------------------------------------------- names of any table


def test_columns_called_by_number_are_found_by_that_name(tmp_path: Path) -> None:
    """Whether a table has further columns or not: ``column 1`` is a name where a table says so."""
    (tmp_path / "t.csv").write_text("\n".join(f"{i},{i % 3},{2 * i + i % 3}" for i in range(40)))
    problem = from_data("file:header=no,task=regression", file=tmp_path / "t.csv", progress=None)
    run = anyk.train(problem, "uncoded", "simulated", workers=4, steps=300)
    assert run.coefficients.names == ("column 0", "column 1")
    expected = run.predict([[30.0, 0.0]])
    assert expected == pytest.approx([60.0], rel=0.05)
    for table in (
        {"column 0": [30], "column 1": [0]},
        {"column 1": [0], "column 0": [30]},
        {"column 1": [0], "column 0": [30], "id": [7]},
    ):
        assert run.predict(table) == pytest.approx(expected)


@pytest.mark.slow
def test_names_that_are_no_text_are_names_as_well() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = X @ [3.0, -1.0]
    frame = pd.DataFrame(X)
    tuples = frame.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]), axis=1)
    table = pa.table({"a": X[:, 0], "b": X[:, 1]})
    for given, reordered in (
        (frame, frame[[1, 0]]),
        (tuples, tuples.iloc[:, [1, 0]]),
        (table, table.select(["b", "a"])),
    ):
        problem = anyk.problems.LeastSquares(given, y, X_test=reordered, y_test=y)
        run = anyk.train(problem, "uncoded", "simulated", workers=4, steps=300)
        assert run.predict(reordered) == pytest.approx(run.predict(X)) and run.predict(X) == pytest.approx(y, abs=1e-3)
        assert run.metric is not None and run.metric["value"] < 1e-6


def test_frames_of_several_types_of_numbers() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0, "c": pd.array([1, 2] * 20, dtype="Int64")})
    problem = anyk.problems.LeastSquares(frame, X[:, 0])
    assert np.array_equal(problem.X, frame.astype(float).to_numpy())
    frame["c"] = pd.array([None, 2] * 20, dtype="Int64")
    with pytest.raises(BadInput, match="X has 20 values that are NaN or infinite"):
        anyk.problems.LeastSquares(frame, X[:, 0])
    with pytest.raises(BadInput, match="X must hold numbers, got object"):
        anyk.problems.LeastSquares(pd.DataFrame({"a": X[:, 0], "b": ["x"] * 40}), X[:, 0])


def test_labels_beyond_64_bits_stay_what_they_are() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    labels = (X[:, 0] > 0) * 1e20
    run = anyk.train(anyk.problems.LogisticRegression(X, labels), "uncoded", "simulated", workers=4, steps=50)
    assert set(run.predict(X).tolist()) == {0.0, 1e20}


def test_pandas_gaps_and_single_sparse_rows_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    run = anyk.train(anyk.problems.LeastSquares(frame, X[:, 0]), "uncoded", "simulated", workers=4, steps=5)
    for gap in (pd.NA, pd.NaT, None, float("nan")):
        with pytest.raises(BadInput, match="column 'a' of X is missing or not finite in 1 row"):
            run.predict({"a": [1.0, gap], "b": [1.0, 2.0]})
    with pytest.raises(BadInput, match=r"must be a table \(rows x columns\), got shape \(2,\)"):
        run.predict(sparse.coo_array(X[0]))
