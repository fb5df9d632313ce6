"""Seconds of a step when models are averaged every tau steps, and among neighbours."""

from anyk import strategy
from anyk.delays import Exponential, communication
from anyk.gallery.item import Criterion, Item, Order
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Bars, Lines
from anyk.gallery.table import Case, Table
from anyk.planning import simulated_pace

P, D = 8, 1.0
LAW = Exponential(mean=1.0)


def measure(lab: Lab, case: Case, seed: int) -> Found:
    link = communication(f"constant:{D}") if case["link"] else None
    made = strategy(case["spec"], workers=P)
    updates = lab.size(4_000, 400)
    tau = case["tau"]
    found = {"seconds a step": simulated_pace(made, LAW, communication=link, updates=updates, seed=seed).seconds / tau}
    if case["what"] == "tau":
        known = LAW.longest_sum(tau, P) / tau + (D / tau if link else 0.0)
        found["closed form"] = known
    return found


def table(lab: Lab) -> Table:
    taus = [{"what": "tau", "tau": tau, "link": link, "spec": f"pasgd:tau={tau}"}
            for link in (False, True) for tau in (1, 2, 5, 10, 20, 50, 100)]  # fmt: skip
    others = (
        "pasgd:tau=1",
        "dpsgd:graph=ring",
        "easgd",
        "matcha:graph=ring,budget=0.5",
        "dpsgd:graph=ring,barrier=global",
    )
    return lab.measure(measure, [*taus, *({"what": "barrier", "tau": 1, "link": False, "spec": s} for s in others)])


def _exact(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "closed form" in row.numbers]
    worst = max(abs(row.mean("seconds a step") / row.mean("closed form") - 1.0) for row in rows)
    shown = ", ".join(f"{row.mean('seconds a step'):.4g}" for row in rows if not row.case["link"])
    return worst < 0.02, f"{shown}; off by {100 * worst:.1f} % at worst"


ITEM = Item(
    name="pasgd-runtime",
    title="Seconds a step when 8 workers average every tau steps, or among neighbours; exponential steps of 1 s",
    source="Wang and Joshi 2018, 2019 (talk: E[max of averages] + D / tau)",
    minutes=1.0,
    table=table,
    claims=(
        Criterion("E max of P averages of tau steps, + D / tau", "2.718, 2.180, 1.715, 1.492, …, 1.147", _exact),
        Order(
            "waiting for neighbours costs less than waiting for all",
            ("all", "ring", "elastic"),
            lambda t: [
                t.where(what="barrier").mean("seconds a step", spec=spec)
                for spec in ("pasgd:tau=1", "dpsgd:graph=ring", "easgd")
            ],
        ),
    ),
    panels=(
        Lines(
            "tau",
            ("seconds a step", "closed form"),
            "tau, local steps",
            "seconds a step",
            "periodic averaging",
            log="x",
            by="link",
            of={"what": "tau"},
        ),
        Bars(
            "seconds a step",
            "seconds a step",
            "who waits for whom",
            label=lambda case: str(case["spec"]),
            of={"what": "barrier"},
        ),
    ),
    columns=("spec", "link", "seconds a step", "closed form"),
    differs="nothing; waiting among neighbours is left open in the talk and is simulated here",
)
