"""How many chosen stragglers it takes to do harm: against all sets, closed forms and the law of random ones."""

from __future__ import annotations

import json
from itertools import combinations
from math import comb
from typing import Any

import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.fleet import adversarial_threshold

pytestmark = pytest.mark.in_process

LARGE = anyk.code("bgc:load=4", workers=24)


def reached(code: Any, lost: tuple[int, ...], decoder: str = "own") -> float:
    remaining = [i for i in range(code.workers) if i not in lost]
    return float(code.decode(remaining, decoder=anyk.codes.decoders.method(decoder)).residual ** 2)


@pytest.mark.parametrize("decoder", ["own", "one-step"])
def test_no_smaller_set_does_where_the_number_is_exact(decoder: str) -> None:
    """One-step decoding may be better off with fewer replies, and a random code wrong with all of them."""
    code = anyk.code("bgc:load=2,seed=1", workers=7)
    sets = [lost for f in range(7) for lost in combinations(range(7), f)]
    for error in (0.02, 0.15, 0.3, 0.6, 1.0):
        oracle = next((len(lost) for lost in sets if reached(code, lost, decoder) >= error - 1e-12), None)
        threshold = adversarial_threshold(code, error, decoder=decoder)
        assert threshold.stragglers == oracle or (threshold.found == "search" and threshold.stragglers > oracle)
        if threshold.stragglers is not None:
            assert (
                threshold.error == pytest.approx(reached(code, threshold.lost, decoder))
                and len(threshold.lost) == threshold.stragglers
            )
    assert decoder == "one-step" or threshold.found == "exact"


@pytest.mark.slow
def test_the_answer_of_a_search_is_an_upper_bound_and_says_so() -> None:
    threshold = adversarial_threshold(LARGE, 0.3)
    assert threshold.found == "search" and reached(LARGE, threshold.lost) >= 0.3
    assert comb(24, threshold.stragglers - 1) > 200_000  # not all sets of fewer can have been compared
    assert threshold.stragglers <= adversarial_threshold(LARGE, 0.3, knows="overlaps").stragglers


def test_who_knows_nothing_needs_the_median() -> None:
    """Of 12 workers in groups of 3, more than half of all sets of f silence a group from f = 7 on (all were counted)."""
    code = anyk.code("frc:load=3", workers=12)
    groups = [set(range(g, g + 3)) for g in range(0, 12, 3)]
    share = {f: sum(any(g <= set(lost) for g in groups) for lost in combinations(range(12), f)) / comb(12, f)
             for f in range(5, 10)}  # fmt: skip
    half = min(f for f, fraction in share.items() if fraction >= 0.5)
    assert share[half - 1] < 0.41 and share[half] > 0.59  # 3 standard deviations of 301 orders
    threshold = adversarial_threshold(code, 0.25, knows="nothing", sets=301)
    assert (threshold.stragglers, threshold.found) == (half, "random")
    spread_out = adversarial_threshold(anyk.code("uncoded", workers=10), 0.35, knows="nothing", sets=3)
    assert spread_out.stragglers == 4 and spread_out.error == pytest.approx(0.4)  # each loses a tenth, whoever it is
    assert adversarial_threshold(code, 0.25).stragglers == 3


def test_thresholds_from_the_command_line() -> None:
    def run(*words: str) -> Any:
        return CliRunner(env={"COLUMNS": ""}).invoke(main, ["codes", "threshold", *words])

    result = run("frc:load=3", "bgc:load=3", "frc:load=6", "--workers", "6", "--error", "0.5", "--sets", "11")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if ":load" in line}
    assert rows["frc:load=3"][:3] == ["3", "≤", "3"] and rows["frc:load=6"][:2] == ["none", "do"]
    assert "median over 11 random orders" in result.output and "≤: found by a search; fewer may do" in result.output
    (one,) = json.loads(run("frc:load=3", "--workers", "6", "--error", "0.5", "--knows", "code", "--json", "-").stdout)
    assert (one["stragglers"], one["found"], one["lost"], round(one["error_reached"], 9)) == (
        3,
        "exact",
        [0, 1, 2],
        0.5,
    )
    for words, sentence in (
        (("--error", "2"), "above 0 and of at most 1, got 2"),
        (("--sets", "0"), "sets must be a whole number of at least 1"),
    ):
        assert sentence in run("bibd", "--workers", "7", *words).output
