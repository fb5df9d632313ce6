"""Workers that are always slow, partly or wholly, on data that is sorted by label."""

from itertools import pairwise

import numpy as np

from anyk.delays import TableDelays as Measured
from anyk.optimizers import Accelerated
from anyk.problems import LogisticRegression
from anyk.strategies import strategy
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves

N, SLOW_WORKERS, TARGET = 12, 2, 0.8
SORTED = "dirichlet:alpha=0.000001"  # each partition has rows of one class, as far as there are any
SLOWNESS = {"partly slow": 3.0, "always slow": 50.0}  # times as long as the other workers
STRATEGIES = {
    "uncoded": "uncoded",
    "ignore 2": "uncoded:wait=10",
    "FRC, s = 2": "frc:stragglers=2",
    "partial, s = 2": "partial:stragglers=2",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    problem, spec = lab.problem("amazon", split=SORTED), STRATEGIES[case["strategy"]]
    assert isinstance(problem, LogisticRegression) and problem.uneven is not None
    ends = np.arange(N + 1) * problem.samples // N
    labels = np.asarray(problem.y)[problem.uneven.order(problem.y, ends)]
    share_of_rarer_class = [float((labels[a:b] < 0.5).mean()) for a, b in pairwise(ends)]
    seconds = np.ones((1, N))  # for a twelfth of the data
    seconds[0, np.argsort(share_of_rarer_class)[-SLOW_WORKERS:]] = SLOWNESS[case["stragglers"]]
    law = Measured(seconds * N / strategy(spec, workers=N).layout.partitions, per="load")
    return lab.train(
        problem,
        spec,
        workers=N,
        delays=law,
        seed=seed,
        optimizer=Accelerated(lr=10.0),
        steps=lab.size(60, 30),
        targets=(TARGET,),
        evaluate="every=1",
        further=lambda run: {"worker-seconds a step": N * run.seconds / max(run.steps, 1)},
    )


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(stragglers=list(SLOWNESS), strategy=list(STRATEGIES)), seeds=1)


def _same(t: Table) -> tuple[bool, str]:
    exact = [row for row in t if row.case["strategy"] != "ignore 2"]
    worst = max(abs(row.mean("loss") - exact[0].mean("loss")) for row in exact)
    return worst < 1e-6, f"losses differ by {worst:.1g} at most (test: 1e-6)"


def _ignoring(t: Table) -> tuple[bool, str]:
    ignoring, coded = (t.row(stragglers="always slow", strategy=name) for name in ("ignore 2", "FRC, s = 2"))
    never = not np.isfinite(ignoring.mean(f"to {TARGET:g}"))
    return never, f"AUC {ignoring.mean('auc'):.3f} against {coded.mean('auc'):.3f} with all data"


def _partly(t: Table) -> tuple[bool, str]:
    names = ("partial, s = 2", "uncoded", "FRC, s = 2")
    partial, *others = (t.mean("seconds a step", stragglers="partly slow", strategy=name) for name in names)
    return partial < min(others), f"{partial:.3g} s a step, uncoded {others[0]:.3g} s, FRC {others[1]:.3g} s"


ITEM = Item(
    name="talk-stragglers",
    title=f"Two of {N} workers that are always slow, on the Amazon data sorted by label",
    source="Tandon, Lei, Dimakis and Karampatziakis 2017, talk (AUC against time; partial stragglers)",
    minutes=1.5,
    table=table,
    claims=(
        Criterion("without the data of the same two workers the model is a worse one", "lower AUC", _ignoring),
        Criterion("exact codes take the steps of uncoded", "the same model", _same),
        Criterion(
            "partly slow workers: a partial code is faster than waiting, and than a code that uses nothing of them",
            "partial first",
            _partly,
        ),
        Order(
            "always slow workers: a code that does without them costs fewer worker-seconds (the price of as many "
            "instances) than a partial one, and that fewer than waiting",
            ("uncoded", "partial, s = 2", "FRC, s = 2"),
            lambda t: [
                t.mean("worker-seconds a step", stragglers="always slow", strategy=name)
                for name in ("uncoded", "partial, s = 2", "FRC, s = 2")
            ],
        ),
    ),
    panels=(
        *(
            Curves(
                curve="auc",
                x="virtual seconds",
                y="AUC on held-out rows",
                title=name,
                log="x",
                of={"stragglers": name},
                label=lambda case: str(case["strategy"]),
                lines=(TARGET,),
            )
            for name in SLOWNESS
        ),
        Bars(
            "worker-seconds a step",
            "worker-seconds a step",
            "price, always slow",
            log="y",
            of={"stragglers": "always slow"},
            label=lambda case: str(case["strategy"]),
        ),
    ),
    columns=("stragglers", "strategy", "seconds a step", "worker-seconds a step", f"to {TARGET:g}", "auc"),
    differs="a slow worker takes 3 or 50 times as long for the same data, always the same two, on a virtual clock; "
    "they have most of the rows of the rarer class; the price is worker-seconds, not that of a provider; with partly "
    "slow workers FRC takes as long as uncoded, and its curve covers that one",
)
