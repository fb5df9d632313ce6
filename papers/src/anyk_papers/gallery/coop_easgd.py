"""Elastic averaging: how fast models mix against alpha, and where the best alpha is."""

import numpy as np

from anyk import strategy
from anyk.base import BadInput, Floats
from anyk.graphs import elastic, zeta
from anyk.optimizers import GD
from anyk_papers.gallery.coop_bound import Models
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines
from anyk_papers.quadratic import Quadratic

M = 8
BEST, TALK, STABLE = 2.0 / (M + 2.0), M / (M + 2.0), 2.0 / (M + 1.0)


def mixed_by(lab: Lab, alpha: float) -> Floats:
    """Return the matrix that mixed the models of a run after one step, of different length for each worker."""
    lab.check_simulated()
    random = np.random.default_rng(0)
    problem = Quadratic(random.standard_normal((M, 2 * M)), random.standard_normal(2 * M), curvature=0.0)
    models = Models(problem.initial())
    lab.train(
        problem,
        f"easgd:alpha={alpha:g}",
        workers=M,
        delays="constant:1",
        seed=0,
        optimizer=GD(lr=1.0),
        steps=2,
        callbacks=[models],
    )
    before = np.column_stack([(problem.start + problem.z).T, problem.start])  # worker i takes a step by z_i
    after = np.column_stack([*(problem.visited[i][1] for i in range(M)), models.all[1]])
    return np.asarray(np.linalg.lstsq(before, after, rcond=None)[0])


def measure(lab: Lab, case: Case, seed: int) -> Results:
    alpha = case["alpha"]
    numbers: Results = {"zeta": zeta(elastic(M, alpha)), "formula": max(abs(1.0 - alpha), abs(1.0 - (M + 1.0) * alpha))}
    if alpha < STABLE:
        numbers["zeta of a run"] = zeta(mixed_by(lab, alpha))
    if case["train"]:
        trained = lab.train(
            lab.problem("digits"),
            f"easgd:alpha={alpha:g},batch=2",
            workers=M,
            delays="exp:mean=0.5",
            seed=seed,
            optimizer=GD(lr=0.3),
            steps=lab.size(400, 60),
            evaluate="every=20",
        )
        numbers |= {"loss": trained["loss"], "curves": trained["curves"]}
    return numbers


def table(lab: Lab) -> Table:
    alphas = sorted({round(a, 4) for a in np.linspace(0.01, 0.9, 30)} | {BEST, TALK, 0.05, 0.1, 0.21})
    trained = (0.05, 0.1, BEST, 0.21)
    return lab.measure(measure, [{"alpha": alpha, "train": alpha in trained} for alpha in alphas])


def _equal(t: Table) -> tuple[bool, str]:
    off = max(
        abs(value - row.mean("formula"))
        for row in t
        for name in ("zeta", "zeta of a run")
        for value in row.numbers.get(name, ())
    )
    runs = sum("zeta of a run" in row.numbers for row in t)
    return off < 1e-6, f"off by {off:.0e} at most for {len(t.rows)} alphas, {runs} of them run (test: 1e-6)"


def _best(t: Table) -> tuple[bool, str]:
    runs = [row for row in t if "zeta of a run" in row.numbers]
    least = min(runs, key=lambda row: row.mean("zeta of a run"))
    alpha, value = least.case["alpha"], least.mean("zeta of a run")
    return alpha == BEST, f"least of {len(runs)} runs: zeta {value:.3f} at alpha = {alpha:.3g}"


def _talk(t: Table) -> tuple[bool, str]:
    value = t.mean("zeta", alpha=TALK)
    try:
        strategy(f"easgd:alpha={TALK:g}", workers=M)
    except BadInput:
        return False, f"zeta {value:.3g} at alpha = {TALK:g}: models drift apart, and anyk refuses to run it"
    return value < 1.0, f"zeta {value:.3g} at alpha = {TALK:g}"


ITEM = Item(
    name="coop-easgd",
    title="Elastic averaging of 8 workers: mixing rate zeta against alpha",
    source="Wang and Joshi 2018 (talk: alpha = m / (m + 2)); Zhang, Choromanska and LeCun 2015",
    minutes=0.5,
    table=table,
    claims=(
        Criterion(
            "zeta is the larger of |1 - alpha| and |1 - (m + 1) alpha|",
            "formula",
            _equal,
        ),
        Criterion("zeta is least at alpha = 2 / (m + 2)", "2 / (m + 2), where zeta is m / (m + 2)", _best),
        Criterion("alpha = m / (m + 2), as the talk prints it, averages", f"alpha = {TALK:g}", _talk),
    ),
    panels=(
        Lines(
            over="alpha",
            numbers=("zeta of a run", "formula"),
            x="alpha",
            y="zeta",
            title="mixing",
            marks=((BEST, "2/(m+2)"), (TALK, "m/(m+2)")),
        ),
        Lines(
            over="alpha",
            numbers=("loss",),
            x="alpha",
            y="loss of the centre",
            title="digits, mini-batches of 2",
            of={"train": True},
        ),
    ),
    columns=("alpha", "formula", "zeta", "zeta of a run", "loss"),
    differs="the loss is the centre's, which averages more the smaller alpha is; the zeta of a run is that of the "
    "matrix with which its models were mixed, worked out from the models",
)
