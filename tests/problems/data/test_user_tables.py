"""What a file may mean is never guessed in silence: columns by name, numbers by value, labels that training rows have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Simulated
from anyk.data import Shards
from anyk.problems import LeastSquares, from_data
from anyk.tables.column_rules import marked_number

random = np.random.default_rng(0)
A, B = random.uniform(1.0, 3.0, 40), random.uniform(0.0, 5.0, 40)
PRICE = 3.0 * A - 2.0 * B + 7.0


def write(path: Path, names: str, *columns: Any) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([*([names] if names else []), *rows]) + "\n")
    return path


def train(problem: Any, steps: int = 300) -> Any:
    return anyk.train(problem, "uncoded", Simulated(2), steps=steps)


# ------------------------------------------------------------------------------------------- held-out shards


def shards(folder: Path, order: str, **more: Any) -> Any:
    columns = {"size": A, "rooms": B, "price": PRICE, **more}
    return write(folder / "held.csv", order, *(columns[name] for name in order.split(",")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", ["price,rooms,size", "rooms,size,price", "size,rooms,price,label", "size,rooms,price,z"]
)
def test_held_out_shards_have_the_columns_of_training_shards(order: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "size,rooms,price", A, B, PRICE)
    held = shards(tmp_path, order, label=np.arange(40), z=np.arange(40))
    problem = LeastSquares(
        Shards(str(tmp_path / "train.csv")), X_test=Shards(str(held)), intercept=True, standardize=True
    )
    assert train(problem).metric["value"] < 1e-3


@pytest.mark.slow
def test_a_held_out_target_of_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "size,rooms,price", A, B, PRICE)
    held = shards(tmp_path, "size,rooms,price")
    with pytest.raises(BadInput, match="the target of held_out is 'rooms', but the model learns 'price'"):
        LeastSquares(Shards(str(tmp_path / "train.csv")), X_test=Shards(str(held), target="rooms"))
    lacking = write(tmp_path / "lacking.csv", "size,rooms", A, B)
    with pytest.raises(BadInput, match="has no column 'price'"):
        LeastSquares(Shards(str(tmp_path / "train.csv")), X_test=Shards(str(lacking)))


@pytest.mark.slow
def test_held_out_text_in_place_of_numbers_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "size,rooms,price", A, B, PRICE)
    held = write(tmp_path / "held.csv", "size,rooms,price", A[:3], B[:3], ["1", "x", "2"])
    with pytest.raises((BadInput, anyk.RunFailed), match="the target of .*held.csv holds text"):
        train(LeastSquares(Shards(str(tmp_path / "train.csv")), X_test=Shards(str(held))), steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_networks_read_held_out_shards_by_name(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "size,rooms,price", A, B, PRICE)
    held = shards(tmp_path, "rooms,size,price,y", y=np.arange(40))
    given = Shards(str(tmp_path / "train.csv"), target="price"), Shards(str(held), target="price")
    if kind == "torch":
        torch = pytest.importorskip("torch")

        class Flat(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.linear = torch.nn.Linear(2, 1)
                torch.nn.init.zeros_(self.linear.weight)
                torch.nn.init.zeros_(self.linear.bias)

            def forward(self, x: Any) -> Any:
                return self.linear(x)[:, 0]

        problem: Any = anyk.problems.TorchProblem(Flat(), torch.nn.MSELoss(), given[0], held_out=given[1])
    else:
        jnp = pytest.importorskip("jax.numpy")

        def loss(params: Any, batch: Any) -> Any:
            return jnp.mean((batch[0] @ params["w"] + params["b"] - batch[1]) ** 2)

        problem = anyk.problems.JaxProblem(loss, {"w": jnp.zeros(2), "b": jnp.zeros(())}, given[0], held_out=given[1])
    w = random.normal(size=3).astype("f4")
    assert next(iter(problem.metrics(w).values())) == pytest.approx(problem.loss(w), rel=1e-4)


@pytest.mark.slow
def test_a_float_target_beside_a_stored_index_stays_a_float(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    torch = pytest.importorskip("torch")
    frame = pandas.DataFrame({"a": A, "b": B, "price": A * 3 + 0.5}, index=pandas.Index(np.arange(40) * 2, name="rid"))
    frame.to_parquet(tmp_path / "t.parquet")
    seen = []

    def loss(outputs: Any, targets: Any) -> Any:
        seen.append(targets.dtype)
        return ((outputs[:, 0] - targets) ** 2).mean()

    anyk.problems.TorchProblem(torch.nn.Linear(2, 1), loss, Shards(str(tmp_path / "t.parquet")))
    assert set(seen) == {torch.float32}


# ------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("word", ["?", "n.b.", ""])
def test_a_missing_number_is_one_in_any_column(word: str, tmp_path: Path) -> None:
    cells = [word, "99.0", "10.5", "11", "99", *map(str, range(12, 27))]
    file = write(tmp_path / "t.csv", "a,b,y", cells, range(20), np.arange(20) % 2)
    said: list[str] = []
    from_data(f"file:missing={word or 'x'}|99,fill=mean", file=file, progress=said.append)
    assert "3 missing values filled in by mean" in "\n".join(said)


@pytest.mark.parametrize("cell", ["--1", "+-5", "- -1", "-$-5", "(-3)", "(+3)"])
def test_two_signs_make_no_number(cell: str) -> None:
    assert marked_number(cell) is None


@pytest.mark.parametrize(
    ("cell", "number"), [("-$5", -5.0), ("$-5", -5.0), ("(3 kg)", -3.0), ("- 7", -7.0), ("+.5", 0.5)]
)
def test_one_sign_makes_a_number(cell: str, number: float) -> None:
    found = marked_number(cell)
    assert found is not None and found[0] == number


def test_a_number_with_a_fraction_is_no_date(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", "day,y", ["20240101", "20240102.7", "20240103", "20240104"], [0, 1, 0, 1])
    with pytest.raises(BadInput, match="'20240102.7' in row 2 is no ISO date"):
        from_data("file:dates=day,test=0.5", file=file, progress=None)


def test_points_of_thousands_are_doubted_in_units_and_targets(tmp_path: Path) -> None:
    amounts = ["1.234", "12.345", "999", "2.345", "3.456", "4.567"] * 4
    said: list[str] = []
    file = write(tmp_path / "t.csv", "a,y", [f"{amount} €" for amount in amounts], np.arange(24) % 2)
    from_data("file:numbers=a", file=file, progress=said.append)
    file = write(tmp_path / "u.csv", "a,y", np.arange(24) % 5, amounts)
    from_data("file:task=regression", file=file, progress=said.append)
    assert sum("look as if points separated thousands" in one for one in said) == 2


# ------------------------------------------------------------------------------------------- new rows


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["header=no,target=0,columns=2/1", "header=no,target=0,columns=1/2"])
def test_columns_without_names_are_in_the_order_of_the_file(spec: str, tmp_path: Path) -> None:
    run = train(from_data(f"file:{spec}", file=write(tmp_path / "t.csv", "", PRICE, A, B, A * B), progress=None), 600)
    whole = run.predict(tmp_path / "t.csv")
    assert run.predict(write(tmp_path / "two.csv", "", A, B)) == pytest.approx(whole)
    with pytest.raises(BadInput, match="has 3 columns, but the model learned from a file of 4, of which it uses 2"):
        run.predict(write(tmp_path / "three.csv", "", A, B, A * B))


@pytest.mark.slow
def test_a_data_frame_is_known_by_its_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": A, "rooms": B})
    run = train(LeastSquares(frame, PRICE, intercept=True))
    expected = run.predict(frame)
    assert run.predict(frame[["rooms", "size"]]) == pytest.approx(expected)
    assert run.predict({"rooms": B, "size": A, "more": B}) == pytest.approx(expected)
    assert run.predict(frame.to_numpy()) == pytest.approx(expected)
    with pytest.raises(BadInput, match="lacks a column 'size'"):
        run.predict(frame[["rooms"]])
    held = LeastSquares(frame, PRICE, X_test=frame[["rooms", "size"]], y_test=PRICE, intercept=True)
    assert train(held).metric["value"] == pytest.approx(2 * held.loss(run.model), rel=1e-6)
    with pytest.raises(BadInput, match=r"X_test has the columns 'size', 'other', X has 'size', 'rooms'"):
        LeastSquares(frame, PRICE, X_test=frame.rename(columns={"rooms": "other"}), y_test=PRICE)


def test_what_is_no_column_is_refused_in_a_sentence() -> None:
    pandas = pytest.importorskip("pandas")
    run = train(LeastSquares(pandas.DataFrame({"size": A, "rooms": B}), PRICE), 5)
    for rows in ({"size": 1.0, "rooms": 2.0}, {"size": [[1.0]], "rooms": [[2.0]]}):
        with pytest.raises(BadInput, match="a column of X must be a list of values, one for each row"):
            run.predict(rows)
    pyarrow = pytest.importorskip("pyarrow")
    assert run.predict(pyarrow.table({"rooms": B, "size": A})) == pytest.approx(run.predict({"size": A, "rooms": B}))
    with pytest.raises(BadInput, match="X must hold numbers, got timedelta64"):
        LeastSquares(np.arange(6).reshape(3, 2).astype("m8[s]"), np.arange(3.0))


# ------------------------------------------------------------------------------------------- labels


def test_labels_of_held_out_rows_alone_are_no_classes(tmp_path: Path) -> None:
    X, y = random.normal(size=(12, 2)), np.array(["yes", "no"] * 6)
    np.savez(tmp_path / "t.npz", X=X, y=y, X_test=X[:2], y_test=np.array(["yes", "yse"]))
    with pytest.raises(BadInput, match="labels that no training row has: 'yse'"):
        from_data("file", file=tmp_path / "t.npz", progress=None)
    said: list[str] = []
    labels = ["red", "blue"] * 12
    for place in range(24):  # in some rows it is held out
        file = write(tmp_path / "t.csv", "a,b,y", A[:24], B[:24], [*labels[:place], "rad", *labels[place + 1 :]])
        from_data("file", file=file, progress=said.append)
    assert 2 <= sum("no training row has: 'rad'; the model cannot learn them" in one for one in said) <= 8


def test_labels_of_numbers_are_refused_as_text_of_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"a": A, "y": np.arange(40) % 4}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="has numbers in the file, not text"):
        from_data("file:text=y", file=tmp_path / "t.parquet", progress=None)


def test_large_decimals_of_parquet_are_not_merged(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    numbers = pyarrow.array([90071992547409920 + i for i in range(40)]).cast(pyarrow.decimal128(20, 0))
    parquet.write_table(pyarrow.table({"id": numbers, "a": A, "y": np.arange(40) % 2}), tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="too long for float64"):
        from_data("file", file=tmp_path / "t.parquet", progress=None)


@pytest.mark.parametrize(
    ("X", "what"),
    [(np.ma.masked_less(np.eye(4), 0.5), "masked float64"), (np.eye(4) * 1j, "complex128"), ([[1.0]], "list")],
)
def test_a_data_set_is_of_real_numbers(X: Any, what: str) -> None:
    from anyk.problems.data.dataset import assemble

    with pytest.raises(BadInput, match=f"X of a data set must be an array of real numbers, got {what}"):
        assemble(X, np.arange(4.0), "regression", test=0.25, seed=0)


@pytest.mark.slow
def test_shards_say_what_one_pass_shows(tmp_path: Path) -> None:
    colours, days = ["red", "blue"] * 20, [20240101 + i % 28 for i in range(40)]
    long = [90071992547409920 + i for i in range(40)]
    sizes = ["" if i == 3 else str(i) for i in range(40)]
    codes, truths = ["001", "02"] * 20, ["true", "false"] * 20
    columns = colours, codes, truths, days, long, sizes, np.arange(40) % 3
    write(tmp_path / "t-0.csv", "colour,code,new,day,id,size,y", *(column[:20] for column in columns))
    write(tmp_path / "t-1.csv", "colour,code,new,day,id,size,y", *(column[20:] for column in columns))
    said: list[str] = []
    from_data(f"shards:files=({tmp_path}/t-*.csv),test=none,fill=mean", progress=said.append)
    text = "\n".join(said)
    for sentence in (
        "one-hot encoding the text column 'colour': 2 different values",
        "column 'code' has codes such as '001'",
        "column 'day' is learned from as numbers, although they look like dates, from 20240101 to 20240128",
        "column 'id' is learned from, although it has numbers such as 9007199254740",
        "\n1 missing value filled in by mean",
        "the 3 different whole numbers in 'y' are classes",
    ):
        assert sentence in text, text


# ------------------------------------------------------------------------------------------- new rows


ZONED = [f"2024-01-{1 + i % 28:02d}T00:00+02:00" for i in range(40)]
LOCAL = [day[:16] for day in ZONED]


@pytest.mark.parametrize(
    ("learned", "new", "why"), [(LOCAL, ZONED, "with .* from dates without"), (ZONED, LOCAL, "without .* dates with")]
)
def test_dates_of_new_rows_have_a_time_zone_as_in_training(learned: Any, new: Any, why: str, tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", "day,size,price", learned, A, PRICE)
    run = train(from_data("file:dates=day,target=price,task=regression", file=file, progress=None), 5)
    same = write(tmp_path / "same.csv", "day,size", learned[::-1], A)
    assert len(run.predict(same)) == 40
    with pytest.raises(BadInput, match=f"has dates {why}"):
        run.predict(write(tmp_path / "new.csv", "day,size", new, A))


TRUTHS = ["true", "false"] * 20


def problems_of(file: Path) -> list[Any]:
    """The problem of a file, read as a whole, in shards, and as a data frame of numbers."""
    frame = pytest.importorskip("pandas").read_csv(file)
    return [
        from_data("file:target=price,task=regression", file=file, progress=None),
        from_data(f"shards:files={file},target=price,task=regression", progress=None),
        LeastSquares(frame[["new", "size"]].astype(float), frame["price"]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("learned", [TRUTHS, [1, 0] * 20])
def test_true_and_false_stand_for_one_and_zero(learned: Any, tmp_path: Path) -> None:
    """In any file of new rows, if all values learned from are such; and in shards as in one file."""
    file = write(tmp_path / "train.csv", "new,size,price", learned, A, PRICE)
    for problem in problems_of(file):
        run = train(problem, 5)
        words, digits = (write(tmp_path / "new.csv", "new,size", new, A) for new in (TRUTHS, [1, 0] * 20))
        assert run.predict(words) == pytest.approx(run.predict(digits))


@pytest.mark.slow
@pytest.mark.parametrize("learned", [[0, 2] * 20, [0.0, 1.0, 0.25, 0.75] * 10, [-1, 1] * 20, [1.0, 0.5] * 20])
def test_true_and_false_are_no_other_numbers(learned: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", "new,size,price", learned, A, PRICE)
    for problem in problems_of(file):
        run = train(problem, 5)
        with pytest.raises(
            BadInput, match="column 'new' .* holds text, such as 'true', but the model learned from num"
        ):
            run.predict(write(tmp_path / "new.csv", "new,size", TRUTHS, A))
