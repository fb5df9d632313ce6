"""Seconds of a step when models are averaged every tau steps, and among neighbours."""

from anyk import strategy
from anyk.delays import Exponential, communication
from anyk.fleet import simulated_pace
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Lines

P, D = 8, 1.0
FREE, SLOW = "averaging is free", f"averaging takes {D:g} s"
LAW = Exponential(mean=1.0)


def measure(lab: Lab, case: Case, seed: int) -> Results:
    link = communication(f"constant:{D}") if case["averaging"] == SLOW else None
    built, tau = strategy(case["spec"], workers=P), case["tau"]
    measured = simulated_pace(built, LAW, communication=link, updates=lab.size(4_000, 400), seed=seed)
    numbers = {"simulated": measured.seconds / tau, "error": measured.error / tau}
    if case["what"] == "tau":
        numbers["closed form"] = LAW.longest_sum(tau, P) / tau + (D / tau if link else 0.0)
    return numbers


def table(lab: Lab) -> Table:
    taus = [
        {"what": "tau", "tau": tau, "averaging": averaging, "spec": f"pasgd:tau={tau}"}
        for averaging in (FREE, SLOW)
        for tau in (1, 2, 5, 10, 20, 50, 100)
    ]
    others = (
        "pasgd:tau=1",
        "dpsgd:graph=ring",
        "easgd",
        "matcha:graph=ring,budget=0.5",
        "dpsgd:graph=ring,barrier=global",
    )
    return lab.measure(measure, [*taus, *({"what": "barrier", "tau": 1, "averaging": FREE, "spec": s} for s in others)])


def _exact(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "closed form" in row.numbers]
    # standard errors of the mean over the seeds, and one part in 1000 for the start
    worst = max(
        abs(row.mean("simulated") - row.mean("closed form"))
        / (row.mean("error") / len(row.numbers["error"]) ** 0.5 + 1e-3 * row.mean("closed form"))
        for row in rows
    )
    in_words = ", ".join(f"{row.mean('simulated'):.4g}" for row in rows if row.case["averaging"] == FREE)
    return worst < 4.5, f"{in_words}; off by {worst:.1f} standard errors at worst (test: 4.5)"


ITEM = Item(
    name="pasgd-runtime",
    title="Seconds a step when 8 workers average every tau steps, or among neighbours; exponential steps of 1 s",
    source="Wang and Joshi 2018, 2019 (talk: E[max of averages] + D / tau)",
    minutes=1.0,
    table=table,
    claims=(
        Criterion("E max of P averages of tau steps, + D / tau", "formula", _exact),
        Order(
            "waiting for neighbours costs less than waiting for all",
            ("all", "ring", "elastic"),
            lambda t: [
                t.where(what="barrier").mean("simulated", spec=spec)
                for spec in ("pasgd:tau=1", "dpsgd:graph=ring", "easgd")
            ],
        ),
    ),
    panels=(
        Lines(
            over="tau",
            numbers=("simulated", "closed form"),
            x="tau, local steps",
            y="seconds a step",
            title="periodic averaging",
            log="x",
            by="averaging",
            of={"what": "tau"},
        ),
        Bars(
            "simulated",
            "seconds a step",
            "who waits for whom",
            label=lambda case: str(case["spec"]),
            of={"what": "barrier"},
        ),
    ),
    columns=("spec", "averaging", "simulated", "closed form"),
    differs="nothing; waiting among neighbours is left open in the talk and is simulated here",
)
