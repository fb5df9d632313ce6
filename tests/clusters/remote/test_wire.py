"""What workers that were damaged or taken over send: never code for the driver, and one sentence at most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

import anyk
from anyk.clusters.contract import Report
from anyk.clusters.mpi.link import REPORT_BYTES
from anyk.clusters.mpi.mpi import Rank
from anyk.clusters.remote.wire import form_of, pack_reports, unpack_reports
from test_readers import EXAMPLES, damaged

ATTACKS = Path(__file__).parents[1] / "ray_attacks.py"
NEWS = [
    (Report(1, 7, 0, 3, 0.5, 1.0, 1.5, 2.0, -12345), np.arange(5.0)),
    (Report(4, 8, 1, text="ValueError: näh"), None),
    (Report(1, 9, bits=1 << 62), np.arange(3, dtype=np.uint8)),
    (Report(1, 10), np.ones(2, np.float32)),
]
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ray_unpickles_nothing_from_actors() -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, ATTACKS], capture_output=True, text=True, timeout=280)
    outcomes = {name: (ended, ran) for name, ended, ran in map(json.loads, done.stdout.splitlines())}
    assert len(outcomes) == 8, done.stdout + done.stderr[-3000:]
    assert outcomes.pop("none") == ("3 steps", False)
    ended, ran = outcomes.pop("objects_in_slices")
    assert "worker 0: its bytes did not arrive intact" in ended and not ran
    for name, (ended, ran) in outcomes.items():
        assert ended.startswith("RunFailed: worker 0") and not ran, (name, ended, ran)
        assert "\n" not in ended
    assert "an object of Python, which is not unpickled" in outcomes["an_object"][0]


def test_packed_reports_are_read_back() -> None:
    read = unpack_reports(pack_reports(NEWS))
    assert [report for report, _ in read] == [report for report, _ in NEWS]
    for (_, received), (_, sent) in zip(read, NEWS, strict=True):
        assert form_of(received) == form_of(sent)
        assert sent is None or (np.array_equal(received, sent) and not received.flags.writeable)


@fuzz
@given(content=damaged(pack_reports(NEWS)))
def test_damaged_parcels_of_ray_are_refused(content: bytes) -> None:
    try:
        unpack_reports(content)
    except ValueError as error:
        assert len(str(error)) < 500


class World:
    """A communicator whose messages are what the test puts into the buffers."""

    def Irecv(self, buffer: Any, source: int, tag: int) -> None:
        self.buffer = buffer


LINES = [msgspec.json.encode((3, report, form_of(vector))) + b"\n" for report, vector in NEWS]


@fuzz
@given(content=st.sampled_from(LINES).flatmap(damaged))
@example(content=b"\xff" * REPORT_BYTES)
@example(content=b"x" * REPORT_BYTES)
@example(content=LINES[0].replace(b'["<f8",5]', b'["<f8",99999999999999999]'))
@example(content=LINES[0].replace(b'["<f8",5]', b'["|O",5]'))
@example(content=LINES[0].replace(b'["<f8",5]', b'["<f8",-5]'))
def test_damaged_reports_of_mpi_are_refused(content: bytes) -> None:
    rank = Rank(World(), 4)  # type: ignore[arg-type]
    rank._buffer[: len(content)] = content[:REPORT_BYTES]
    try:
        rank.take()
    except anyk.RunFailed as error:
        assert str(error).startswith("worker 3 sent what no worker sends") and "\n" not in str(error)
