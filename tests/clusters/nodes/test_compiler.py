"""Nodes step by PyTorch's optimisers without importing its compiler, which takes memory and seconds."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anyk
from anyk.base.keyed import array_digest

pytestmark = pytest.mark.slow

STEP = """
import pickle, sys
import numpy as np
from anyk.clusters.nodes.slices import Holder
from anyk.clusters.steps import StepPlan

size = 1000
models = {("model", 0): np.linspace(-1.0, 1.0, size)}
holder = Holder(0, size, np.dtype(float), lambda slot, version: models[slot, version])
digests = []
for number, pickled in enumerate(pickle.load(open(sys.argv[1], "rb"))):
    holder.hold("model", pickled, None, None)
    digests.append([])
    for version in range(3):
        out = models["model", version + 1] = np.empty(size)
        holder.keep(version, np.sin(models["model", version] * (3 + version)))
        digests[-1].append(holder.step(StepPlan("model", version, [(version, 0)], [1.0]), out))
print("torch" in sys.modules, [name for name in sys.modules if name.startswith(("torch._dynamo", "sympy"))])
print(digests)
"""
NEEDED = """
import sys
import torch
from anyk.clusters.nodes.compiler import without_compiler

with without_compiler():
    with without_compiler():
        import torch._dynamo
        torch._dynamo.graph_break()
        assert "sympy" not in sys.modules
    assert not hasattr(torch._dynamo, "__no_such__") and "sympy" not in sys.modules
    from torch._dynamo.utils import counters  # which somebody needs after all
    assert torch._dynamo.config.cache_size_limit > 0 and "sympy" in sys.modules
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.utils.counters is counters
with without_compiler():
    assert torch._dynamo.utils.counters is counters
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
"""


def printed(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_slices_stepped_without_the_compiler_have_equal_bits(tmp_path: Path) -> None:
    methods = ("AdamW", "SGD", "Adagrad", "ASGD")
    made = [anyk.optimizers.TorchOptimizer(method, lr=0.1) for method in methods]
    (tmp_path / "made").write_bytes(pickle.dumps(list(map(pickle.dumps, made))))
    expected = []
    for optimizer in made:
        w, state = np.linspace(-1.0, 1.0, 1000), {}
        expected.append([])
        for version in range(3):
            w = optimizer.step(w, np.sin(w * (3 + version)), state, version)
            expected[-1].append(array_digest(w))
    assert printed(STEP, str(tmp_path / "made")) == ["True []", str(expected)]


def test_a_compiler_that_is_needed_is_there() -> None:
    assert printed(NEEDED) == ["[2.0, 2.0]"]
