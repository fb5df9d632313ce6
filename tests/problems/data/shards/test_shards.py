"""Shards: the same model as from arrays in memory, read by those who hold the rows and by nobody else."""

import json
import os
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk import BadInput
from anyk.cli import main
from anyk.data import Shards
from anyk.problems import LeastSquares, LogisticRegression, SoftmaxRegression
from anyk.problems.data.shards import shard_samples, sources, survey
from anyk.problems.digests import data_digest
from anyk.problems.jax import functions
from anyk.problems.jax import loss_partitions as jax_partitions
from anyk.problems.linear import sharded
from anyk.problems.linear.scaling import Scaling
from anyk.problems.torch import modules

ROWS = 120


def inline(work, pieces):
    work = cloudpickle.loads(cloudpickle.dumps(work))
    return [work(piece) for piece in pieces]


@pytest.fixture
def here(monkeypatch):
    """Passes in this process, and blocks of some rows only."""
    for module in (survey, sharded, modules):
        monkeypatch.setattr(module, "map_in_processes", inline)
    monkeypatch.setattr(sources, "_BLOCK", 600)


def numbers(seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(ROWS, 3)) * [1.0, 20.0, 0.5] + [0.0, 5.0, 0.0]
    X[random.random((ROWS, 3)) < 0.3] = 0.0
    return X, np.where(X[:, 0] + random.normal(size=ROWS) > 0, 2.0, 1.0)


def write(folder, kind, X, y, files=3, words=None):
    """Files of ``kind`` that hold these rows in order; returns their pattern."""
    import pandas as pd

    for i, rows in enumerate(np.array_split(np.arange(len(y)), files)):
        name = folder / f"part-{i}.{kind}"
        if kind in ("csv", "parquet"):
            table = pd.DataFrame(X[rows], columns=["a", "b", "c"])
            if words is not None:
                table.insert(1, "colour", words[rows])
            table["y"] = y[rows]
            table.to_csv(name, index=False) if kind == "csv" else table.to_parquet(name, row_group_size=7)
        else:
            np.savez(name, X=X[rows], y=y[rows])
    return str(folder / f"part-*.{kind}")


def loaded(address):
    with np.load(address) as shard:
        return shard["X"], shard["y"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "read"])
@pytest.mark.parametrize("model", [LogisticRegression, LeastSquares])
def test_a_model_on_shards_is_that_of_the_arrays(here, tmp_path, kind, model):
    X, y = numbers()
    files = write(tmp_path, "npz" if kind == "read" else kind, X, y)
    shards = Shards(files, read=loaded if kind == "read" else None, cache_mb=0.002)
    on_shards = model(shards, intercept=True, standardize=True, l2=0.1)
    expected = model(X, y, intercept=True, standardize=True, l2=0.1)
    assert (on_shards.samples, on_shards.dimension) == (ROWS, 4)
    np.testing.assert_allclose(on_shards.scaling.center, expected.scaling.center, atol=1e-12)
    np.testing.assert_allclose(on_shards.scaling.scale, expected.scaling.scale, rtol=1e-12)
    w = np.random.default_rng(1).normal(size=4)
    assert on_shards.loss(w) == pytest.approx(expected.loss(w), rel=1e-12)
    assert on_shards.smoothness() == pytest.approx(expected.smoothness(tol=0), rel=1e-9)
    pieces, theirs = on_shards.split(7), expected.split(7)
    for j, rows in [(0, None), (3, None), (6, None), (2, np.array([0, 4, 11, 16])), (5, np.array([16]))]:
        args = (j, w) if rows is None else (j, w, rows)
        np.testing.assert_allclose(
            pieces.partial_gradient(*args), theirs.partial_gradient(*args), rtol=1e-10, atol=1e-10
        )
    gradient = np.sum([pieces.partial_gradient(j, w) for j in range(2, 6)], axis=0)
    np.testing.assert_allclose(pieces.piece(2, 5).partial_gradient(0, w), gradient, rtol=1e-10, atol=1e-10)
    some = on_shards.sampled(40)
    assert some.loss(w) == pytest.approx(expected.sampled(40).loss(w), rel=1e-12)
    assert on_shards.evaluated_on is None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_text_labels_and_gaps_are_those_of_the_whole_table(here, tmp_path, kind):
    """Words that come in some files only, a column that looks like numbers in the first file, gaps that are filled."""
    X, _ = numbers()
    words = np.array(["7"] * 40 + ["red", "green"] * 40, dtype=object)
    words[[3, 50]] = None
    X[[2, 60], 0] = np.nan
    y = np.array(["no", "yes", "maybe"] * 40, dtype=object)
    y[:40] = "no"  # the first file has one label only
    files = write(tmp_path, kind, X, y, words=words)
    on_shards = SoftmaxRegression(Shards(files), intercept=True, fill="mean", X_test=Shards(files))
    assert on_shards.labels == ("maybe", "no", "yes")
    a, colour, *_ = on_shards.encoding.columns
    assert a.fill == pytest.approx(np.nanmean(X[:, 0]))
    assert (colour.categories, colour.fill) == (("", "7", "green", "red"), "")
    table = np.column_stack(
        [np.where(np.isnan(X[:, 0]), a.fill, X[:, 0])]
        + [np.array([(word or "") == one for word in words], float) for one in colour.categories]
        + [X[:, 1], X[:, 2]]
    )
    codes = np.array([on_shards.labels.index(label) for label in y])
    expected = SoftmaxRegression(table, codes, intercept=True, X_test=table, y_test=codes)
    w = np.random.default_rng(1).normal(size=on_shards.dimension)
    assert on_shards.loss(w) == pytest.approx(expected.loss(w), rel=1e-12)
    assert on_shards.metrics(w) == expected.metrics(w)
    assert on_shards.smoothness() == pytest.approx(expected.smoothness(tol=0), rel=1e-9)
    standard = anyk.problems.SoftmaxRegression(Shards(files), standardize=True, fill="mean", l2=0.1).scaling
    from scipy import sparse

    categories = np.array([False, True, True, True, True, False, False])
    other = Scaling.standard(sparse.csr_array(table), categories=categories, ridge=0.1 / SoftmaxRegression.curvature)
    for name in ("center", "scale", "units"):
        np.testing.assert_allclose(getattr(standard, name), getattr(other, name), rtol=1e-12, atol=1e-12)


def test_rows_of_csv_may_hold_line_breaks_and_a_byte_order_mark(here, tmp_path):
    rows = [f'"a\n{i % 3}",{i},{i % 2}' for i in range(90)]
    (tmp_path / "t.csv").write_text(
        "\ufeffword,number,y\r\n" + "\r\n".join(rows) + "\r\n", encoding="utf-8", newline=""
    )
    on_shards = LogisticRegression(Shards(str(tmp_path / "t.csv")))
    assert (on_shards.samples, on_shards.encoding.names) == (90, ("word=a\n0", "word=a\n1", "word=a\n2", "number"))
    X = on_shards.X.some(90, "train").arrays[0].toarray()
    np.testing.assert_array_equal(X[:, 3], np.arange(90))
    np.testing.assert_array_equal(X[:, :3].argmax(axis=1), np.arange(90) % 3)


_DRIVER = """
import json, os, sys
import anyk
from anyk.data import Shards
opened = []
sys.addaudithook(lambda event, args: event == "open" and "part-" in str(args[0]) and opened.append(str(args[0])))
problem = anyk.problems.LogisticRegression(Shards(sys.argv[1]), l2=0.1)
run = anyk.train(problem, "frc:stragglers=1", "processes", workers=2, steps=15, optimizer=anyk.optimizers.GD(lr=0.01))
print(json.dumps([opened, run.model.tolist(), run.loss]))
"""


@pytest.mark.slow
def test_the_driver_opens_no_shard(tmp_path):
    X, y = numbers()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DRIVER, write(tmp_path, "parquet", X, y)],
        capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened, model, loss = json.loads(done.stdout)
    assert (opened, loss) == ([], None)
    expected = anyk.train(LogisticRegression(X, y, l2=0.1), "frc:stragglers=1", "simulated", workers=2, steps=15,
                          optimizer=anyk.optimizers.GD(lr=0.01))  # fmt: skip
    np.testing.assert_allclose(model, expected.model, rtol=1e-9)


def test_the_command_line_trains_resumes_and_predicts(here, tmp_path, monkeypatch):
    X, y = numbers()
    write(tmp_path, "parquet", X, y)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    common = ["--workers", "4", "--cluster", "simulated", "--strategy", "frc:stragglers=1", "--out", "r"]
    done = run(main, ["train", "--data", "part-*.parquet", "--steps", "5", *common])
    assert done.exit_code == 0, done.output
    assert "part-*.parquet: 80 rows in 2 files, 3 columns and an intercept, task binary ('1.0', '2.0'), label 'y'; " \
        "held out: part-2.parquet" in done.output  # fmt: skip
    monkeypatch.chdir("/")
    folder = str(tmp_path / "r")
    assert run(main, ["resume", folder, "--steps", "8"]).exit_code == 0
    done = run(main, ["predict", folder, str(tmp_path / "part-2.parquet")])
    assert done.exit_code == 0, done.output
    assert set(done.output.split("\n")[1].split(",")[-1]) <= set("12.")
    file = tmp_path / "part-1.parquet"
    os.utime(file, ns=(0, 0))
    done = run(main, ["resume", folder, "--steps", "9"])
    assert done.exit_code == 2
    assert "part-*.parquet)' has changed since the run" in done.output


class TestNetworks:
    """Modules of PyTorch on shards."""

    def network(self):
        import torch

        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    @pytest.mark.parametrize("kind", ["csv", "parquet", "read"])
    def test_gradients_are_those_of_the_arrays(self, here, tmp_path, kind):
        import torch

        X, y = numbers()
        y = (y - 1).astype(np.int64)
        loss = torch.nn.CrossEntropyLoss()
        files = write(tmp_path, "npz" if kind == "read" else kind, X, y)
        shards = Shards(files, read=loaded if kind == "read" else None, cache_mb=0.001)
        on_shards = anyk.problems.TorchProblem(self.network(), loss, shards, held_out=shards, microbatch=7)
        expected = anyk.problems.TorchProblem(self.network(), loss, (X, y), held_out=(X, y))
        w = expected.initial()
        assert (on_shards.metric, on_shards.evaluated_on) == ("accuracy", "held_out")
        assert on_shards.metrics(w) == expected.metrics(w)
        assert on_shards.loss(w) == pytest.approx(expected.loss(w), rel=1e-6)
        assert on_shards.sampled(30).loss(w) == pytest.approx(expected.sampled(30).loss(w), rel=1e-6)
        pieces, theirs = on_shards.split(3), expected.split(3)
        for args in [(0, w), (2, w), (1, w, np.array([0, 3, 39]))]:
            np.testing.assert_allclose(pieces.partial_gradient(*args), theirs.partial_gradient(*args), atol=2e-5)
        assert data_digest(on_shards) != data_digest(expected)

    def test_the_driver_opens_nothing_to_compare_replicas(self, here, tmp_path, monkeypatch):
        import torch

        X, y = numbers()
        shards = Shards(write(tmp_path, "parquet", X, (y - 1).astype(int)), target="y", columns=["a", "b", "c"])
        read = []
        monkeypatch.setattr(shard_samples.BlockSamples, "_read", lambda *args: read.append(args))
        problem = anyk.problems.TorchProblem(self.network(), torch.nn.CrossEntropyLoss(), shards, held_out=shards)
        parts = problem.split(4)
        parts.compare_replicas()
        assert (read, parts.tolerance > 0) == ([], True)

    def test_arrays_by_name_go_with_a_loss_of_the_module(self, here, tmp_path):
        import torch

        for i in range(2):
            np.savez(tmp_path / f"t-{i}.npz", tokens=np.arange(40).reshape(8, 5) % 7, mask=np.tri(8, 5, i))
        shards = Shards(str(tmp_path / "t-*.npz"), read=by_name)
        torch.manual_seed(0)
        module = torch.nn.Embedding(7, 1)

        def loss(module, batch):
            return (module(batch["tokens"])[..., 0] ** 2 * batch["mask"]).sum() / batch["mask"].sum()

        def count(batch):
            return batch["mask"].sum()

        on_shards = anyk.problems.TorchProblem(module, loss, shards, count=count)
        parts = [np.load(tmp_path / f"t-{i}.npz") for i in range(2)]
        arrays = {key: np.concatenate([piece[key] for piece in parts]) for key in ("tokens", "mask")}
        expected = anyk.problems.TorchProblem(module, loss, arrays, count=count)
        w = on_shards.initial()
        assert on_shards.loss(w) == pytest.approx(expected.loss(w), rel=1e-6)
        with pytest.raises(BadInput, match="hold arrays by name; arrays by name go with a loss"):
            anyk.problems.TorchProblem(module, torch.nn.MSELoss(), shards)


class TestJax:
    """Losses in JAX on shards."""

    def test_gradients_state_and_metrics_are_those_of_the_arrays(self, here, tmp_path, monkeypatch):
        import jax.numpy as jnp

        def loss(params, batch, state, train):
            x, y = batch
            mean = x.mean(axis=0) if train else state
            value = jnp.mean((jnp.tanh((x - mean) @ params) - y) ** 2)
            return value, (0.9 * state + 0.1 * x.mean(axis=0), {"largest": jnp.mean(jnp.abs(y))})

        X, y = numbers()
        shards = Shards(write(tmp_path, "parquet", X, y), cache_mb=0.001)
        for module in (jax_partitions, functions):
            monkeypatch.setattr(module, "TOGETHER", ROWS)
        options = {"state": np.zeros(3, np.float32), "has_aux": True, "reduction": "mean"}
        on_shards, expected = (
            anyk.problems.JaxProblem(loss, np.ones(3, np.float32), data, held_out=data, **options)
            for data in (shards, (X, y))
        )
        w = expected.initial()
        assert (on_shards.samples, on_shards.evaluated_on, expected.evaluated_on) == (ROWS, "held_out", "train")
        assert on_shards.metrics(w) == pytest.approx(expected.metrics(w), rel=1e-6)
        assert on_shards.loss(w) == pytest.approx(expected.loss(w), rel=1e-6)
        assert on_shards.sampled(30).loss(w) == pytest.approx(expected.sampled(30).loss(w), rel=1e-6)
        pieces, theirs = on_shards.split(2), expected.split(2)
        for args in [(0, w), (1, w, np.array([0, 3, 39]))]:
            np.testing.assert_allclose(pieces.partial_gradient(*args), theirs.partial_gradient(*args), rtol=1e-4)
        assert data_digest(on_shards) != data_digest(expected)

    def test_a_partition_is_read_and_computed_in_parts(self, here, tmp_path, monkeypatch):
        read = []
        monkeypatch.setattr(shard_samples.BlockSamples, "_read", lambda *args: read.append(args[1]) or _READ(*args))
        (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},1\n" for i in range(900)))
        on_shards = jax_problem(Shards(str(tmp_path / "a.csv"), columns=["x"]))
        parts = on_shards.split(2)
        parts.load([0, 1])
        assert read == []
        monkeypatch.setattr(jax_partitions, "TOGETHER", 100)
        w = on_shards.initial()
        x = np.arange(900.0)
        for j, rows in [(0, x[:450]), (1, x[450:])]:
            np.testing.assert_allclose(parts.partial_gradient(j, w), 2 * (rows @ rows), rtol=1e-5)


_READ = shard_samples.BlockSamples._read


def jax_problem(data, **options):
    import jax.numpy as jnp

    def loss(w, batch):
        return jnp.mean((batch[0][:, 0] * w) ** 2) if isinstance(batch, tuple) else jnp.mean((batch * w) ** 2)

    return anyk.problems.JaxProblem(loss, np.float32(1.0), data, **options)


def by_name(address):
    with np.load(address) as shard:
        return dict(shard)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda t: Shards(f"{t}/none-*.csv"), "there is no file '.*none-"),
        (lambda t: Shards(str(t)), "is a folder; give a pattern of its files"),
        (lambda t: Shards([f"{t}/a.csv", f"{t}/p.parquet"]), "shards must all be of one kind, got .*a.csv and .*p.parq"),
        (lambda t: Shards(f"{t}/*.npz"), r"c.npz cannot be a shard: shards are Parquet \(.parquet\) or CSV"),
        (lambda t: anyk.problems.from_data(f"{t}/*.svm"), "d.svm cannot be a shard: .* any other format give read="),
        (lambda t: Shards(f"{t}/odd.txt"), "for any other format give read="),
        (lambda t: Shards([f"{t}/a.csv", f"{t}/a.csv"]), "1 of the files are named twice"),
        (lambda t: Shards(f"{t}/c.npz", target="y", read=by_name), "target is for parquet and csv files, and these are"),
        (lambda t: Shards(f"{t}/a.csv", rows=[1, 2]), "rows must be one number for each of the 1 files, got 2"),
        (lambda t: LeastSquares(Shards(f"{t}/[ab].csv")), "b.csv has the columns 'u', 'y', .*a.csv has 'x', 'y'"),
        (lambda t: LeastSquares(Shards(f"{t}/gap.csv")), r"column 'x' of .*gap.csv is missing or not finite in 1 rows"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv", target="z")), "no column 'z' for the target"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv", columns=["z"])), "no column 'z'; its columns: 'x', 'y'"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv", rows=9)), "rows says 9, and the files have 4"),
        (lambda t: LogisticRegression(Shards(f"{t}/a.csv")), "has 4 different values but task=binary needs two"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv"), [1.0]), "shards bring their own rows .*; leave y out"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv"), weights=[1.0]), "leave weights out"),
        (lambda t: LeastSquares(Shards(f"{t}/a.csv"), X_test=[[1.0]], y_test=[1.0]), "must be shards, too"),
        (lambda t: jax_problem(Shards(f"{t}/a.csv"), workers="numpy"), "workers='numpy' take arrays in memory"),
        (lambda t: jax_problem(np.ones(4), held_out=Shards(f"{t}/a.csv"), metrics={"m": max}), "take all held-out rows at"),
        (lambda t: LeastSquares([[1.0]]), "y, the targets of X, is missing"),
        (lambda t: anyk.problems.TwoLayerNetwork(Shards(f"{t}/a.csv"), [1.0]), "is for data in memory"),
        (lambda t: anyk.problems.from_data(f"shards:{t}/a.csv,test=*.csv"), "there is no file"),
        (lambda t: anyk.problems.from_data(f"shards:{t}/*.csv,test={t}/*.csv"), "none is left to train on"),
        (lambda t: anyk.problems.from_data(f"{t}/*.csv", split="dirichlet:alpha=1"), "shards stay in their files"),
        (lambda t: anyk.problems.load(f"shards:{t}/a.csv"), "there are no arrays to load"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(here, tmp_path, make, sentence):
    (tmp_path / "a.csv").write_text("x,y\n1,1\n2,2\n3,3\n4,4.5\n")
    (tmp_path / "b.csv").write_text("u,y\n1,1\n2,2\n3,3\n")
    (tmp_path / "gap.csv").write_text("x,y\n1,1\n,2\n3,3\n")
    for name in ("odd.txt", "p.parquet", "d.svm"):
        (tmp_path / name).write_text("x")
    np.savez(tmp_path / "c.npz", X=np.eye(2), y=np.arange(2.0))
    with pytest.raises(BadInput, match=sentence):
        make(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "read"])
def test_a_shard_that_changes_while_it_is_used_is_named(here, tmp_path, kind):
    """With other values in as many rows, shorter, gone, and with a pipe in its place, which keeps nobody waiting."""
    X, y = np.arange(36.0).reshape(12, 3), np.arange(12.0)
    pattern = write(tmp_path, "npz" if kind == "read" else kind, X, y, files=1)
    (file,) = tmp_path.glob("part-0.*")
    parts = LeastSquares(Shards(pattern, cache_mb=1e-9, read=loaded if kind == "read" else None)).split(2)
    before = parts.partial_gradient(0, np.zeros(3)).tobytes()
    content, facts = file.read_bytes(), file.stat()

    def expect(sentence):
        with pytest.raises(anyk.RunFailed, match=sentence):
            parts.partial_gradient(0, np.zeros(3))

    write(tmp_path, "npz" if kind == "read" else kind, X[::-1], y, files=1)
    os.utime(file, ns=(0, facts.st_mtime_ns + 10**9))  # clocks of files are coarse
    expect("part-0.* has changed since the run began: ")
    file.write_bytes(content[: len(content) // 2])
    expect(f"changed since the run began: {len(content) // 2:,} bytes where there were {len(content):,}")
    file.unlink()
    expect(r"part-0.* cannot be read \(No such file or directory\)")
    os.mkfifo(file)
    expect("part-0.*is not a regular file")
    file.unlink()
    file.write_bytes(content)
    os.utime(file, ns=(0, facts.st_mtime_ns))
    assert parts.partial_gradient(0, np.zeros(3)).tobytes() == before
    os.unlink(file)
    os.mkfifo(file)
    with pytest.raises(BadInput, match="is not a regular file"):
        Shards(pattern)


def test_a_remote_shard_that_changes_is_named(here):
    from fsspec import filesystem

    store = filesystem("memory")
    store.pipe("/changing/a.csv", b"x,y\n1,2\n3,4\n5,7\n")
    parts = LeastSquares(Shards("memory://changing/a.csv", cache_mb=1e-9)).split(2)
    parts.partial_gradient(0, np.zeros(1))
    store.pipe("/changing/a.csv", b"x,y\n1,3\n3,4\n5,7\n")
    with pytest.raises(
        anyk.RunFailed, match=r"memory:///changing/a\.csv has changed since the run began: written again"
    ):
        parts.partial_gradient(0, np.zeros(1))


def test_a_row_of_csv_that_lost_cells_is_named(here, tmp_path):
    """Even if size and time of its file are as before."""
    file = tmp_path / "a.csv"
    file.write_text("x,y\n" + "".join(f"{i},{i}\n" for i in range(9)))
    parts, facts = LeastSquares(Shards(str(file), cache_mb=1e-9)).split(2), file.stat()
    file.write_text(file.read_text().replace("3,3", "313"))
    os.utime(file, ns=(0, facts.st_mtime_ns))
    with pytest.raises(anyk.RunFailed, match="a.csv has rows that do not have equally many cells"):
        parts.partial_gradient(0, np.zeros(1))


@pytest.mark.slow
def test_the_sentence_of_a_process_that_reads_is_the_users(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,1\n2\n")
    with pytest.raises(BadInput, match=r"a.csv cannot be read as CSV: row 3 has 1 cell, the first has 2"):
        LeastSquares(Shards(str(tmp_path / "a.csv")))
