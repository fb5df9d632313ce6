"""Global generators of random numbers, which are seeded for a while and then restored."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_KEEPING = threading.RLock()  # the driver may evaluate in a second thread; states must come back in order


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, NumPy's global generator and ``random`` for a while.

    Afterwards their states are restored, except in a worker's process, where no other code draws and restoring states
    would take longer than a small gradient.
    """
    import torch

    more = cuda_generators(device)
    if "ANYK_WORKER" in os.environ:
        seed_all([torch.default_generator, *more], seed)
        yield
        return
    with preserved_generators(more) as generators:
        seed_all(generators, seed)
        yield


def cuda_generators(device: torch.device) -> list[Any]:
    """Return the generators from which a device draws, besides the CPU's."""
    import torch

    return [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []


@contextmanager
def preserved_generators(more: Sequence[Any]) -> Iterator[list[Any]]:
    """Restore the states of all global generators; yield torch's, if it is loaded: the CPU's and ``more``."""
    torch = sys.modules.get("torch")
    generators = [] if torch is None else [torch.default_generator, *more]
    with _KEEPING:
        states = [generator.get_state() for generator in generators]
        numpys, pythons = np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
        try:
            yield generators
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            np.random.set_state(numpys)  # noqa: NPY002
            random.setstate(pythons)


def seed_all(generators: Sequence[Any], seed: int) -> None:
    """Seed torch's generators, NumPy's global one and Python's."""
    for generator in generators:  # torch.manual_seed does this too, and much that takes longer than a small gradient
        generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
