"""ErasureHead's expected times of an iteration and of a whole run: printed, corrected and simulated."""

import numpy as np

from anyk import code
from anyk.base import keyed_generator
from anyk.delays import ShiftedExponential
from anyk.fleet.theory.erasurehead import missing, seconds_bound, step_seconds
from anyk.optimizers import GD
from anyk.problems import LeastSquares
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases, crossing
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Lines

N, RATE = 30, 1.0 / 3.0
LOAD, REPLIES = 5, 20  # of whole runs, at a rate of 1 / LOAD as Theorem 3 has it
FEW, EXCESS = 2, 0.15  # load of the runs that are compared over n, and the share of the first excess to reach
SMOOTHNESS, CONVEXITY = 81.0 / 40.0, 9.0 / 40.0  # curvatures of the mean loss
STRATEGIES = {
    "uncoded": "uncoded",
    "exact": f"frc:load={LOAD}",
    "approximate": f"agc:load={LOAD},wait={REPLIES},scaling=marginal",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    c, replies, n = case["load"], case["replies"], case["partitions"]
    law = ShiftedExponential(shift=1.0 / n, mean=1.0 / (RATE * n))  # of one partition
    times = c * np.stack([law.draws(seed, i, 0, lab.size(40_000, 4_000)) for i in range(N)], axis=1)
    done = code(f"frc:load={c},partitions={n}", workers=N).finish_times(times)
    if replies:
        done = np.minimum(done, np.sort(times, axis=1)[:, replies - 1])
    corrected = step_seconds(N, c, replies or None, rate=RATE, partitions=n)
    numbers = {"simulated": float(done.mean()), "corrected": corrected}
    if n == N:
        numbers["printed"] = corrected if replies else step_seconds(N, c, rate=RATE, printed=True)
    return numbers


def lacking(lab: Lab, case: Case, seed: int) -> Results:
    """Measure, for Lemma 2, the share of tasks that decoded sums lack, and of pairs of groups."""
    c, n = case["load"], case["partitions"]
    built, lacks = code(f"frc:load={c},partitions={n}", workers=N), []
    for draw in range(lab.size(4_000, 400)):
        replying = keyed_generator(seed, "gallery-lacking", c, n, draw).permutation(N)[:REPLIES]
        lacks.append(1.0 - (built.decode(replying).weights @ built.encoding)[::c])
    absent = np.array(lacks)
    either = 1.0 - (1.0 - absent[:, 1:]) * (1.0 - absent[:, :-1])
    p, q = missing(N, c, REPLIES, partitions=n)
    return {"lacking": float(absent.mean()), "p": p, "either": float(either.mean()), "q": q}


def least_squares(workers: int) -> LeastSquares:
    """Return least squares with as many partitions as workers; the slowest direction has the error."""
    random = keyed_generator(0, "gallery-theorem-3")
    X = np.tile(np.linalg.qr(random.standard_normal((40, 3)))[0] * [9.0, 6.0, 3.0], (workers, 1))
    y = X @ [0.0, 0.0, 5.0] + 0.1 * np.repeat(random.standard_normal(workers), 40)
    return LeastSquares(X, y, l2=0.0)


def speed_up(lab: Lab, case: Case, seed: int) -> Results:
    """Measure how many times sooner AGC, on half of the replies, has the same small excess as uncoded."""
    workers = case["workers"]
    problem = least_squares(workers)
    best = problem.loss(np.linalg.lstsq(problem.X, problem.y, rcond=None)[0])
    excess = EXCESS * (problem.loss(problem.initial()) - best)
    seconds = []
    for spec, scale in (
        ("uncoded", 1.0),
        (f"agc:load={FEW},wait={workers // 2},scaling=marginal", 1.0 - missing(workers, FEW, workers // 2).one),
    ):
        trained = lab.train(
            problem,
            spec,
            workers=workers,
            delays=ShiftedExponential(shift=1.0 / workers, mean=FEW / workers, per="load"),
            seed=seed,
            optimizer=GD(lr=scale / SMOOTHNESS),
            steps=60,
            evaluate="every=1",
        )
        times, losses = trained["curves"]["loss"]
        seconds.append(crossing(times, losses - best, excess, better=np.less_equal))
    return {"sooner": seconds[0] / seconds[1], "sooner / log n": seconds[0] / seconds[1] / float(np.log(workers))}


def run(lab: Lab, case: Case, seed: int) -> Results:
    """Measure virtual seconds of training to the least excess in Theorem 3, and compute its bound."""
    problem = least_squares(N)
    X, y, beta, mu = problem.X, problem.y, SMOOTHNESS, CONVEXITY
    start, best = problem.initial(), problem.loss(np.linalg.lstsq(X, y, rcond=None)[0])
    first = problem.loss(start) - best
    slopes = [X[i : i + 40].T @ (X[i : i + 40] @ start - y[i : i + 40]) / 40 for i in range(0, len(X), 40)]
    sigma, share = max(float(np.linalg.norm(slope)) for slope in slopes), REPLIES / N
    excess = 3 * LOAD * np.exp(-LOAD * share) * sigma**2 / (mu * N)
    scale = 1.0 - missing(N, LOAD, REPLIES).one if case["total"] == "approximate" else 1.0
    law = ShiftedExponential(shift=1.0 / N, mean=LOAD / N, per="load")
    trained = lab.train(
        problem,
        STRATEGIES[case["total"]],
        workers=N,
        delays=law,
        seed=seed,
        optimizer=GD(lr=scale / beta),
        steps=60,
        evaluate="every=1",
    )
    times, losses = trained["curves"]["loss"]
    reached = crossing(times, losses - best, excess, better=np.less_equal)
    bound = seconds_bound(
        scheme=case["total"],
        excess=excess,
        first=first,
        smoothness=beta,
        convexity=mu,
        workers=N,
        load=LOAD,
        share=share,
    )
    return {"seconds": reached, "bound": bound, "excess": excess / first}


def table(lab: Lab) -> Table:
    exact = cases(scheme=["exact"], partitions=[N], load=[1, 2, 3, 5, 6, 10], replies=[0])
    agc = cases(scheme=["AGC"], partitions=[N], load=[1, 2, 3, 5], replies=[11])
    other = [
        {"scheme": scheme, "partitions": n, "load": c, "replies": replies}
        for n, c in ((60, 4), (60, 10), (120, 12), (10, 1), (10, 2))
        for scheme, replies in (("exact", 0), ("AGC", 11))
    ]
    rows = lab.measure(measure, [*exact, *agc, *other]).rows
    sets = [{"partitions": n, "load": c, "set of": REPLIES} for n, c in ((60, 4), (60, 6), (120, 8), (10, 1))]
    totals = [{"total": scheme, "load": LOAD} for scheme in STRATEGIES]
    scales = cases(workers=[12, 48] if lab.quick else [12, 48, 192, 768])
    measured = lab.measure(lacking, sets).rows + lab.measure(run, totals).rows
    return Table(rows + measured + lab.measure(speed_up, scales).rows)


def _off(t: Table, name: str) -> tuple[float, float]:
    """Return the relative errors of the formulas for the exact code, least and largest over loads."""
    errors = [row.mean(name) / row.mean("simulated") - 1.0 for row in t.where(scheme="exact", partitions=N)]
    return min(errors), max(errors)


def _uncoded(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="exact", partitions=N, load=1)
    formula, simulated = row.mean("corrected"), row.mean("simulated")
    return abs(formula / simulated - 1.0) < 0.01, f"{formula:.4f}, simulated {simulated:.4f}"


def _printed(t: Table) -> tuple[bool, str]:
    low, high = _off(t, "printed")
    return max(-low, high) < 0.01, f"off by {100 * low:.0f} to {100 * high:.0f} %"


def _corrected(t: Table) -> tuple[bool, str]:
    worst = max(map(abs, _off(t, "corrected")))
    return worst < 0.01, f"off by {100 * worst:.1f} % at worst"


def _approximate(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="AGC", partitions=N, load=3)
    bounded = all(row.mean("simulated") <= 1.005 * row.mean("corrected") for row in t.where(scheme="AGC"))
    return bounded, f"load 3: bound {row.mean('corrected'):.4f}, simulated {row.mean('simulated'):.4f}"


def _other_sizes(t: Table) -> tuple[bool, str]:
    rows = [row for row in t.where(scheme="exact") if row.case["partitions"] != N]
    worst = max(abs(row.mean("corrected") / row.mean("simulated") - 1.0) for row in rows)
    return worst < 0.01, f"off by {100 * worst:.1f} % at worst, for 10 to 120 tasks on {N} workers (test: 1 %)"


def _chances(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "p" in row.numbers]
    worst = max(abs(row.mean(a) - row.mean(b)) for row in rows for a, b in (("lacking", "p"), ("either", "q")))
    return worst < 0.01, f"off by {worst:.4f} at worst (test: below 0.01)"


def _theorem_3(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="exact", partitions=N, load=3)
    printed, corrected = (
        seconds_bound(
            scheme="exact", excess=0.5, first=1.0, smoothness=2.0, convexity=1.0, workers=N, load=3, printed=wrong
        )
        for wrong in (True, False)
    )
    return row.mean("simulated") <= printed, (
        f"simulated {row.mean('simulated'):.4f} s an iteration, bound {printed:.4f} (with 2c: {corrected:.4f})"
    )


def _total(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "total" in row.case]
    in_words = "; ".join(f"{row.case['total']} {row.mean('seconds'):.2f} s of {row.mean('bound'):.2f}" for row in rows)
    return all(row.mean("seconds") <= row.mean("bound") for row in rows), in_words


def _log_n(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "sooner" in row.numbers]
    shares = [row.mean("sooner / log n") for row in rows]
    grows = [row.mean("sooner") for row in rows]
    in_words = "; ".join(
        f"{row.case['workers']} workers {row.mean('sooner'):.2f} times, {row.mean('sooner / log n'):.2f} log n"
        for row in rows
    )
    met = grows == sorted(grows) and grows[-1] > 1.5 and max(shares) < 1.5 * min(shares)
    return met, f"{in_words} (test: grows to above 1.5 times, the factor of log n within 1.5 times)"


ITEM = Item(
    name="erasurehead-theory",
    title="Expected seconds of an iteration against the load, 30 workers, shifted exponential per partition",
    source="Wang, Charles and Papailiopoulos 2019, Lemmas 2 and 8 and Theorem 3",
    minutes=1.0,
    table=table,
    claims=(
        Criterion("Lemma 8, uncoded: 1/n + H_n / (lambda n)", "exact", _uncoded),
        Criterion("Lemma 8, exact codes, printed: c/n + (H_n - H_c) / (lambda n)", "exact", _printed),
        Criterion("Lemma 8, exact codes, with H_(n/c) in place of H_n - H_c", "(corrected here)", _corrected),
        Criterion("Lemma 8, AGC: at most c/n + c (H_k - H_(k-r)) / (lambda n)", "upper bound", _approximate),
        Criterion("exact codes of n tasks on k workers: c/n + H_(n/c) / (lambda k)", "(corrected here)", _other_sizes),
        Criterion("Lemma 2, n tasks on k workers: p = C(k-l, r) / C(k, r), and q", "exact", _chances),
        Criterion("Theorem 3, exact codes, printed: (c log(n/c) + c + 1) / n", "upper bound", _theorem_3),
        Criterion("Theorem 3, total time to the least excess (with 2c for exact codes)", "upper bound", _total),
        Criterion(
            f"AGC is sooner than uncoded by a factor that grows as log n, at {100 * EXCESS:g} % of the first excess",
            "almost log n",
            _log_n,
        ),
    ),
    panels=(
        Lines(
            over="load",
            numbers=("simulated", "corrected", "printed"),
            x="load c",
            y="seconds an iteration",
            title="exact codes",
            of={"scheme": "exact", "partitions": N},
        ),
        Lines(
            over="load",
            numbers=("simulated", "corrected"),
            x="load c",
            y="seconds an iteration",
            title="AGC, 11 of 30 replies",
            of={"scheme": "AGC", "partitions": N},
        ),
        Bars("seconds", "virtual seconds", "total time and Theorem 3's bound", mark="bound"),
        Lines(
            over="workers",
            numbers=("sooner",),
            x="workers n",
            y="times sooner than uncoded",
            title=f"AGC, load {FEW}, half of the replies, at equal excess",
            log="x",
        ),
    ),
    columns=(
        "scheme",
        "partitions",
        "load",
        "simulated",
        "corrected",
        "printed",
        "set of",
        "lacking",
        "p",
        "either",
        "q",
        "total",
        "seconds",
        "bound",
        "workers",
        "sooner",
        "sooner / log n",
    ),
    differs="formulas are compared with draws of the paper's own time model; for n tasks on k workers the times of "
    "exact codes are derived here; total times are of least squares whose constants are known",
)
