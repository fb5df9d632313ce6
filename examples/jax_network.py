"""A network written in JAX, its parameters a pytree, with an optax optimiser. Try: python examples/jax_network.py"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import anyk


def scores(params, x):
    hidden = jax.nn.relu(x @ params["first"]["matrix"] + params["first"]["offset"])
    return hidden @ params["second"]["matrix"] + params["second"]["offset"]


def loss(params, batch):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, batch["x"]), batch["y"]).mean()


def accuracy(params, batch):
    return jnp.mean(scores(params, batch["x"]).argmax(axis=1) == batch["y"])


def layer(random, inputs, outputs):
    return {"matrix": random.standard_normal((inputs, outputs)) * (2 / inputs) ** 0.5, "offset": np.zeros(outputs)}


data = anyk.problems.load("digits")
random = np.random.default_rng(0)
features, classes, steps = data.X_train.shape[1], len(data.classes), 100
problem = anyk.problems.JaxProblem(
    loss,
    {"first": layer(random, features, 64), "second": layer(random, 64, classes)},
    {"x": data.X_train, "y": data.y_train.astype(int)},
    held_out={"x": data.X_test, "y": data.y_test.astype(int)},
    metrics={"accuracy": accuracy},
)
stepping = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, steps)))
run = anyk.train(
    problem,
    "frc:stragglers=1",
    anyk.clusters.Processes(workers=4, delays=anyk.delays.Exponential(mean=0.02), seed=1),
    optimizer=anyk.optimizers.OptaxOptimizer(stepping),
    steps=steps,
    evaluate=f"every={steps}",
)
print(f"{problem.dimension:,} parameters, {run.steps} steps in {run.seconds:.1f} s: {run.metric}")
print("kept:", jax.tree.map(np.shape, problem.params_at(run.model)))
