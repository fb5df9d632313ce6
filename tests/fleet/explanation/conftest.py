"""This room decides and computes; it can start nothing (import-linter holds it to that), so nothing is looked for."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """In place of the look through all processes before and after each test, which costs more than these tests."""
