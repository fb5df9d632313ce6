"""Comparing messages: false alarms among right ones, detection of wrong ones, and the time that a pair takes.

`python benchmarks/comparing.py [PAIRS]`. Right: runs of frc:load=3,check=1 on six processes, each of at least PAIRS
(default 2,000) pairs, which must have equal bits. Wrong: the same comparison of messages in which one number changed
its sign, two changed places, or one bit was flipped, in random places. Time: a pair of 1,000,000
float32, beside copying one of them.
"""

import sys
import time

import numpy as np
from common import show

import anyk
from anyk.clusters.store import alike
from anyk.runs.engine import driver

PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
WORKERS, GROUPS = 6, 2
MADE = np.random.default_rng(0)


def images():
    return MADE.normal(size=(240, 1, 8, 8)).astype(np.float32), MADE.integers(0, 4, 240)


def convolutional():
    import torch
    from torch import nn

    X, y = images()
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)
    )
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    return anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), data)


def network_in_jax():
    import jax
    import jax.numpy as jnp

    X, y = images()
    parameters = {"a": MADE.normal(size=(64, 32)).astype(np.float32) * 0.1, "b": np.zeros((32, 4), np.float32)}

    def loss(w, rows):
        images, labels = rows
        hidden = jnp.tanh(images.reshape(len(images), -1) @ w["a"]) @ w["b"]
        return -jax.nn.log_softmax(hidden)[jnp.arange(len(labels)), labels].mean()

    return anyk.problems.JaxProblem(loss, parameters, (X, y))


def linear():
    return anyk.problems.from_data("synthetic:rows=2400,features=200")


def right(name, problem, spec):
    """Print how many messages were compared on processes and how many of them differed."""
    steps = max(20, PAIRS // GROUPS)
    run = anyk.train(
        problem, spec, "processes", workers=WORKERS, steps=steps, optimizer=anyk.optimizers.GD(lr=1e-3), evaluate=None
    )
    compared, differed = run.summary["messages"].values()
    print(f"{name:<44} {compared - GROUPS * steps:,} pairs, {differed} false alarms", flush=True)
    run.close()


def wrong(dtype, size=10_000, trials=3_000):
    """Print the share of changed messages that are told from the right one."""
    for name in ("sign", "places", "bit"):
        noticed = 0
        for _ in range(trials):
            message = MADE.normal(size=size).astype(dtype)
            other = message.copy()
            i, j = MADE.choice(size, 2, replace=False)
            if name == "sign":
                other[i] = -other[i]
            elif name == "places":
                other[[i, j]] = other[[j, i]]
            else:
                other.view(f"u{message.itemsize}")[i] ^= np.array(
                    1 << int(MADE.integers(8 * message.itemsize)), f"u{message.itemsize}"
                )
            noticed += not alike(message, other, 0.0)
        print(f"{dtype}, wrong {name:<27} {noticed:,} of {trials:,} found", flush=True)


def times():
    message = MADE.normal(size=1_000_000).astype(np.float32)
    other, target = message.copy(), np.empty_like(message)
    pairs, copies = [], []
    for _ in range(101):
        start = time.perf_counter()
        assert alike(message, other, 0.0)
        middle = time.perf_counter()
        np.copyto(target, message)
        pairs.append(1e3 * (middle - start))
        copies.append(1e3 * (time.perf_counter() - middle))
    show("a pair of 1e6 float32", pairs, "ms", "0.2 ms")
    show("copying one of them", copies, "ms")


if __name__ == "__main__":
    driver.tolerance_of = lambda *_: 0.0  # type: ignore[attr-defined]  # equal bits, also of networks
    right("linear", linear(), "frc:load=3,check=1")
    right("linear, mini-batches", linear(), "frc:load=3,check=1,batch=20")
    right("PyTorch, convolutions and dropout", convolutional(), "frc:load=3,check=1")
    right("PyTorch, the same, mini-batches", convolutional(), "frc:load=3,check=1,batch=8")
    right("JAX", network_in_jax(), "frc:load=3,check=1")
    wrong("float32")
    wrong("float64")
    times()
