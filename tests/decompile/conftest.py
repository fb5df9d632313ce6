"""Most tests here compute only; JAX keeps threads and descriptors, which are counted from when it is loaded."""

import jax
import pytest

jax.numpy.zeros(1).block_until_ready()


@pytest.fixture
def wide():
    """64-bit types, as long as the test lasts."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
