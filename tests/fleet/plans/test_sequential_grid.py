"""The authors' own results on real traces, by the production strategies and by the quick form; both against each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.fleet import TraceGrid, fit_slope, sequential_candidates, simulate
from anyk.fleet.plans.sequential_grid import Candidate
from anyk.strategies import strategy
from anyk.strategies.sequential import End

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

DATA = Path(os.environ.get("ANYK_DATA", Path(__file__).parents[4] / "shared" / "data"))
SLOPE = 1.1217530061354162
NAMES = {"NoCoding": "uncoded", "GC": "gc", "SRSGC": "sr-sgc", "MSGC": "m-sgc"}


def cases() -> list[dict[str, Any]]:
    file = DATA / "sequential-oracle.json"
    if not file.is_file():
        pytest.skip(f"no {file}; set ANYK_DATA to the folder that has it")
    cases: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
    return cases


def seconds(name: str) -> Any:
    return np.load(DATA / "lambda-traces" / name)["seconds"].astype(np.float64)


def spec_of(case: dict[str, Any]) -> str:
    keys = {"GC": ["stragglers"], "SRSGC": ["B", "W", "lambda"], "MSGC": ["B", "W", "lambda"]}.get(case["scheme"], [])
    values = [f"{key}={value}" for key, value in zip(keys, case["params"], strict=True)]
    if values:
        values.append(f"mu={case['mu']}")
    if case["scheme"] == "GC":
        values += ["strict=true", "end=cutoff"]
    return NAMES[case["scheme"]] + (":" if values else "") + ",".join(values)


@pytest.mark.parametrize("part", range(0, 32, 16))  # the quick form, which is held equal to them, meets all
def test_the_oracle_through_the_production_strategies(part: int) -> None:
    """Same waits, every round's seconds to 1e-6."""
    for case in cases()[part::32]:
        delays = seconds(case["trace"]) + (case["load"] - case["base_load"]) * SLOPE
        durations, waits = simulate(spec_of(case), delays, jobs=case["n_jobs"])
        assert len(durations) == case["total_rounds"], spec_of(case)
        assert np.abs(durations - case["durations"]).max() < 1e-6, spec_of(case)
        assert waits == case["num_waits"], spec_of(case)


def quick(grid: TraceGrid, case: dict[str, Any]) -> Candidate:
    if case["scheme"] == "NoCoding":
        return grid.uncoded()
    if case["scheme"] == "GC":
        return grid.gradient_coding(*case["params"], strict=True, end="cutoff")
    return (grid.selective if case["scheme"] == "SRSGC" else grid.multiplexed)(*case["params"])


def test_the_oracle_through_the_quick_form() -> None:
    for case in cases():
        grid = TraceGrid(
            seconds(case["trace"]), load=case["base_load"], slope=SLOPE, jobs=case["n_jobs"], mu=case["mu"]
        )
        candidate = quick(grid, case)
        assert (candidate.T, candidate.waits) == (case["T"], case["num_waits"]), candidate.spec
        assert candidate.load == pytest.approx(case["load"], rel=1e-12)
        assert candidate.seconds == pytest.approx(case["runtime"], abs=1e-6), candidate.spec


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 10_000),
    st.sampled_from([0.2, 1.0]),
    st.sampled_from([0.7, 20.0]),
    st.sampled_from(["cutoff", "decodable"]),
    st.sampled_from(["auto", "frc"]),
)
def test_the_quick_form_is_the_strategies(
    n: int, B: int, x: int, lam: int, seed: int, mu: float, slope: float, end: End, inner: str
) -> None:
    """On random delays, load-adjusted (some to nothing), every scheme: seconds and waits as the strategies' own."""
    jobs, load = 8, 0.1
    rng = np.random.default_rng(seed)
    table = 0.5 + rng.exponential(size=(40, n)) * rng.integers(0, 2, (40, n))
    grid = TraceGrid(table, load=load, slope=slope, jobs=jobs, mu=mu)
    W, lam = x * B + 1, min(lam, n)
    s = min(lam, n - 1)
    candidates = [grid.uncoded(), grid.repetition(s), grid.gradient_coding(s, end=end, inner=inner)]
    candidates.append(grid.multiplexed(B, W, lam, end=end, inner="auto" if lam == n else inner))
    if -(-B * lam // (W - 1 + B)) < n:
        candidates.append(grid.selective(B, W, lam, end=end, inner=inner))
    for candidate in candidates:
        scheme: Any = strategy(candidate.spec, workers=n)
        assert candidate.load == pytest.approx(getattr(scheme, "load", None) or scheme.code.load / n), candidate.spec
        durations, waits = simulate(scheme, np.maximum(1e-6, table + (candidate.load - load) * slope), jobs=jobs)
        assert candidate.waits == waits and candidate.seconds == pytest.approx(durations.sum(), abs=1e-9), (
            candidate.spec
        )


def test_a_burst_at_the_very_beginning() -> None:
    """Rounds before the first count for nothing: late in rounds 0 and 2 is a burst of 3, which B = 4 bears."""
    table = np.ones((14, 4))
    table[[0, 2], 0] = 4.0
    candidate = TraceGrid(table, load=0.0, slope=0.0, jobs=5).multiplexed(4, 5, 1)
    durations, waits = simulate("m-sgc:B=4,W=5,lambda=1", table, jobs=5)
    assert candidate.waits == waits == 0 and candidate.seconds == pytest.approx(durations.sum()) == pytest.approx(14.0)


def test_the_grid_is_the_authors_and_tune_takes_the_best() -> None:
    table = np.random.default_rng(3).exponential(size=(30, 16)) + 0.5
    grid = TraceGrid(table, load=0.0, slope=1.0, jobs=20)
    every = list(grid.grid(3, published=True))
    assert len({one.spec for one in every}) == len(every)
    kinds = {name: [one for one in every if one.spec.partition(":")[0] == name] for name in NAMES.values()}
    assert len(kinds["gc"]) == 16 and len(kinds["uncoded"]) == 1
    assert {one.spec.partition(":")[0] for one in every} == {*kinds, "frc"}
    assert not [one for one in every if "decodable" in one.spec or "inner" in one.spec]
    assert {one.T for one in every} == {0, 1, 2, 3}
    for published in (True, False):
        best = sequential_candidates(table, models=4, load=0.0, slope=1.0, jobs=20, published=published)
        assert [one.seconds for one in best] == sorted(one.seconds for one in best)
        every = list(grid.grid(3, published=published))
        for one in best:
            same = [other for other in every if other.spec.partition(":")[0] == one.spec.partition(":")[0]]
            assert one.seconds == min(other.seconds for other in same)
    assert len({one.spec for one in every}) == len(every) and best[0].spec.startswith("frc")
    loads = {one.load for one in every if one.spec.startswith("frc")}  # each number of groups that some s gives
    assert loads == {-(-16 // (16 // (s + 1))) / 16 for s in range(1, 16)}
    assert (
        sequential_candidates(np.ones((5, 4)), models=2, load=0.25, slope=9.0)[0].spec == "uncoded"
    )  # no stragglers: no coding


def test_what_cannot_be_planned() -> None:
    with pytest.raises(BadInput, match="8 jobs of 'm-sgc:B=1,W=2,lambda=1' take 9 rounds, the trace has 8"):
        TraceGrid(np.ones((8, 3)), load=0, slope=0, jobs=8).multiplexed(1, 2, 1)
    with pytest.raises(BadInput, match="jobs must be 1 to 8, the rounds of the trace, got 9"):
        TraceGrid(np.ones((8, 3)), load=0, slope=0, jobs=9)
    with pytest.raises(BadInput, match="the slope of time against load needs traces at two loads or more"):
        fit_slope([(0.5, np.ones((2, 2))), (0.5, np.ones((2, 2)))])
    with pytest.raises(BadInput, match="4 jobs of 'gc:stragglers=1' take 4 rounds, at least one; the delays have 3"):
        simulate("gc:stragglers=1", np.ones((3, 4)), jobs=4)
