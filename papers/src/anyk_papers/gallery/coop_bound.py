"""Cooperative SGD: the mean squared gradient, its bound and its measurement."""

import numpy as np

from anyk.base import Vector
from anyk.callbacks import Callback, StepInfo
from anyk.fleet import cooperative_bound
from anyk.graphs import elastic, graph, zeta
from anyk.optimizers import GD
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars
from anyk_papers.quadratic import noisy

M, RATE, STEPS = 8, 0.05, 1000
SCHEMES = {  # strategy, tau
    "synchronous": ("pasgd:tau=1,batch=1", 1),
    "PASGD, tau = 10": ("pasgd:tau=10,batch=1", 10),
    "ring": ("dpsgd:graph=ring,batch=1", 1),
    "elastic": ("easgd:batch=1", 1),
}


class Models(Callback):
    """Keeps the run's model after each step."""

    def __init__(self, first: Vector) -> None:
        self.all = [first]

    def on_step(self, info: StepInfo) -> None:
        self.all.append(info.model.copy())


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Minimise F(w) = |w|^2 / 2 with gradients of variance 1, where F_1 - F_inf = 1 and L = 1."""
    lab.check_simulated()
    spec, tau = SCHEMES[case["scheme"]]
    zetas = {"ring": graph("ring", workers=M).zeta, "elastic": zeta(elastic(M, 2.0 / (M + 2.0)))}
    mixing = zetas.get(case["scheme"], 0.0)
    steps = lab.size(STEPS, 200)
    problem = noisy(M, 50, first=1.0, noise=1.0, seed=seed)
    centre = Models(problem.initial())
    lab.train(
        problem,
        spec,
        workers=M,
        delays="exp:mean=1",
        seed=seed,
        optimizer=GD(lr=RATE),
        steps=steps // tau,
        callbacks=[centre],
    )
    workers = np.array([problem.visited[i][:steps] for i in range(M)])
    auxiliary = int(case["scheme"] == "elastic")
    mean = np.concatenate([workers, [centre.all[:steps]] if auxiliary else workers[:0]]).mean(axis=0)
    constants = (1.0, RATE, 1.0, 1.0, M, steps)
    bound = cooperative_bound(*constants, tau=tau, zeta=mixing, auxiliary=auxiliary)
    return {
        "measured": float((mean**2).sum(axis=1).mean()),
        "bound": bound,
        "zeta": mixing,
        "distance": round(float(((workers - mean) ** 2).sum(axis=2).mean()), 12),
        "bound on the distance": bound - cooperative_bound(*constants, auxiliary=auxiliary),
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"scheme": name} for name in SCHEMES])


def _below(number: str, bound: str) -> Criterion:
    def here(t: Table) -> tuple[bool, str]:
        below = all(row.mean(number) <= row.mean(bound) for row in t)
        in_words = ", ".join(f"{row.case['scheme']} {row.mean(number):.3g} of {row.mean(bound):.3g}" for row in t)
        return below, in_words

    what = "gradient is below the bound"
    if number == "distance":
        what = "distance of the workers from the mean of all models is below the bound's last term"
    return Criterion(f"the mean squared {what}", "upper bound", here)


ITEM = Item(
    name="coop-bound",
    title="Cooperative SGD with 8 workers: mean squared gradient, distance of the models, and their bounds",
    source="Wang and Joshi 2018, Theorem 1 (talk)",
    minutes=0.6,
    table=table,
    claims=(
        _below("measured", "bound"),
        _below("distance", "bound on the distance"),
        Order(
            "models are further apart with local steps than on a ring, on a ring than when all average at each step",
            ("PASGD, tau = 10", "ring", "synchronous"),
            lambda t: [t.mean("distance", scheme=name) for name in ("PASGD, tau = 10", "ring", "synchronous")],
        ),
    ),
    panels=(
        Bars("measured", "mean squared gradient", "all of the bound", mark="bound"),
        Bars("distance", "mean squared distance from the mean", "its last term", mark="bound on the distance"),
    ),
    columns=("scheme", "zeta", "measured", "bound", "distance", "bound on the distance"),
    differs="measured on a quadratic whose constants are those of the bound (F_1 - F_inf = 1, rate 0.05, L = 1, "
    "variance 1, 1000 steps), where how far models are apart does not change their mean; the talk prints the formula "
    "and no numbers",
)
