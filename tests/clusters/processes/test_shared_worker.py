"""What workers keep from task to task on ``processes`` outlives the driver: a killed run continues bit for bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import anyk
from anyk.optimizers import GD
from anyk.runs.folder import checkpoints
from anyk.testing import Squares

pytestmark = pytest.mark.slow

STEPS = 9
# kills its own driver when it has dealt with so many events and written a checkpoint after each
DYING = """
import os, signal, sys
import anyk
from anyk.runs.saving import Saving
from anyk.testing import Squares

after, count = Saving.after_event, [0]

def dying(saving, driver):
    after(saving, driver)
    count[0] += 1
    if count[0] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

Saving.after_event = dying
optimizer = anyk.optimizers.GD(lr=0.05)
cluster = anyk.clusters.Processes(3, seed=1)
anyk.train(Squares(3), sys.argv[1], cluster, optimizer=optimizer, steps=9, out=sys.argv[2], checkpoint_every=0.0)
"""
SPECS = [
    "diloco:tau=3,inner=adamw",
    "pasgd:tau=3,inner=momentum,keep=true",
    "compressed:of=sync,by=(top-k:share=0.5)",
    "compressed:of=(pasgd:tau=2),by=(top-k:share=0.5)",
]


def killed(spec: str, folder: Path, events: int) -> None:
    """Leave a run whose driver was killed after a number of events."""
    done = subprocess.run(
        [sys.executable, "-c", DYING, spec, str(folder), str(events)], check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module", params=SPECS)
def undisturbed(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    """A strategy, and the model of a run that nothing interrupts."""
    cluster = anyk.clusters.Processes(3, seed=1)
    with anyk.train(Squares(3), request.param, cluster, optimizer=GD(lr=0.05), steps=STEPS) as run:
        return request.param, run.model.tobytes()


# after a step; when one worker of three has answered; and when two have
@pytest.mark.parametrize("events", [9, 10, 14])
def test_a_killed_run_continues_bit_for_bit(undisturbed: tuple[str, bytes], events: int, tmp_path: Path) -> None:
    spec, model = undisturbed
    killed(spec, tmp_path / "killed", events)
    saved = checkpoints.load(tmp_path / "killed")
    assert saved is not None
    assert {key.split("/")[2] for key in saved[1] if key.startswith("cluster/state/")} == {"0", "1", "2"}
    notes: list[str] = []
    with anyk.resume(tmp_path / "killed", problem=Squares(3), tell=notes.append) as resumed:
        assert not notes
        assert resumed.model.tobytes() == model
        replay = anyk.replay(resumed, problem=Squares(3))
        assert replay.resets == 0
        assert str(replay).endswith("the same decisions and the same bits of model"), replay
