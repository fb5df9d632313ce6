"""An Equinox module with batch norm and dropout, trained as it is. Try: python examples/equinox_network.py

Two workers hold all of the data each, so that every step takes the reply of whoever is first.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import anyk


class Network(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __init__(self, features, classes, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(features, 32, key=one)
        self.norm = eqx.nn.BatchNorm(32, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.1)
        self.second = eqx.nn.Linear(32, classes, key=two)

    def __call__(self, x, state, key):
        x, state = self.norm(self.first(x), state)
        return self.second(self.dropout(jax.nn.relu(x), key=key)), state


def loss(model, batch, state, key):
    keys = jax.random.split(key, len(batch["y"]))
    rows = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
    scores, state = rows(batch["x"], state, keys)
    value = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()
    return value, (state, {"accuracy": jnp.mean(scores.argmax(axis=1) == batch["y"])})


def make_problem():
    """Also for: anyk train --problem examples/equinox_network.py:make_problem --optimizer optax:adam --lr 0.01"""
    data = anyk.problems.load("digits")
    model, state = eqx.nn.make_with_state(Network)(data.X_train.shape[1], len(data.classes), key=jax.random.key(0))
    return anyk.problems.JaxProblem(
        loss,
        model,
        {"x": data.X_train, "y": data.y_train.astype(int)},
        held_out={"x": data.X_test, "y": data.y_test.astype(int)},
        state=state,
        rng=True,
        has_aux=True,
        metrics=["accuracy", "held_out_loss"],
    )


if __name__ == "__main__":
    problem, steps = make_problem(), 30
    run = anyk.train(
        problem,
        "frc:stragglers=1",
        anyk.clusters.Processes(workers=2, delays=anyk.delays.Exponential(mean=0.02), seed=1),
        optimizer=anyk.optimizers.OptaxOptimizer(optax.adam(1e-2)),
        steps=steps,
        evaluate=f"every={steps}",
    )
    print(f"{problem.dimension:,} parameters, {run.steps} steps in {run.seconds:.1f} s: {run.metric}")
    model, state = problem.params_at(run.model), problem.state_at(run.model)  # in inference mode: ready to use
