"""Loss against time for fixed numbers of local steps and for AdaComm, where communication is slow."""

from typing import Any

import numpy as np

from anyk.optimizers import GD, Optimizer
from anyk.papers.item import Criterion, Item, Order, Ratio
from anyk.papers.item_table import Case, Table, above_best
from anyk.papers.lab import Lab, Results
from anyk.papers.pictures import Bars, Curves

P, SECONDS, INTERVALS = 8, 300.0, 15
TAUS = (1, 5, 20, 50)
OPTIMIZER = GD(lr=0.3)


def train(
    lab: Lab, case: Case, seed: int, *, largest: int, optimizer: Optimizer = OPTIMIZER, **options: Any
) -> Results:
    """Train with a fixed number of local steps, or with AdaComm from ``largest`` on; ``options`` are of the data."""
    seconds = SECONDS / 4 if lab.quick else SECONDS
    spec = f"pasgd:tau={case['tau']},batch=2"
    if case["tau"] == "adacomm":
        spec = f"adacomm:tau={largest},interval={seconds / INTERVALS:g},batch=2"
    return lab.train(
        lab.problem("digits", model="two-layer:hidden=16", **options),
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


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"tau": tau} for tau in (*TAUS, "adacomm")])


def _end(t: Table) -> float:
    return min(float(x[-1]) for row in t for x, _ in row.curves["loss"])


def _sooner(t: Table) -> float:
    """Return the time of synchronous SGD over the time at which AdaComm has reached its last loss."""
    times = np.linspace(_end(t) / 300, _end(t), 300)
    goal = t.row(tau=1).at("loss", times[-1])
    reached = [at for at in times if t.row(tau="adacomm").at("loss", at) <= goal]
    return float(times[-1] / reached[0]) if reached else 0.0


def _best(t: Table) -> tuple[bool, str]:
    above = above_best(t.row(tau="adacomm"), [t.row(tau=tau) for tau in TAUS], "loss")
    return above < 0.10, f"{100 * above:+.1f} % from the best fixed tau of each time, on average (test: below 10 %)"


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
            "AdaComm reaches the loss of fully synchronous SGD in 3 times less time", 3.0, _sooner, " times", least=True
        ),
        Order(
            "early (a sixtieth of the time), averaging seldom is ahead",
            ("tau = 1", "tau = 5", "tau = 50"),
            lambda t: [t.row(tau=tau).at("loss", _end(t) / 60) for tau in (1, 5, 50)],
        ),
        Criterion("AdaComm is near the best fixed tau at any time", "lower envelope", _best),
    ),
    panels=(
        Curves("loss", "virtual seconds", "loss", "error against time", log="y", label=label),
        Bars("loss", "loss at the end", "where they end", label=label, log="y"),
    ),
    columns=("tau", "loss", "accuracy"),
    differs="a network with one hidden layer on handwritten digits in place of VGG-16 and ResNet-50 on CIFAR-10, 8 "
    "workers in place of 4, mini-batches of 2",
)
