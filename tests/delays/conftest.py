"""This room reads files and starts nothing (import-linter holds it to that), so open files are all that is looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """In place of the look through all processes before and after each test, which costs more than these tests."""
    before = _open_files()
    yield
    assert _open_files() <= before + 2, "the test left files open"
