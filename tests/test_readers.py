"""Every reader of what others write, on valid files and specs that were damaged: a result or one sentence, BadInput.

Never another exception, a warning, a hang or more memory than a small file deserves. ``scripts/soak readers`` tries
thousands, new ones each time.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # imported here, so that what importing takes is not put down to a reader
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from anyk import clusters, codes, compression, delays, graphs, optimizers, strategies
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.delays import Trace
from anyk.problems.data import load
from anyk.problems.data.dataset import Dataset
from base.test_specs import CODES, DELAYS, OPTIMIZERS, SCHEDULES, STRATEGIES
from hanging import within

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("ANYK_EXAMPLES", "60"))  # of each reader
MOST = 24_000_000  # bytes that reading a file of a few kilobytes may take, libraries' own buffers included

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What is imported on first use takes memory and time, which is not the reader's."""
    for name in ("sklearn.datasets", "sklearn.preprocessing", "scipy.stats", "scipy.optimize", "scipy.sparse.csgraph"):
        import_module(name)


def attempt(call: Callable[[], Any]) -> Any:
    """What ``call`` returns, or None where it raises BadInput with a sentence of a bearable length."""
    result, peak = _measured(call)
    if peak >= MOST:  # what is imported on first use is not the reader's
        result, peak = _measured(call)
    assert peak < MOST, f"took {peak / 1e6:.0f} MB"
    return result


def _measured(call: Callable[[], Any]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        with within(30, of_processor=True):
            try:
                result = call()
            except BadInput as error:
                assert 10 < len(str(error)) < 2500, str(error)
                result = None
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------- damage

NASTY = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\n\n", b'"', b'"\n"', b'""', b",", b",,", b";", b"\t",
    b" ", b"1e999", b"-1e999", b"1e-999", b"-0", b"-1", b"nan", b"inf", b"NA", b"1_000", b"0x10", b"9" * 30, b"9" * 400,
    b"\xc3\x28", b"\xf0\x9f\x98\x80", "٣".encode(), b"\x1a", b"#", b":", b"=", b"(", b")", b"/", b"'", b"\\", b"a" * 200,
    b"4294967295", b"2147483648", b"18446744073709551616", b"1:1", b"qid:1", b"0:5", b"-3:1", b"{", b"}", b"[", b"]",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: bytes, *, most: int = 3) -> bytes:
    """Content that was cut, flipped, spliced, filled with what readers stumble over, or written in another encoding."""
    for _ in range(draw(st.integers(1, most))):
        size = len(content)
        start = draw(st.integers(0, size))
        stop = min(size, start + draw(st.sampled_from([0, 1, 2, 4, 8, 40, 1000])))
        match draw(st.sampled_from(["cut", "drop", "flip", "insert", "replace", "number", "double", "move", "code"])):
            case "cut":
                content = content[:start]
            case "drop":
                content = content[:start] + content[stop:]
            case "flip" if size:
                position = min(start, size - 1)
                content = (
                    content[:position]
                    + bytes([content[position] ^ draw(st.integers(1, 255))])
                    + content[position + 1 :]
                )
            case "insert":
                content = content[:start] + draw(st.sampled_from(NASTY)) + content[start:]
            case "replace":
                content = (
                    content[:start] + draw(st.binary(min_size=stop - start, max_size=stop - start)) + content[stop:]
                )
            case "number":
                numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
                if numbers:
                    one = numbers[draw(st.integers(0, len(numbers) - 1))]
                    content = content[: one.start()] + draw(st.sampled_from(NASTY)) + content[one.end() :]
            case "double":
                content = content[:stop] + content[start:]
            case "move":
                piece = content[start:stop]
                remainder = content[:start] + content[stop:]
                position = draw(st.integers(0, len(remainder)))
                content = remainder[:position] + piece + remainder[position:]
            case "code":
                wanted = draw(st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-7", "cp1252", "cp037"]))
                content = content.decode("latin-1").encode(wanted, errors="replace")
    return content


@st.composite
def damaged_zip(draw: st.DrawFn, content: bytes) -> bytes:
    """An archive with a damaged member, whose checksum is right again; or an archive that is damaged itself."""
    if draw(st.booleans()):
        return draw(damaged(content))
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        names = old.namelist()
        hurt = draw(st.sampled_from(names))
        packing = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
        with zipfile.ZipFile(buffer, "w", packing) as new:
            for name in names:
                member = old.read(name)
                if name == hurt:  # mostly the header, where shape and type stand
                    head = draw(damaged(member[:128])) if draw(st.booleans()) else _header(draw)
                    member = head + member[128:]
                new.writestr("other.npy" if name == hurt and draw(st.integers(0, 9)) == 0 else name, member)
    return buffer.getvalue()


def _header(draw: st.DrawFn) -> bytes:
    """A header of npy that says something else."""
    sizes = st.sampled_from(
        ["0", "1", "8", "-1", "-8", str(10**6), str(10**12), str(2**63), str(10**40), "True", "1.5"]
    )
    kinds = ["<f8", ">f8", "<f4", "<f2", "<f16", "<i8", "|u1", "|b1", "<c16", "<U1", "<U0", "<U99999999", "|S3", "|O"]
    kinds += ["<M8[s]", "|V8", "[('a', '<f8')]", "nonsense", "('<f8', (2, 2))", "<U2147483647"]
    kind = draw(st.sampled_from(kinds))
    described = kind if kind[0] in "[(" else repr(kind)
    shape = ", ".join(draw(st.lists(sizes, max_size=3)))
    header = f"{{'descr': {described}, 'fortran_order': {draw(st.booleans())}, 'shape': ({shape},), }}"
    header = draw(st.sampled_from([header, header.replace("True", "1L"), "(" * 3000, header[:-4], header + "'\\d'"]))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode()[:117].ljust(117) + b"\n"


# ------------------------------------------------------------------------------------------- files

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 3)).round(3)
WORDS = ["red", "green", 'bl"ue', "a,b", "new\nline", "été"]


def quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


CSV = "number,word,other,target\n" + "".join(
    f"{X[i, 0]},{quoted(WORDS[i % 6])},{X[i, 1]},{'yes' if i % 3 else 'no'}\n" for i in range(ROWS)
)
BARE = "".join(",".join(map(str, row)) + "\n" for row in X.tolist())
SVM = "".join(f"{i % 2} 1:{X[i, 0]} 7:{X[i, 1]} # a remark\n" for i in range(ROWS))
LONG = "round,worker,duration_ms\n" + "".join(f"{r},{w},{r + w + 0.5}\n" for r in range(4) for w in range(3))


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def checked(data: Dataset | None) -> None:
    """What can be said of any data set."""
    if data is None:
        return
    for X, y in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        assert X.ndim == 2 and X.shape[0] == len(y) >= 1 and X.shape[1] >= 1
        assert np.isfinite(X.data if sparse.issparse(X) else X).all() and np.isfinite(y).all()
    if data.task != "regression":
        assert len(set(data.y_train)) > 1 and len(data.classes) > 1


@fuzz
@given(
    data=st.data(), name=st.sampled_from(["d.csv", "d.csv.gz", "d.csv.bz2"]), header=st.sampled_from(["", ":header=no"])
)
def test_csv(data: st.DataObject, name: str, header: str, tmp_path: Path) -> None:
    content = data.draw(damaged(data.draw(st.sampled_from([CSV, BARE])).encode()))
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(name.rpartition(".")[2], bytes)
    content = pack(content)
    if name != "d.csv" and data.draw(st.integers(0, 3)) == 0:
        content = data.draw(damaged(content))
    (tmp_path / name).write_bytes(content)
    checked(attempt(lambda: load(f"file{header}", file=tmp_path / name, progress=str)))


@fuzz
@given(content=damaged(SVM.encode()))
def test_svmlight(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "d.svm").write_bytes(content)
    checked(attempt(lambda: load("file", file=tmp_path / "d.svm", progress=None)))


NPZ = [
    npz(X=X, y=np.arange(ROWS)),
    npz(X=X.astype(np.float32), y=np.array(["a", "bb"] * 6), X_test=X[:2], y_test=np.array(["a", "bb"])),
]


@fuzz
@given(content=st.sampled_from(NPZ).flatmap(damaged_zip))
def test_npz(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    checked(attempt(lambda: load("file", file=tmp_path / "d.npz", progress=None)))


@fuzz
@given(data=st.data())
def test_parquet(data: st.DataObject, tmp_path: Path) -> None:
    table = parquet(a=X[:, 0], word=[WORDS[i % 6] for i in range(ROWS)], n=list(range(ROWS)), y=X[:, 2])
    ends = data.draw(st.booleans())  # what a file is lies in its last part
    content = table[:-600] + data.draw(damaged(table[-600:])) if ends else data.draw(damaged(table))
    (tmp_path / "d.parquet").write_bytes(content)
    checked(attempt(lambda: load("file", file=tmp_path / "d.parquet", progress=None)))


@fuzz
@given(data=st.data())
def test_idx(data: st.DataObject, tmp_path: Path) -> None:
    images, labels = idx(np.arange(ROWS * 4).reshape(ROWS, 2, 2)), idx(np.arange(ROWS) % 3)
    if data.draw(st.booleans()):
        images = data.draw(damaged(images[:16])) + images[16:]
    else:
        labels = data.draw(damaged(labels))
    if data.draw(st.booleans()):
        images = gzip.compress(images)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    checked(attempt(lambda: load("mnist-idx", file=tmp_path, progress=None)))


COLUMNS = ["ACTION", "RESOURCE", "MGR_ID", "ROLE_ROLLUP_1", "ROLE_ROLLUP_2", "ROLE_DEPTNAME", "ROLE_TITLE"]
COLUMNS += ["ROLE_FAMILY_DESC", "ROLE_FAMILY", "ROLE_CODE"]
AMAZON = ",".join(COLUMNS) + "\n" + "".join(f"{i % 2}," + f"{i % 4}," * 8 + "1\n" for i in range(ROWS))
COVER = "".join(f"{i}," * 54 + f"{1 + i % 2}\n" for i in range(ROWS))


@fuzz
@given(data=st.data(), source=st.sampled_from(["amazon", "covertype"]))
def test_local_copies(data: st.DataObject, source: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(data.draw(damaged((AMAZON if source == "amazon" else COVER).encode())))
    checked(attempt(lambda: load(source, file=tmp_path / "d.csv", progress=None)))


@fuzz
@given(
    data=st.data(), form=st.sampled_from(["csv", "csv.gz", "npz", "parquet"]), unit=st.sampled_from(["", ",unit=us"])
)
def test_traces(data: st.DataObject, form: str, unit: str, tmp_path: Path) -> None:
    times = np.abs(X)
    if form == "npz":
        content = data.draw(damaged_zip(npz(seconds=times, load=0.25, censored=times > 1)))
    elif form == "parquet":
        content = data.draw(damaged(parquet(w0=times[:, 0], w1=times[:, 1])))
    else:
        wide = "".join(f"{i},{times[i, 0]},{times[i, 1]}\n" for i in range(ROWS))
        content = data.draw(damaged(data.draw(st.sampled_from([LONG, wide, "round,a,b\n" + wide])).encode()))
        content = gzip.compress(content) if form == "csv.gz" else content
    file = tmp_path / f"t.{form}"
    file.write_bytes(content)
    trace = attempt(lambda: delays.parse(f"trace:{file}{unit}"))
    if trace is not None:
        assert isinstance(trace, Trace) and trace.times.ndim == 2 and trace.times.size and trace.summary
        assert ((trace.times >= 0) & (trace.times <= 1e9)).all()
        assert delays.parse(trace.spec) == trace


@fuzz
@given(data=st.data(), form=st.sampled_from(["csv", "npy"]))
def test_mixing_matrices(data: st.DataObject, form: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.full((4, 4), 0.25))
    content = buffer.getvalue() if form == "npy" else b"0.25,0.25,0.25,0.25\n" * 4
    (tmp_path / f"m.{form}").write_bytes(data.draw(damaged(content)))
    attempt(lambda: graphs.graph(f"file:{tmp_path / f'm.{form}'}", workers=4))


HARMLESS: list[Callable[[str], bytes]] = [
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: (text + "\n\n").encode(),
    lambda text: text.replace(",", ", ").encode(),
    lambda text: text.removesuffix("\n").encode(),
    lambda text: "\n".join(",".join(map(quoted, line.split(","))) for line in text.splitlines()).encode(),
    lambda text: text.replace("\n", "\r").encode(),
]


@pytest.mark.parametrize("rewrite", HARMLESS)
def test_the_same_table_written_in_another_way_is_the_same(rewrite: Callable[[str], bytes], tmp_path: Path) -> None:
    plain = CSV.replace("a,b", "ab").replace("new\nline", "newline").replace('"', "")
    (tmp_path / "a.csv").write_bytes(plain.encode())
    (tmp_path / "b.csv").write_bytes(rewrite(plain))
    one, two = (load("file", file=tmp_path / name, progress=None) for name in ("a.csv", "b.csv"))
    assert (one.X_train != two.X_train).nnz == 0 and (one.y_train == two.y_train).all()
    assert (one.columns, one.label, one.classes) == (two.columns, two.label, two.classes)
    (tmp_path / "a.csv").write_bytes(LONG.encode())
    (tmp_path / "b.csv").write_bytes(rewrite(LONG))
    assert (Trace(str(tmp_path / "a.csv")).times == Trace(str(tmp_path / "b.csv")).times).all()


# ------------------------------------------------------------------------------------------- specs and settings

PIECES = [
    "", ":", ",", "=", "(", ")", "((", "/", "|", "&", "%", "-", "-1", "0", "1", "2", "0.5", "1e9", "1e308", "1e-320",
    "nan", "inf", "-inf", "none", "true", "all", "decodable", "99999999999999999999", "٣", "1_0", " ", "\n", "\0", "é",
    "name", "load=3", "wait=2", "workers=4", "seed=5", "self=1", "lambda=2", "by=round", "x" * 300, "__class__", "{0}",
]  # fmt: skip


@st.composite
def garbled(draw: st.DrawFn, specs: list[str]) -> str:
    """A spec with pieces taken out, put in, or taken from another."""
    spec = draw(st.sampled_from(specs))
    for _ in range(draw(st.integers(1, 3))):
        parts = re.split(r"([:,=()/])", spec)
        index = draw(st.integers(0, len(parts) - 1))
        other = re.split(r"([:,=()/])", draw(st.sampled_from(specs)))
        put = draw(st.sampled_from(PIECES) | st.sampled_from(other))
        match draw(st.sampled_from(["replace", "insert", "drop", "swap"])):
            case "replace":
                parts[index] = put
            case "insert":
                parts.insert(index, put)
            case "drop":
                del parts[index]
            case "swap":
                parts = [*parts[index:], *parts[:index]]
        spec = "".join(parts)
    return spec


COMPRESSORS = [entry.usage().replace("…", "2") for entry in compression.registry]
GRAPHS = [entry.usage().replace("…", "2") for entry in graphs.registry]
CLUSTERS = ["simulated", "simulated:cores=4", "processes", "processes:pin=true"]
DATA = ["digits:test=0.3", "synthetic:rows=30,features=3,noise=0.2", "synthetic:task=multiclass,classes=4,density=0.5"]
KINDS: list[tuple[str, list[str], Callable[[str], Any]]] = [
    ("codes", CODES, lambda spec: codes.code(spec, workers=8)),
    ("strategies", STRATEGIES, lambda spec: strategies.strategy(spec, workers=8)),
    ("delays", [spec for spec in DELAYS if "trace" not in spec], delays.parse),
    ("communication", ["link:latency=(exp:mean=0.1),bandwidth=1e8", "constant:0.5"], delays.communication),
    ("optimizers", [s for s in OPTIMIZERS if ":" not in s or s[:5] not in ("torch", "optax")],
     lambda spec: optimizers.optimizer(spec, lr=0.1)),
    ("schedules", SCHEDULES, optimizers.learning_rate),
    ("compressors", COMPRESSORS, compression.compressor),
    ("graphs", GRAPHS, lambda spec: graphs.graph(spec, workers=8)),
    ("clusters", CLUSTERS, lambda spec: clusters.cluster(spec, workers=4)),
    ("data", DATA, lambda spec: load(spec, progress=None)),
]  # fmt: skip


@pytest.mark.parametrize(("specs", "build"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_specs(specs: list[str], build: Callable[[str], Any]) -> None:
    @fuzz
    @given(spec=garbled(specs))
    def try_all(spec: str) -> None:
        attempt(lambda: build(spec))

    try_all()


CONFIG = """steps = 40
delays = "exp:mean=0.5"
strategy = "frc:load=3"
workers = 6
seconds = 2.5
quiet = true
data = "synthetic:rows=60"
"""


@fuzz
@given(content=damaged(CONFIG.encode()))
def test_config_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with within(30, of_processor=True):
        done = CliRunner().invoke(main, ["train", "--config", str(tmp_path / "c.toml"), "--settings"])
    assert done.exit_code in (0, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 0 or done.stderr
