"""A network of Flax (linen) with batch norm and dropout. Try: python examples/flax_network.py

Its batch statistics are state and its dropout takes a key, as in any training step written with Flax.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import anyk


class Network(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(32)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


def make_problem():
    """Also for: anyk train --problem examples/flax_network.py:make_problem --optimizer optax:adam --lr 0.01"""
    data = anyk.problems.load("digits")
    network = Network(len(data.classes))
    variables = network.init(jax.random.key(0), data.X_train[:2], train=False)

    def loss(params, batch, state, key, train):
        variables = {"params": params, "batch_stats": state}
        scores, updated = network.apply(
            variables, batch["x"], train=train, rngs={"dropout": key}, mutable=["batch_stats"]
        )
        value = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()
        return value, (updated["batch_stats"], {"accuracy": jnp.mean(scores.argmax(axis=1) == batch["y"])})

    return anyk.problems.JaxProblem(
        loss,
        variables["params"],
        {"x": data.X_train, "y": data.y_train.astype(int)},
        held_out={"x": data.X_test, "y": data.y_test.astype(int)},
        state=variables["batch_stats"],
        rng=True,
        has_aux=True,
        metrics=["accuracy", "held_out_loss"],
    )


if __name__ == "__main__":
    problem, steps = make_problem(), 30
    run = anyk.train(
        problem,
        "frc:stragglers=1",
        anyk.clusters.Simulated(workers=4, delays=anyk.delays.Exponential(mean=0.2), seed=1),
        optimizer=anyk.optimizers.OptaxOptimizer(optax.adam(1e-2)),
        steps=steps,
        evaluate=f"every={steps}",
    )
    print(f"{problem.dimension:,} parameters, {run.steps} steps: {run.metric}")
    trained = {"params": problem.params_at(run.model), "batch_stats": problem.state_at(run.model)}
    print(jax.tree.map(jnp.shape, trained))  # variables as Flax has them: ready to use
