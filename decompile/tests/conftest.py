from __future__ import annotations

import jax
import pytest


@pytest.fixture
def wide():
    """64-bit types, as long as the test lasts."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
