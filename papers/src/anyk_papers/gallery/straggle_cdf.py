"""Measured times of workers: the distribution over workers and rounds of a trace."""

import numpy as np

from anyk.delays import Trace
from anyk_papers.item import Item, Ratio
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Curves

FOLDER = "lambda-traces"
FILES = ("p_desktop_long-Canada-n30-b2048-load0.00.npz", "p_mbp2-Sydney-n20-b256-load0.00.npz")


def measure(lab: Lab, case: Case, seed: int) -> Results:
    times = Trace(str(lab.path(f"{FOLDER}/{case['trace']}"))).times
    mean = times.mean(axis=0)
    shares = np.arange(1, times.shape[1] + 1) / times.shape[1]
    everything = np.sort(times.ravel())
    return {
        "workers": times.shape[1],
        "rounds": times.shape[0],
        "median": float(np.median(times)),
        "slowest over median": float(mean.max() / np.median(mean)),
        "longest over median": float(times.max() / np.median(times)),
        "beyond twice the fastest": float((times > 2.0 * times.min(axis=1, keepdims=True)).mean()),
        "curves": {
            "workers": (np.sort(mean) / np.median(mean), shares),
            "tasks": (everything / np.median(times), np.arange(1, everything.size + 1) / everything.size),
        },
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"trace": name} for name in FILES], seeds=1)


ITEM = Item(
    name="straggle-cdf",
    title="Distribution of measured times over their median, 256 serverless workers",
    source="Wang, Charles and Papailiopoulos 2019, Figure 1 (148 workers, the slowest 8 times the median)",
    minutes=0.1,
    clock="none",
    table=table,
    claims=(
        Ratio(
            text="the longest task takes 8 times the median (in the trace where it takes longest)",
            paper=8.0,
            here=lambda t: max(row.mean("longest over median") for row in t),
            unit=" times",
            within=0.07,
            reason="one digit is printed, 7.5 to 8.5",
        ),
    ),
    panels=(
        Curves(curve="workers", x="mean time of a worker / median", y="share of workers", title="workers"),
        Curves(curve="tasks", x="time of a task / median", y="share of tasks", title="tasks of all rounds", log="x"),
    ),
    columns=(
        "trace",
        "workers",
        "rounds",
        "median",
        "slowest over median",
        "longest over median",
        "beyond twice the fastest",
    ),
    differs="other machines: two traces of 256 AWS Lambda workers in place of 148 EC2 instances",
)
