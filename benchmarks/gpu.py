"""A convolutional network on one GPU: a step of anyk against a bare loop of PyTorch over the same samples.

`python benchmarks/gpu.py [STEPS]`. The bare loop is one process that computes the gradient of all samples of a step at
once. anyk's workers share the GPU: 4 processes with one CUDA context each, whose models and messages travel through
shared memory of the host. With delays (0.05 s, exponential) `uncoded` is compared with `frc:load=2`.
`ANYK_DEVICE=cpu` computes on the CPU.
"""

import os
import statistics
import sys
import time

import numpy as np
import torch
from common import show
from torch import nn

import anyk

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
DEVICE = os.environ.get("ANYK_DEVICE", "cuda")
WORKERS, SAMPLES = 4, 2048 if DEVICE == "cuda" else 128


def network(width):
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for multiple, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        for s in (stride, 1):
            layers += [nn.Conv2d(channels, width * multiple, 3, s, 1), nn.GroupNorm(8, width * multiple), nn.ReLU()]
            channels = width * multiple
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


torch.manual_seed(1)
X, y = torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES,))


def bare(module):
    """Return the median seconds of a step of the bare loop."""
    module = module.to(DEVICE)
    inputs, targets = X.to(DEVICE), y.to(DEVICE)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - began)
    return statistics.median(times[STEPS // 5 :])


def step(module, spec, delays, seed):
    """Return the median seconds of a step of anyk."""
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y), device=DEVICE)
    cluster = anyk.clusters.Processes(WORKERS, delays=delays, seed=seed)
    optimizer = anyk.optimizers.GD(0.01)
    run = anyk.train(problem, spec, cluster, optimizer=optimizer, steps=STEPS, evaluate=None)
    return float(np.median(np.diff(run.history["seconds"])[STEPS // 5 :]))


print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}, {WORKERS} workers, {SAMPLES} samples a step")
for width in (16, 64):
    size = sum(parameter.numel() for parameter in network(width).parameters())
    loops, steps = [], []
    for seed in range(3):
        loops.append(bare(network(width)))
        steps.append(step(network(width), "uncoded", "none", seed))
    show(f"{size:,} parameters: bare loop", [t * 1e3 for t in loops], "ms")
    show(f"{size:,} parameters: anyk's step", [t * 1e3 for t in steps], "ms")
    show("anyk's step / the bare loop's", [a / b for a, b in zip(steps, loops, strict=True)], "times")
ratios = []
for seed in range(3):
    waiting, coded = (step(network(16), spec, "exp:mean=0.05", seed) for spec in ("uncoded", "frc:load=2"))
    ratios.append(waiting / coded)
show("with delays: uncoded / frc:load=2", ratios, "times")
