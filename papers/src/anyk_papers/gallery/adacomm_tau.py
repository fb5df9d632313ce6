"""Loss against time for fixed numbers of local steps and for AdaComm, where communication is slow."""

from collections.abc import Callable
from typing import Any

import numpy as np

from anyk.base import keyed_generator
from anyk.optimizers import GD, Optimizer
from anyk.problems import LeastSquares
from anyk.problems.base import Problem
from anyk_papers.item import Criterion, Item, Order, Ratio
from anyk_papers.item_table import Case, Row, Table, above_best, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves

P, SECONDS, INTERVALS = 8, 300.0, 15
TAUS = (1, 5, 20, 50)
OPTIMIZER = GD(lr=0.3)
UNLIKE_OPTIMIZER = GD(lr=0.05)
NEAR = 0.10  # mean excess over the lower envelope of the fixed numbers of local steps that counts as near
FLOOR = 0.1  # last share of the time, over which floors are averaged


def train(
    lab: Lab, case: Case, seed: int, *, largest: int, optimizer: Optimizer = OPTIMIZER, **options: Any
) -> Results:
    """Train with a fixed number of local steps, or with AdaComm from ``largest`` on; ``options`` are of the data."""
    problem = lab.problem("digits", model="two-layer:hidden=16", **options)
    return train_on(lab, problem, case, seed, largest=largest, optimizer=optimizer)


def train_on(lab: Lab, problem: Problem, case: Case, seed: int, *, largest: int, optimizer: Optimizer) -> Results:
    seconds = SECONDS / 4 if lab.quick else SECONDS
    spec = f"pasgd:tau={case['tau']},batch=2"
    if case["tau"] == "adacomm":
        spec = f"adacomm:tau={largest},interval={seconds / INTERVALS:g},batch=2"
    return lab.train(
        problem,
        spec,
        workers=P,
        delays="exp:mean=0.1",
        seed=seed,
        communication="constant:0.5",
        optimizer=optimizer,
        seconds=seconds,
        evaluate="every=1",
    )


def measure(lab: Lab, case: Case, seed: int) -> Results:
    return train(lab, case, seed, largest=50)


def unlike_workers() -> tuple[LeastSquares, float]:
    """Return least squares whose workers have unlike data, and its least loss.

    Each worker has curvatures and an optimum of its own, so that local steps take it away from the common optimum: a
    large fixed tau has a floor.
    """
    random = keyed_generator(0, "gallery-adacomm-tau")
    rows, features = 40, 10
    X = random.standard_normal((P, rows, features)) * np.exp(random.uniform(-1.5, 0.5, (P, 1, features)))
    y = (X * (1.0 + 0.7 * random.standard_normal((P, 1, features)))).sum(axis=2)
    y += 0.1 * random.standard_normal((P, rows))
    problem = LeastSquares(X.reshape(-1, features), y.ravel(), l2=0.0)
    return problem, problem.loss(np.linalg.lstsq(X.reshape(-1, features), y.ravel(), rcond=None)[0])


def measure_unlike(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the loss above the optimum where workers have unlike data."""
    problem, least = unlike_workers()
    results = train_on(lab, problem, case, seed, largest=50, optimizer=UNLIKE_OPTIMIZER)
    times, losses = results["curves"]["loss"]
    floor = float((losses - least)[times >= (1.0 - FLOOR) * times[-1]].mean())
    return {"floor": floor, "curves": {"excess": (times, losses - least)}}


def table(lab: Lab) -> Table:
    taus = [*TAUS, "adacomm"]
    digits = lab.measure(measure, [{"tau": tau} for tau in taus])
    unlike = lab.measure(measure_unlike, cases(workers=["unlike"], tau=taus), seeds=min(lab.seeds, 3))
    return Table(
        tuple(Row({"workers": "digits"} | dict(row.case), row.numbers, row.curves) for row in digits) + unlike.rows
    )


def _end(t: Table, curve: str) -> float:
    return min(float(x[-1]) for row in t for x, _ in row.curves[curve])


def _sooner(workers: str, curve: str) -> Callable[[Table], float]:
    """Return the time of synchronous SGD over the time at which AdaComm has reached its last loss."""

    def sooner(t: Table) -> float:
        of = t.where(workers=workers)
        times = np.linspace(_end(of, curve) / 300, _end(of, curve), 300)
        goal = of.row(tau=1).at(curve, times[-1])
        reached = [moment for moment in times if of.row(tau="adacomm").at(curve, moment) <= goal]
        return float(times[-1] / reached[0]) if reached else 0.0

    return sooner


def _seldom_first(t: Table) -> list[float]:
    of = t.where(workers="digits")
    return [of.row(tau=tau).at("loss", _end(of, "loss") / 60) for tau in (1, 5, 50)]


def _best(t: Table) -> tuple[bool, str]:
    of = t.where(workers="digits")
    above = above_best(of.row(tau="adacomm"), [of.row(tau=tau) for tau in TAUS], "loss")
    return above < NEAR, (
        f"{100 * above:+.1f} % from the best fixed tau of each time, on average (test: below {100 * NEAR:g} %)"
    )


def _has_floor(t: Table) -> tuple[bool, str]:
    largest, smaller = (t.mean("floor", workers="unlike", tau=tau) for tau in (50, 5))
    return largest > 3.0 * smaller, f"{largest:.3g} for tau = 50, {smaller:.3g} for tau = 5 (test: 3 times)"


def _no_floor(t: Table) -> tuple[bool, str]:
    floors = {tau: t.mean("floor", workers="unlike", tau=tau) for tau in (*TAUS, "adacomm")}
    adaptive, best = floors.pop("adacomm"), min(floors.values())
    return adaptive < 1.5 * best, f"{adaptive:.3g}, the lowest of a fixed tau {best:.3g} (test: below 1.5 times)"


def label(case: Case) -> str:
    return "AdaComm" if case["tau"] == "adacomm" else f"tau = {case['tau']}"


ITEM = Item(
    name="adacomm-tau",
    title="Loss against seconds of periodic averaging, 8 workers, averaging five times as long as a step",
    source="Wang and Joshi 2019 (AdaComm), abstract and talk",
    minutes=4.0,
    seeds=10,
    table=table,
    claims=(
        Ratio(
            text="digits: AdaComm reaches the loss of fully synchronous SGD in 3 times less time",
            paper=3.0,
            here=_sooner("digits", "loss"),
            unit=" times",
            least=True,
        ),
        Order(
            "digits: early (a sixtieth of the time), averaging seldom is ahead",
            ("tau = 1", "tau = 5", "tau = 50"),
            _seldom_first,
        ),
        Criterion(
            "digits: AdaComm's loss is on average within 10 % of that of the best fixed tau of each time",
            "lower envelope",
            _best,
        ),
        Criterion("unlike workers: a large fixed tau has a higher floor", "higher floor", _has_floor),
        Criterion(
            "unlike workers: AdaComm, from that tau on, ends below 1.5 times the lowest floor", "low floor", _no_floor
        ),
        Ratio(
            text="unlike workers: AdaComm reaches the loss of fully synchronous SGD in 3 times less time",
            paper=3.0,
            here=_sooner("unlike", "excess"),
            unit=" times",
            least=True,
        ),
    ),
    panels=(
        Curves(
            curve="loss", x="virtual seconds", y="loss", title="digits", log="y", label=label, of={"workers": "digits"}
        ),
        Curves(
            curve="excess",
            x="virtual seconds",
            y="loss above the optimum",
            title="workers with unlike data",
            log="y",
            label=label,
            of={"workers": "unlike"},
        ),
        Bars(
            "floor",
            "loss above the optimum, mean of the last tenth",
            "floors, workers with unlike data",
            label=label,
            log="y",
        ),
    ),
    columns=("workers", "tau", "loss", "accuracy", "floor"),
    differs="a network with one hidden layer on handwritten digits in place of VGG-16 and ResNet-50 on CIFAR-10, 8 "
    "workers in place of 4, mini-batches of 2; workers with unlike data are least squares on drawn data, 3 seeds",
)
