"""The gradient of a step is the sum that its receipt states, of partitions' gradients at the stated versions."""

import numpy as np
import pytest

import anyk

ROWS, PARTITIONS, STEPS = 48, 4, 12
PROBLEM = anyk.problems.LeastSquares(
    np.random.default_rng(0).normal(size=(ROWS, 5)), np.random.default_rng(1).normal(size=ROWS), l2=0.0
)
OF_ALL = ("uncoded", "frc:load=2", "cyclic:stragglers=1", "k-sync:k=3", "uncoded:wait=3|0.5s", "k-batch-sync:k=3")
OF_COVERED = ("async", "async:stale=inverse", "k-async:k=2", "k-batch-async:k=2", "gradual")


def steps_of(spec):
    """Return each step's gradient and receipt, and the models of all versions."""
    models, steps = [PROBLEM.initial().copy()], []
    cluster = anyk.clusters.Simulated(PARTITIONS, delays="exp:mean=1", seed=2)
    for step in anyk.rounds(PROBLEM, spec, cluster, steps=STEPS, evaluate=None):
        steps.append((step.gradient.copy(), step.receipt))
        step.model -= 0.05 * step.gradient
        models.append(step.model.copy())
    return steps, models


@pytest.mark.parametrize("spec", OF_ALL)
def test_a_sum_over_all_samples_is_divided_by_all(spec):
    steps, models = steps_of(spec)
    parts = PROBLEM.split(PARTITIONS)
    for (gradient, receipt), w in zip(steps, models, strict=False):
        own = sum(weight * parts.partial_gradient(j, w) for j, weight in enumerate(receipt.weights)) / ROWS
        assert gradient == pytest.approx(own, rel=1e-9, abs=1e-12)
        assert receipt.residual == pytest.approx(np.linalg.norm(receipt.weights - 1) / PARTITIONS**0.5, abs=1e-9)


@pytest.mark.parametrize("spec", OF_COVERED)
def test_a_sum_of_covered_samples_is_divided_by_these(spec):
    steps, models = steps_of(spec)
    parts = PROBLEM.split(PARTITIONS)
    for number, (gradient, receipt) in enumerate(steps):
        own = sum(  # worker j has partition j
            message.weight * parts.partial_gradient(message.worker, models[number - message.staleness])
            for message in receipt.used
        ) / sum(receipt.samples)
        assert gradient == pytest.approx(own, rel=1e-9, abs=1e-12)
    assert any(message.staleness for _, receipt in steps for message in receipt.used)


@pytest.mark.parametrize("spec", ["async", "k-async:k=2", "k-batch-async:k=2"])
def test_a_residual_is_of_the_weights_after_division(spec):
    for _, receipt in steps_of(spec)[0]:
        weights = receipt.weights * ROWS / sum(receipt.samples)
        assert receipt.residual == pytest.approx(np.linalg.norm(weights - 1) / PARTITIONS**0.5, abs=1e-9)
