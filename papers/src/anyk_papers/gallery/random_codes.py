"""Bernoulli and stochastic block codes: error of approximate decoding over draws of the code."""

import numpy as np

from anyk import code
from anyk.base import keyed_generator
from anyk.codes import Code
from anyk.fleet import chosen_stragglers
from anyk.fleet.theory.adversaries import Knowledge
from anyk_papers.gallery.bibd_adversarial import decoded_error
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Lines

K = 100
CODES = {
    "FRC": "frc:load={load}",
    "BGC": "bgc:load={load},seed={seed}",
    "rBGC": "rbgc:load={load},seed={seed}",
    "SBC": "sbc:load={load},block=10,inside={inside},seed={seed}",
    "expander": "expander:load={load},seed={seed}",
}
SEES = 1.5  # times the harm of random stragglers, from which on an adversary is one that sees something
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the error per partition, mean over random codes (for FRC, over random stragglers)."""
    lost = round(case["share"] * K)
    errors: dict[str, list[float]] = {"one-step": [], "least-squares": []}
    for draw in range(lab.size(100, 10)):
        spec = CODES[case["code"]].format(
            load=case["load"], seed=1000 * seed + draw, inside=0.8 if case["load"] == 10 else 0.4
        )
        random_code = code(spec, workers=K)
        gone = keyed_generator(seed, "gallery-random-codes", draw, lost).permutation(K)[:lost]
        for decoder, squares in errors.items():
            squares.append(decoded_error(random_code, gone, decoder))
    return {decoder: float(np.mean(squares)) for decoder, squares in errors.items()}


def attacked(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the error per partition when an adversary, with some knowledge of the code, chooses 15 of 60 workers."""
    random_code = code(CODES[case["code"]].format(load=5, seed=seed, inside=0.4), workers=60)
    return {"attacked": attack(random_code, 15, case["knows"])}


def attack(attacked_code: Code, stragglers: int, knows: Knowledge) -> float:
    """Return the error per partition that an adversary causes; without knowledge, the mean of 10 random choices."""
    draws = range(10 if knows == "nothing" else 1)
    straggler_sets = [chosen_stragglers(attacked_code, stragglers, knows=knows, seed=draw)[0] for draw in draws]
    return float(np.mean([decoded_error(attacked_code, np.array(lost)) for lost in straggler_sets]))


def table(lab: Lab) -> Table:
    shares = (0.1, 0.3, 0.6) if lab.quick else SHARES
    random_cases = cases(code=list(CODES), load=[5, 10], share=shares)
    knowing = cases(code=["FRC", "BGC", "SBC", "expander"], knows=["code", "overlaps", "nothing"])
    return Table(lab.measure(measure, random_cases).rows + lab.measure(attacked, knowing).rows)


def _formula(t: Table) -> tuple[bool, str]:
    """Compare one-step decoding of BGC with (m - load) / (replies load) per partition."""
    pairs = [
        (row.mean("one-step"), (K - row.case["load"]) / (K * (1 - row.case["share"]) * row.case["load"]))
        for row in t.where(code="BGC")
        if "one-step" in row.numbers
    ]
    worst = max(abs(value / formula - 1.0) for value, formula in pairs)
    formula = (K - 10) / (70 * 10)
    error = t.mean("one-step", code="BGC", load=10, share=0.3)
    return worst < 0.1, f"{error:.4f} for {formula:.4f} at 30 %; off by {100 * worst:.0f} %"


def _knowing(t: Table) -> tuple[bool, str]:
    """Compare the harm of an adversary that sees overlaps with that of random stragglers, for SBC and FRC."""
    pairs = {
        name: [t.mean("attacked", code=name, knows=knows) for knows in ("code", "overlaps", "nothing")]
        for name in ("FRC", "SBC")
    }
    in_words = "; ".join(f"{name} {' / '.join(f'{value:.3f}' for value in values)}" for name, values in pairs.items())
    sees = all(values[1] > SEES * values[2] and values[0] >= values[1] for values in pairs.values())
    return sees and pairs["SBC"][1] < pairs["FRC"][1], (
        f"code / overlaps / nothing: {in_words} (test: seeing overlaps does more than {SEES} times the harm of seeing "
        "nothing, and knowing the code no less)"
    )


ITEM = Item(
    name="random-codes",
    title="Error per partition against the share of stragglers, 100 workers, over draws of the code",
    source="Charles, Papailiopoulos and Ellenberg 2017 (BGC); Charles and Papailiopoulos 2018 (SBC)",
    minutes=3.0,
    table=table,
    claims=(
        Criterion("one-step error of a Bernoulli code: (k - d) / (r d)", "formula", _formula),
        Order(
            "optimal decoding at 30 % lost, load 10",
            ("BGC", "SBC"),
            lambda t: [t.mean("least-squares", code=c, load=10, share=0.3) for c in ("BGC", "SBC")],
        ),
        Order(
            "one-step decoding at 30 % lost, load 10",
            ("BGC", "SBC", "FRC"),
            lambda t: [t.mean("one-step", code=c, load=10, share=0.3) for c in ("BGC", "SBC", "FRC")],
        ),
        Criterion("an adversary that must find communities hurts SBC less than FRC", "harder to attack", _knowing),
    ),
    panels=(
        *(
            Lines(
                over="share",
                numbers=(decoder,),
                x="share of stragglers",
                y="error per partition",
                title=f"{decoder} decoding, load 10",
                by="code",
                log="y",
                of={"load": 10},
            )
            for decoder in ("one-step", "least-squares")
        ),
        Bars(
            "attacked",
            "error per partition",
            "15 of 60 chosen, by what is known (code: at least)",
            label=lambda case: f"{case['code']}, {case['knows']}",
        ),
    ),
    columns=("code", "load", "share", "one-step", "least-squares", "knows", "attacked"),
    differs="the papers print figures, no numbers; stragglers chosen by who knows the code are found by "
    "a search, and those by who knows the overlaps by growing communities: both are lower bounds of the worst",
)
