"""This room computes; what its tests start, they wait for (subprocess.run), so nothing is looked for after each."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """In place of the look through all processes, and all of JAX's objects, which costs more than these tests."""


@pytest.fixture
def wide():
    """64-bit types, as long as the test lasts."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
