"""Recorders: of any loop, and of DistributedDataParallel, whose training they leave as it is to the bit."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from anyk.base.errors import BadInput
from anyk.fleet.records import Recorder, ddp, read


def test_a_recorder_of_any_loop(tmp_path: Path) -> None:
    for worker in (0, 1):
        with Recorder(tmp_path / "fleet", worker) as recorder:
            for _ in range(3):
                with recorder.step():
                    time.sleep(0.002 + 0.02 * worker)
            with pytest.raises(ZeroDivisionError), recorder.step():
                print(1 / 0)
    with Recorder(tmp_path / "fleet", 0) as recorder:  # a job that is started again
        recorder.add(7.0)
    record = read(tmp_path / "fleet")
    assert record.workers == (0, 1) and record.rounds == (0, 1, 2, 3)
    assert np.isnan(record.seconds[3, 1]) and record.seconds[3, 0] == 7.0
    assert (record.seconds[:3, 1] >= 0.022).all() and (record.seconds[:3, 0] >= 0.002).all()


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="worker must be a whole number of at least 0"):
        Recorder(tmp_path, -1)
    (tmp_path / "worker-0.csv").write_text("my own notes\n")
    with pytest.raises(BadInput, match="was not written by a recorder"):
        Recorder(tmp_path, 0)
    with pytest.raises(BadInput, match="worker-0.csv"):
        read(tmp_path)
    pytest.importorskip("torch")
    import torch

    with pytest.raises(BadInput, match="records a DistributedDataParallel model, got Linear"):
        ddp(torch.nn.Linear(1, 1), tmp_path)  # type: ignore[arg-type]


@pytest.mark.slow
def test_recorded_ddp_keeps_its_bits_and_shows_the_slow_rank(tmp_path: Path) -> None:
    """200 ms in one rank's backward pass are seen at that rank, also where gradients are accumulated."""
    job = Path(__file__).with_name("job.py")
    ranks = [subprocess.Popen([sys.executable, str(job), str(rank), str(tmp_path)]) for rank in range(3)]
    try:
        assert [rank.wait(timeout=250) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert read(tmp_path / "same").seconds.shape == (6, 3)
    slow = read(tmp_path / "slow")
    assert slow.seconds.shape == (5, 3) and (slow.seconds[:, 1] >= 0.2).all()
    assert (slow.seconds[:, [0, 2]].min(axis=0) < slow.seconds[:, 1].min()).all()  # what they wait for it is left out
    assert (read(tmp_path / "accumulated").seconds[:, 1] >= 0.4).all()
    assert read(tmp_path / "checkpointed").seconds.shape == (2, 3)
