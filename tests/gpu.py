"""What computes on a GPU: PyTorch and JAX against the CPU, replicas, resumed runs, and workers that are killed.

``scripts/soak gpu`` runs this where torch and JAX find a CUDA device; CI has none. With ``ANYK_DEVICE=cpu`` the same
tests compute on the CPU.
"""

from __future__ import annotations

import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.problems import JaxProblem, TorchProblem

DEVICE = os.environ.get("ANYK_DEVICE", "cuda")
PLATFORM = "cpu" if DEVICE == "cpu" else "gpu"
WORKERS = 4

torch.zeros(1, device=DEVICE)  # the driver's own use of the device stays open until the program ends
jax.devices(PLATFORM)


def dense(dtype=torch.float64, dropout=0.0):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 3)).to(dtype)


def convolutional(dropout=0.2):
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Flatten(),
        nn.Linear(16 * 9, 3),
    )


def rows(dtype=torch.float64, samples=96):
    torch.manual_seed(1)
    X = torch.randn(samples, 10, dtype=dtype)
    return X, X[:, :3].argmax(dim=1)


def images(samples=96):
    torch.manual_seed(1)
    X = torch.randn(samples, 1, 8, 8)
    return X, X.flatten(1)[:, :3].argmax(dim=1)


def problem_on(device, module=None, data=None, **options):
    return TorchProblem(module or dense(), nn.CrossEntropyLoss(), data or rows(), device=device, **options)


def difference(a, b):
    return float(np.linalg.norm(np.asarray(a, float) - b) / np.linalg.norm(b))


def train(problem, strategy="frc:load=2", steps=12, **options):
    options = {"cluster": anyk.clusters.Processes(WORKERS, seed=1), "optimizer": anyk.optimizers.GD(0.05)} | options
    return anyk.train(problem, strategy, steps=steps, **options)


@pytest.mark.parametrize(
    ("module", "data", "limit"),
    [
        (dense(), rows(), 1e-12),
        (dense(torch.float32), rows(torch.float32), 1e-4),
        (convolutional(0.0), images(), 2**-10),  # convolutions compute in TF32 by default
    ],
)
def test_a_gradient_is_the_cpus(module, data, limit):
    gradients = []
    for device in (DEVICE, "cpu"):
        problem = problem_on(device, module, data)
        partitions = problem.split(3)
        gradients.append(sum(partitions.partial_gradient(j, problem.initial()) for j in range(3)))
    assert difference(*gradients) <= limit


@pytest.mark.parametrize("strategy", ["uncoded", "frc:load=2", "cyclic:stragglers=1", "frc:load=2,batch=4"])
def test_a_training_ends_with_the_cpus_model(strategy):
    trained = train(problem_on(DEVICE), strategy)
    assert difference(trained.model, train(problem_on("cpu"), strategy).model) <= 1e-10
    assert trained.loss == pytest.approx(problem_on("cpu").loss(trained.model), rel=1e-10)


@pytest.mark.parametrize("strategy", ["frc:load=4,check=1", "frc:load=4,check=1,batch=8"])
@pytest.mark.parametrize("network", ["dense", "convolutional"])
def test_replicas_with_dropout_agree(network, strategy):
    if network == "dense":
        module, data = dense(torch.float32, 0.3), rows(torch.float32)
    else:
        module, data = convolutional(), images()
    run = train(problem_on(DEVICE, module, data), strategy, steps=40)
    assert run.summary["messages"]["compared"] >= 40
    assert run.summary["messages"]["differed"] == 0


def test_a_convolutional_network_with_batch_norm_learns():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    X, y = images(240)
    problem = problem_on(DEVICE, module, (X[:192], y[:192]), held_out=(X[192:], y[192:]))
    optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=0.01)
    run = train(problem, "frc:load=2", 40, optimizer=optimizer)
    assert run.metric["name"] == "accuracy"
    assert problem.loss(run.model) < 0.5 * problem.loss(problem.initial())


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"precision": "bf16"}, "frc:load=2"),
        ({"microbatch": 8}, "frc:load=2"),
        ({}, "async:lr_scale=0.2"),
        ({}, "diloco:tau=4"),
        ({}, "k-sync:k=3"),
    ],
)
def test_options_and_strategies_lower_the_loss(options, strategy):
    problem = problem_on(DEVICE, dense(torch.float32), rows(torch.float32), **options)
    optimizer = anyk.optimizers.Nesterov(0.7) if strategy.startswith("diloco") else anyk.optimizers.GD(0.2)
    run = train(problem, strategy, 30, optimizer=optimizer)
    assert problem.loss(run.model) < 0.95 * problem.loss(problem.initial())


@pytest.mark.parametrize("where", ["driver", "aside", "workers"])
def test_losses_are_evaluated_where_asked(where):
    problem = problem_on(DEVICE)
    run = train(problem, evaluate=f"every=4,on=train,where={where}")
    assert run.loss == pytest.approx(problem_on("cpu").loss(run.model), rel=1e-10)


def test_a_run_is_resumed_and_replayed(tmp_path):
    problem = problem_on(DEVICE, dense(dropout=0.3))
    with train(problem, "uncoded", 6, out=tmp_path / "run"):
        pass
    with anyk.resume(tmp_path / "run", problem=problem, steps=12, trust=True) as resumed:
        model = resumed.model
    assert difference(model, train(problem, "uncoded", 12).model) <= 1e-12
    assert "the same bits" in str(anyk.replay(tmp_path / "run", problem=problem, trust=True))


def test_killed_workers_return_with_a_device_of_their_own():
    cluster = anyk.clusters.Processes(WORKERS, seed=1, delays="exp:mean=0.05")
    killed = []

    def kill(worker):
        killed.append(cluster.pids[worker])
        os.kill(killed[-1], signal.SIGKILL)

    class Kill(anyk.Callback):
        def on_step(self, info):
            if info.step in (10, 25, 40):
                kill(info.step % WORKERS)

    lost = []

    class Count(anyk.Callback):
        def on_worker_lost(self, info):
            lost.append(info.worker)

    run = train(problem_on(DEVICE), "frc:load=2", 60, cluster=cluster, callbacks=[Kill(), Count()])
    assert len(set(killed)) == 3
    assert len(lost) == 3
    assert difference(run.model, train(problem_on("cpu"), "frc:load=2", 60).model) <= 1e-10


def test_jax_computes_the_cpus_gradients_and_model():
    jax.config.update("jax_enable_x64", True)

    def loss(params, batch):
        scores = jnp.tanh(batch["x"] @ params["a"]) @ params["b"]
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(scores)), batch["y"]])

    random = np.random.default_rng(1)
    params = {"a": random.standard_normal((10, 16)), "b": random.standard_normal((16, 3))}
    X = random.standard_normal((96, 10))
    data = {"x": X, "y": X[:, :3].argmax(axis=1)}
    models = []
    for platform in (PLATFORM, "cpu"):
        problem = JaxProblem(loss, params, data, platform=platform)
        run = train(problem, "frc:load=4,check=1", 20)
        assert run.summary["messages"]["compared"] >= 20
        assert run.summary["messages"]["differed"] == 0
        models.append(run.model)
    assert difference(*models) <= 1e-10


@pytest.mark.skipif(DEVICE == "cpu", reason="memory of the device is measured")
def test_memory_of_the_device_is_free_after_a_run():
    torch.zeros(1, device=DEVICE)
    before, _ = torch.cuda.mem_get_info()
    train(problem_on(DEVICE))
    for _ in range(50):
        if (after := torch.cuda.mem_get_info()[0]) >= before - 2**27:
            return
        time.sleep(0.1)
    pytest.fail(f"{(before - after) / 2**20:.0f} MiB are still used")
