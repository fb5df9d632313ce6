"""A run whose machine loses power at any time is resumed, and ends with the same bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import anyk
from anyk import regular_files
from anyk.runs import saving
from anyk.testing import Squares

from .disk import Disk, Image
from .safeguards import Edit, Safeguard

STEPS = 6
SETTING: dict[str, Any] = {"cluster": "simulated", "workers": 4, "delays": "exp:mean=1", "seed": 1}


def images_of_a_run(folder: Path) -> list[Image]:
    """What may be left of a run, at every call that makes something durable."""
    images: list[Image] = []
    disk = Disk(folder)
    disk.pause = lambda when: images.extend(disk.left(when))
    with disk.observed():
        anyk.train(Squares(4), "frc:load=2", steps=STEPS, out=folder, checkpoint_every=0.0, **SETTING).close()
    return [image for image in images if "run.toml" in image.files]


def lost(images: list[Image], folder: Path) -> str | None:
    """Return which image does not lead to the model of an undisturbed run, and why; None if all do."""
    with anyk.train(Squares(4), "frc:load=2", steps=STEPS, **SETTING) as whole:
        expected = whole.model.tobytes()
    for number, image in enumerate(images):
        image.write(folder / str(number))
        try:
            with anyk.resume(folder / str(number), problem=Squares(4), tell=lambda _: None) as run:
                if (run.steps, run.model.tobytes()) != (STEPS, expected):
                    return f"{image.when}: another model after {run.steps} steps"
        except (anyk.BadInput, anyk.RunFailed) as error:
            return f"{image.when}: {error}"
    return None


@pytest.mark.slow
def test_a_loss_of_power_loses_no_run(tmp_path: Path) -> None:
    images = images_of_a_run(tmp_path / "run")
    assert len(images) > 50
    some = random.Random(0).sample(images, 40)
    assert lost([*images[:5], *some], tmp_path) is None


SAFEGUARDS = (
    Safeguard(
        "writing the log durably before a checkpoint",
        (Edit(saving, saving.Saving, "_save", "log.flush(lasting=True)", "log.flush()"),),
        (),
        (),
    ),
    Safeguard(
        "writing a new file durably before it replaces another",
        (Edit(regular_files, regular_files, "synchronise", "os.fsync(descriptor)", "pass"),),
        (),
        (),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda safeguard: safeguard.name)
def test_the_removal_is_noticed(safeguard: Safeguard, tmp_path: Path) -> None:
    with safeguard.removed():
        images = images_of_a_run(tmp_path / "run")
        assert lost(images, tmp_path) is not None
