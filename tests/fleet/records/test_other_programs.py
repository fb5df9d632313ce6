"""Records of other programs' logs and traces: small samples as these programs lay them out, whole and damaged."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.fleet.records import read, read_all

pytestmark = pytest.mark.in_process


# ------------------------------------------------------------------------------------------- Spark


def task(stage: int, executor: int, seconds: float) -> str:
    info = {"Executor ID": str(executor), "Launch Time": 1000 * stage, "Finish Time": 1000 * stage + 1000 * seconds}
    event = {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0}
    return json.dumps(event | {"Task End Reason": {"Reason": "Success"}, "Task Info": info})


SPARK = '{"Event":"SparkListenerLogStart","Spark Version":"4.0.0"}'
DATABRICKS = '{"Event":"DBCEventLoggingListenerMetadata","Spark Version":"3.5.0","Rollover Number":0}'
TASKS = [task(t, i, 0.3 if i == 2 else 0.1 + (7 * t + i) % 5 / 1000) for t in range(20) for i in (1, 2, 3)]


def zstd(text: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(text.encode())
    return bytes(sink.getvalue().to_pybytes())


def test_spark_logs_rolled_packed_and_of_databricks(tmp_path: Path) -> None:
    log = "\n".join([SPARK, *TASKS]) + "\n"
    (tmp_path / "app-1").write_text(log)
    (tmp_path / "app-1.zstd").write_bytes(zstd(log))
    (tmp_path / "app-1.inprogress").write_bytes(zstd(log))
    (tmp_path / "eventlog.gz").write_bytes(gzip.compress("\n".join([DATABRICKS, *TASKS]).encode()))
    rolled = tmp_path / "eventlog_v2_app-1"
    rolled.mkdir()
    (rolled / "appstatus_app-1.inprogress").touch()
    for number, (start, end) in enumerate([(0, 20), (20, 40), (40, 60)], 9):  # 10 comes behind 9
        content = "\n".join([SPARK, *TASKS[start:end]]) + "\n"
        (rolled / f"events_{number}_app-1.zstd").write_bytes(zstd(content))
    expected = read(tmp_path / "app-1")
    assert anyk.explain(expected).named == (2,) and expected.seconds.shape == (20, 3)
    for name in ("app-1.zstd", "app-1.inprogress", "eventlog.gz", "eventlog_v2_app-1"):
        assert np.array_equal(read(tmp_path / name).seconds, expected.seconds), name
    (rolled / "events_11_app-1.compact").write_text("\n".join([SPARK, *TASKS[:40]]) + "\n")
    assert np.array_equal(read(rolled).seconds[:13], expected.seconds[:13])


def test_a_spark_log_may_end_within_a_line(tmp_path: Path) -> None:
    (tmp_path / "cut").write_text("\n".join([SPARK, *TASKS])[:-40])
    record = read(tmp_path / "cut")
    assert np.isnan(record.seconds[-1, 2]) and "ends within a line" in record.summary
    (tmp_path / "app.lz4").write_bytes(b"LZ4Block" + bytes(40))
    with pytest.raises(BadInput, match="app.lz4' is not a fleet record|is packed by LZ4, which is not read"):
        read(tmp_path / "app.lz4")
    damaged = zstd("\n".join([SPARK, *TASKS]))
    (tmp_path / "damaged.zstd").write_bytes(damaged[: len(damaged) // 2])
    with pytest.raises(BadInput, match=r"damaged.zstd"):
        read(tmp_path / "damaged.zstd")


# ------------------------------------------------------------------------------------------- JSON


def test_json_lines_lists_and_columns(tmp_path: Path) -> None:
    rows = [
        {"step": t, "rank": i, "loss": 1.0 / (t + 1), "timing": {"step_ms": 100.0 + 50 * (i == 1)}}
        for t in range(12)
        for i in range(3)
    ]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"event": "saved"}']) + '\n{"step": 12, "ra')
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "d.ndjson.zst").write_bytes(zstd("\n".join(lines)))
    (tmp_path / "e.json").write_text(json.dumps({f"gpu-{i}": [0.1 + 0.05 * (i == 1)] * 12 for i in range(3)}))
    for name in ("a.jsonl", "b.json", "c.json.gz", "d.ndjson.zst", "e.json"):
        record = read(tmp_path / name)
        assert np.allclose(record.seconds, np.tile([0.1, 0.15, 0.1], (12, 1))), name
        assert record.workers == (("gpu-0", "gpu-1", "gpu-2") if name == "e.json" else (0, 1, 2))
    assert "'timing.step_ms'" in read(tmp_path / "b.json").summary
    for i in range(3):
        records = [json.dumps({"step": t, "seconds": 0.1 * (i + 1)}) for t in range(4)]
        (tmp_path / f"rank-{i}.jsonl").write_text("\n".join(records))
    joined = read_all([str(tmp_path / f"rank-{i}.jsonl") for i in range(3)])
    assert joined.workers == ("rank-0", "rank-1", "rank-2") and np.allclose(joined.seconds[3], [0.1, 0.2, 0.3])


def profile(rank: int, named: bool = True) -> str:
    """A trace of torch.profiler, with the copy of each step on the GPU's row that a profile of a GPU has."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}}
    ]
    for step in range(5, 20):
        span = {"ph": "X", "name": f"ProfilerStep#{step}", "pid": 7, "tid": 7, "ts": 1e6 * step, "args": {}}
        events.append(span | {"cat": "user_annotation", "dur": 100000.0 * (1 + (rank == 2)) + step + rank})
        events.append(span | {"cat": "gpu_user_annotation", "dur": 5.0, "pid": 0})
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1e6 * step, "dur": 9})
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}} if named else {}
    return json.dumps({"schemaVersion": 1, **info, "traceEvents": events, "displayTimeUnit": "ms"})


@pytest.mark.parametrize("named", [True, False])
def test_profiles_of_pytorch_are_one_rank_each(named: bool, tmp_path: Path) -> None:
    for rank in range(4):
        content = profile(rank, named)
        name = f"host_rank{rank}_4711.pt.trace.json"
        (tmp_path / name).write_text(content) if rank else (tmp_path / f"{name}.gz").write_bytes(
            gzip.compress(content.encode())
        )
    record = read(tmp_path)
    assert record.workers == (0, 1, 2, 3) and record.rounds == tuple(range(5, 20))
    assert record.seconds[0].tolist() == pytest.approx([0.100005, 0.100006, 0.200007, 0.100008])
    assert anyk.explain(record).named == (2,) and "with their waiting for other ranks" in record.summary


@pytest.mark.parametrize("numbered", [True, False])
def test_a_timeline_of_ray(numbered: bool, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for i in range(3):
        process, thread = ("Node 10.0.0.1", f"worker:{i}f3a") if not numbered else (0, i)
        if numbered:
            events.append({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "Node 10.0.0.1"}})
            events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": f"worker:{i}f3a"}})
        for t in range(12):
            seconds = 2.0 if i == 1 else 1.0
            event = {"ph": "X", "pid": process, "tid": thread, "ts": 3e6 * t + i, "dur": 1e6 * seconds + t, "args": {}}
            events += [
                event | {"cat": "task::Trainer.step", "name": "task::Trainer.step"},
                event | {"cat": "task:execute", "name": "task:execute", "dur": 9.0},
                event | {"cat": "task::Trainer.loss", "name": "task::Trainer.loss", "dur": 7.0},
            ]
    (tmp_path / "timeline.json").write_text(json.dumps(events))
    record = read(tmp_path / "timeline.json")
    assert record.workers == tuple(f"Node 10.0.0.1 worker:{i}f3a" for i in range(3))
    assert np.allclose(record.seconds, np.tile([1.0, 2.0, 1.0], (12, 1)), atol=1e-4)
    assert "the k-th call of 'Trainer.step', of 2 functions" in record.summary
    uneven = [event for event in events if event.get("tid") not in (0, "worker:0f3a") or event.get("ts", 0) < 9e6]
    (tmp_path / "uneven.json").write_text(json.dumps(uneven))
    with pytest.raises(BadInput, match="3 to 12 calls of 'Trainer.step' on each worker, so they are no rounds"):
        read(tmp_path / "uneven.json")


def horovod(ticks: bool = True) -> list[dict[str, Any]]:
    """Two tensors, three ranks; rank 2 is ready 0.5 s after the last reduction, the others after 0.2 s."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"grad_{pid}"}} for pid in (1, 2)
    ]
    for t in range(10):
        start = 1e6 * t
        for pid in (1, 2):
            events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": start + 1e5, "pid": pid})
            for rank in range(3):
                stamp = start + (0.5e6 if rank == 2 else 0.2e6) - 1e4 * (2 - pid)
                if ticks:
                    events.append({"ph": "X", "name": str(rank), "ts": stamp, "dur": 0, "pid": pid})
            events.append({"ph": "E", "ts": start + 0.5e6, "pid": pid})
            events.append({"ph": "B", "name": "ALLREDUCE", "ts": start + 0.5e6, "pid": pid})
            events.append({"ph": "B", "name": "NCCL_ALLREDUCE", "ts": start + 0.6e6, "pid": pid})
            events.append({"ph": "E", "ts": start + 0.9e6, "pid": pid})
            events.append({"ph": "E", "ts": start + 1e6, "pid": pid, "args": {"dtype": "float32"}})
    return events


def test_a_timeline_of_horovod_that_was_not_closed(tmp_path: Path) -> None:
    content = "[\n" + ",\n".join(map(json.dumps, horovod())) + ",\n"
    (tmp_path / "timeline.json").write_text(content)
    record = read(tmp_path / "timeline.json")
    assert record.workers == (0, 1, 2) and len(record.rounds) == 9
    assert np.allclose(record.seconds, np.tile([0.2, 0.2, 0.5], (9, 1)))
    (tmp_path / "cached.json").write_text(json.dumps(horovod(ticks=False)))
    with pytest.raises(BadInput, match="HOROVOD_CACHE_CAPACITY=0"):
        read(tmp_path / "cached.json")


def dump(rank: int, own: float, **changed: Any) -> dict[str, Any]:
    """A dump of the flight recorder: all leave a collective together, 0.3 s after the one before."""
    entries = [
        {
            "record_id": k, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": k, "p2p_seq_id": 0,
            "op_id": k, "profiling_name": "nccl:all_reduce", "time_created_ns": int(1.7e18 + 3e8 * k),
            "duration_ms": 300.0 - 1e3 * own, "state": "completed", "retired": True, "is_p2p": False, "frames": [],
        } | changed
        for k in range(1, 21)
    ]  # fmt: skip
    return {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}


def test_dumps_of_the_flight_recorder_are_one_rank_each(tmp_path: Path) -> None:
    for rank, seconds in enumerate((0.1, 0.1, 0.28, 0.1)):
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump(rank, seconds)))
    record = read(tmp_path)
    assert record.workers == (0, 1, 2, 3) and record.rounds == tuple(range(2, 21))
    assert np.allclose(record.seconds, np.tile([0.1, 0.1, 0.28, 0.1], (19, 1)))
    assert anyk.explain(record).named == (2,)
    for changed, sentence in (
        ({"duration_ms": None}, "TORCH_NCCL_ENABLE_TIMING=1"),
        ({"duration_ms": 900}, "own work cannot"),
    ):
        (tmp_path / "x.json").write_text(json.dumps(dump(0, 0.1, **changed)))
        with pytest.raises(BadInput, match=sentence):
            read(tmp_path / "x.json")


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle ran",))


@pytest.mark.parametrize("content", [dump(0, 0.1), Bomb()])
def test_a_pickle_is_refused_and_never_run(content: Any, tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(BadInput, match="is a pickle, as NCCL's flight recorder writes it, .* write JSON instead"):
        read(tmp_path / "nccl_trace_rank_0")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"traceEvents": []}', "is a trace in Chrome's format, but neither of"),
        ('[{"ph": "X", "name": "a", "ts": 1, "dur": 2}]', "is a trace in Chrome's format, but neither of"),
        ("[[1, 2], [3, 4]]", "a list of lists without names"),
        ("[" * 100_000, "nested too deeply|cannot be read as JSON"),
        ("{}", "no objects with values"),
        ("[1, 2]", "no objects with values"),
        ('{"step": 1, "rank": 0}\n{"step": \n{"step": 3}\n', "line 2 of .* is not JSON"),
        ('{"a": [1, 2], "b": [1]}', "of different lengths"),
        ('{"entries": [1]}', "no collectives"),
        ('{"step": 1, "rank": 0, "loss": 1}\n{"step": 2, "rank": 0, "loss": 1}', "none is known to be the seconds"),
    ],
)
def test_json_that_is_no_trace_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput, match=why) as error:
        read(tmp_path / "x.json")
    assert "\n" not in str(error.value)
