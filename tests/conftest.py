"""Every test leaves behind what it found: no process, no descriptor, no shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

import hypothesis
import pytest

# the same examples in every run, so that a failure is the change's and not luck's; HYPOTHESIS_PROFILE=explore draws
# new ones each time, and prints how to repeat a failure
hypothesis.settings.register_profile("same", derandomize=True, database=None)
hypothesis.settings.register_profile("explore", print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

DATA = Path(os.environ.get("ANYK_DATA", Path(__file__).parents[2] / "shared" / "data"))


def _children() -> set[int]:
    """Processes below this one, at any depth."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    below: set[int] = set()
    grown = {os.getpid()}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - below
        below |= grown
    return below


def _descriptors() -> int:
    """Open descriptors, fonts aside, which matplotlib keeps."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return 0
    count = 0
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # the listing's own is gone already
            count += not os.readlink(entry).endswith(".ttf")
    return count


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {p.name for p in folder.iterdir() if "anyk" in p.name} if folder.is_dir() else set()


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    children, descriptors, memory = _children(), _descriptors(), _shared_memory()
    yield
    gc.collect()  # a mapping keeps a descriptor for as long as a traceback keeps the mapping
    if _descriptors() > descriptors + 2:
        gc.unfreeze()
        gc.collect()
    gc.freeze()  # what is left is looked at no more: with torch and JAX loaded that would cost more than the tests
    for _ in range(50):  # the kernel may need a moment to take away what has ended
        if _children() <= children:
            break
        time.sleep(0.1)
    assert _children() <= children, "the test left processes behind"
    assert _shared_memory() <= memory, "the test left shared memory behind"
    assert _descriptors() <= descriptors + 2, "the test left descriptors open"


@pytest.fixture
def data_folder() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"no folder {DATA}; set ANYK_DATA to the folder with the real data sets")
    return DATA
