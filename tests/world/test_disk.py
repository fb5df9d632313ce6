"""Runs whose machine loses power or whose disk is full at any write can be resumed, and end with the same bits."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import safetensors.numpy

import anyk
from anyk.base import regular_files
from anyk.runs import saving
from anyk.runs.log.log_writer import LogWriter
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
    with anyk.train(Squares(4), "frc:load=2", steps=STEPS, **SETTING) as uninterrupted:
        expected = uninterrupted.model.tobytes()
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


class FullDisk:
    """Counts what a run writes durably, and refuses write number ``at``, or this and all later ones."""

    def __init__(self, at: int, *, lasting: bool) -> None:
        self.writes, self.refused = 0, 0
        self._at, self._lasting = at, lasting

    def _full(self) -> bool:
        self.writes += 1
        full = self.writes == self._at or (self._lasting and self.writes > self._at > 0)
        self.refused += full
        return full

    def _check(self) -> None:
        if self._full():
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Be the disk while the context lasts."""
        fsync, replace, flush, save = os.fsync, Path.replace, LogWriter.flush, safetensors.numpy.save_file

        def synchronise(number: int) -> None:
            self._check()
            fsync(number)

        def rename(path: Path, target: Path) -> Path:
            self._check()
            return replace(path, target)

        def save_file(*arguments: Any, **more: Any) -> None:
            if self._full():
                raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")
            save(*arguments, **more)

        def commit(log: LogWriter, *, lasting: bool = False) -> None:
            most = log._db.execute("PRAGMA max_page_count").fetchone()[0]
            if log.path is not None and self._full():  # SQLite itself refuses what needs another page
                log._db.execute("PRAGMA max_page_count = 1")
            try:
                flush(log, lasting=lasting)
            finally:
                log._db.execute(f"PRAGMA max_page_count = {most}")

        with (
            mock.patch.object(os, "fsync", synchronise),
            mock.patch.object(Path, "replace", rename),
            mock.patch.object(LogWriter, "flush", commit),
            mock.patch.object(safetensors.numpy, "save_file", save_file),
        ):
            yield


def run_on(disk: FullDisk, folder: Path) -> str | None:
    """Run into a folder; return the sentence with which it ended, None if it reached its end."""
    with disk.mounted():
        try:
            anyk.train(Squares(4), "frc:load=2", steps=STEPS, out=folder, checkpoint_every=0.0, **SETTING).close()
        except (anyk.BadInput, anyk.RunFailed) as error:
            return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_a_full_disk_ends_the_run_and_loses_nothing(lasting: bool, tmp_path: Path) -> None:
    counted = FullDisk(0, lasting=False)
    assert run_on(counted, tmp_path / "whole") is None
    with anyk.train(Squares(4), "frc:load=2", steps=STEPS, **SETTING) as uninterrupted:
        expected = uninterrupted.model.tobytes()
    assert counted.writes > 40
    ended = resumed = 0
    for write in sorted(random.Random(lasting).sample(range(1, counted.writes + 1), 20)):
        folder = tmp_path / str(write)
        disk = FullDisk(write, lasting=lasting)
        sentence = run_on(disk, folder)
        if not disk.refused:  # checkpoints are written in a thread, as many as there is time for
            assert sentence is None
            continue
        ended += sentence is not None
        if sentence is not None:
            assert "\n" not in sentence and ("space" in sentence or "full" in sentence or "cannot be" in sentence), (
                sentence
            )
        assert not list(folder.glob("*.part")), f"write {write} left a part: {sentence}"
        if not (folder / "run.toml").exists():  # it had not begun
            assert sentence is not None
            run_on(FullDisk(0, lasting=False), folder)
        with anyk.resume(folder, problem=Squares(4), tell=lambda _: None) as run:
            assert (run.steps, run.model.tobytes()) == (STEPS, expected), f"write {write}: {sentence}"
        resumed += 1
    assert ended > 5 and resumed > 10
