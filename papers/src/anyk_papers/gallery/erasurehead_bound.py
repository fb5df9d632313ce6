"""ErasureHead's convergence theorems against gradient descent on least squares with known constants."""

import numpy as np

from anyk.base import Floats, Vector, keyed_generator
from anyk.callbacks import Callback, StepInfo
from anyk.fleet.theory.erasurehead import excess_bound, missing
from anyk.optimizers import GD
from anyk.problems import LeastSquares
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Row, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

N, C, R = 12, 3, 5  # workers, their load, and the replies that a step waits for
ROWS, FEATURES = 4, 3  # of a partition
STEPS = (1, 2, 5, 10, 20, 50, 100)
SPEC = f"agc:load={C},wait={R},scaling=marginal"  # the sum over 1 - p, as the theorems have it


class WeightRecorder(Callback):
    """Records the weights of the partitions and the largest norm of a partition's gradient."""

    def __init__(self, problem: LeastSquares) -> None:
        self.X, self.y = problem.X.reshape(N, ROWS, FEATURES), problem.y.reshape(N, ROWS)
        self.weights: list[Floats] = []
        self.largest = self.gradient(problem.initial())

    def gradient(self, w: Vector) -> float:
        errors = np.einsum("jrf,f->jr", self.X, w) - self.y
        return float(np.linalg.norm(np.einsum("jrf,jr->jf", self.X, errors) / ROWS, axis=1).max())

    def on_step(self, info: StepInfo) -> None:
        self.weights.append(info.receipt.weights)
        self.largest = max(self.largest, self.gradient(info.model))


def runs(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the mean excess loss after each step and the weights of partitions; compute both bounds."""
    random = keyed_generator(seed, "gallery-erasurehead-bound")
    X = random.standard_normal((N * ROWS, FEATURES))
    problem = LeastSquares(X, X @ random.standard_normal(FEATURES) + 0.1 * random.standard_normal(len(X)), l2=0.0)
    beta, mu = np.linalg.eigvalsh(X.T @ X / len(X))[[-1, 0]]
    best = problem.loss(np.linalg.lstsq(X, problem.y, rcond=None)[0])
    first = problem.loss(problem.initial()) - best
    p = missing(N, C, R).one
    rate = (1.0 if case["step"] == "full" else 1.0 - p) / beta
    watch, totals, count = WeightRecorder(problem), np.zeros(STEPS[-1] + 1), lab.size(60, 3)
    for run in range(count):
        totals += lab.train(
            problem,
            SPEC,
            workers=N,
            delays="exp:mean=1",
            seed=seed * count + run,
            optimizer=GD(lr=rate),
            steps=STEPS[-1],
            evaluate="every=1",
            callbacks=[watch],
        )["curves"]["loss"][1]
    numbers: Results = {
        "weight": float(np.mean(watch.weights)),
        "missing": float(np.mean(np.array(watch.weights) == 0.0)),
        "groups": N // C * len(watch.weights),
    }
    for steps in STEPS:
        arguments = (steps, float(first), float(beta), float(mu), watch.largest, N, C, R)
        numbers[f"measured {steps}"] = float(totals[steps] / count - best)
        numbers[f"Theorem 1 {steps}"] = excess_bound(*arguments, step=case["step"])
        numbers[f"Theorem 2 {steps}"] = excess_bound(*arguments, step=case["step"], simple=True)
    return numbers


def table(lab: Lab) -> Table:
    measured = lab.measure(runs, cases(step=["full", "scaled"]))
    rows = []
    for row in measured:
        for steps in STEPS:
            numbers = {name: row.numbers[f"{name} {steps}"] for name in ("measured", "Theorem 1", "Theorem 2")}
            rows.append(Row({"step": row.case["step"], "steps": steps}, numbers))
        rows.append(Row(row.case, {name: row.numbers[name] for name in ("weight", "missing", "groups")}))
    return Table(tuple(rows))


def _holds(name: str) -> Criterion:
    def here(t: Table) -> tuple[bool, str]:
        worst = max(row.mean("measured") / row.mean(name) for row in t if name in row.numbers)
        return worst <= 1.0, f"measured is at most {worst:.2g} of it"

    return Criterion(f"{name} bounds the excess loss", "upper bound", here)


def _unbiased(t: Table) -> tuple[bool, str]:
    """Test that groups are missing with chance p, and that weights, 0 or 1 / (1 - p), are 1 on average."""
    p = missing(N, C, R).one
    rows = [row for row in t if "weight" in row.numbers]
    share, weight = (float(np.mean([row.mean(name) for row in rows])) for name in ("missing", "weight"))
    # groups of one step exclude each other, so that they scatter less than independent ones
    error = (p * (1.0 - p) / sum(sum(row.numbers["groups"]) for row in rows)) ** 0.5
    unbiased = abs(share - p) < 4.0 * error and abs(weight - 1.0) < 4.0 * error / (1.0 - p)
    return unbiased, (
        f"missing {share:.4f} for p = {p:.4f}, mean weight {weight:.4f} (test: 4 standard errors of {error:.4f})"
    )


ITEM = Item(
    name="erasurehead-bound",
    title="Excess loss of approximate gradient descent and its bounds, 12 workers, load 3, 5 replies",
    source="Wang, Charles and Papailiopoulos 2019, Theorems 1 and 2",
    minutes=2.0,
    table=table,
    claims=(
        _holds("Theorem 1"),
        _holds("Theorem 2"),
        Criterion("Lemma 2: a group is missing with chance p; the sum over 1 - p is unbiased", "formula", _unbiased),
    ),
    panels=tuple(
        Lines(
            over="steps",
            numbers=("measured", "Theorem 1", "Theorem 2"),
            x="steps",
            y="excess loss",
            title=f"step size: {step}",
            log="xy",
            of={"step": step},
        )
        for step in ("full", "scaled")
    ),
    columns=("step", "steps", "measured", "Theorem 1", "Theorem 2", "missing", "weight"),
    differs="least squares, whose constants are known; the bound on gradients is the largest one met",
)
