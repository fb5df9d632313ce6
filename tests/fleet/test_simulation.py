"""Pace and load, in closed form and simulated: wait rules against the simulator, loads against finished partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.clusters import Simulated
from anyk.codes import NestedCode
from anyk.delays import TableDelays, parse
from anyk.fleet import computed_load, pace, simulated_pace
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.log.log_writer import LogWriter

N = 8
CLOSED = [
    *("decodable", "all", "3", "50%", "99%", "0.5s", "3s", "4|0.2s", "4&0.2s", "50%|1s", "3&(0.2s|6)", "2s&5|7"),
    *("0.1s|0.4s", "0.1s&0.4s", "decodable&1s", "30%&0.3s"),
]
LAWS = ["exp:mean=1", "bimodal:fast=0.3,slow=1.5,probability=0.3", "hetero:means=0.3/1/2"]


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("wait", CLOSED)
def test_a_closed_form_is_what_the_simulator_finds(wait: str, law: str) -> None:
    strategy, model = anyk.strategy(f"uncoded:wait={wait}", workers=N), parse(law)
    expected = pace(strategy, model).seconds
    assert expected is not None
    simulated = simulated_pace(strategy, model, updates=600)
    assert abs(simulated.seconds - expected) <= 5 * simulated.error + 1e-5 + 1e-3 * expected


def test_golden_values() -> None:
    """8 exponential workers: ``integral_0^s 1 - (1 - e^-t)^8 dt``, all being in, is ``sum_j (1 - e^-s)^j / j``."""
    from math import exp

    law = parse("exp:mean=1")
    before = sum((1.0 - exp(-0.5)) ** j / j for j in range(1, 9))
    assert pace(anyk.strategy("uncoded:wait=0.5s", workers=8), law).seconds == pytest.approx(before + exp(-4.0) / 8)
    assert pace(anyk.strategy("uncoded:wait=0.5s|1", workers=8), law).seconds == pytest.approx(1 / 8)
    assert pace(anyk.strategy("uncoded:wait=50%", workers=8), law).seconds == law.order_statistic(7, 8)


@pytest.mark.parametrize(
    ("spec", "law"),
    [
        ("uncoded:wait=3mad", "exp:mean=1"),
        ("uncoded:wait=5&3mad", "exp:mean=1"),
        ("uncoded:wait=4|0.2s,cancel=discard", "exp:mean=1"),
        ("k-sync:k=3", "exp:mean=1,uninterruptible=true"),
        ("frc:load=2,wait=0.5s", "exp:mean=1"),
        ("frc:load=2", "exp:mean=1"),
        ("uncoded:wait=0.5s", TableDelays(np.array([[0.1, 0.4, 0.9, 1.2, 0.2, 0.3, 0.8, 0.7]]), by="round")),
    ],
)
def test_what_has_no_closed_form_is_left_to_the_simulator(spec: str, law: Any) -> None:
    expected = pace(anyk.strategy(spec, workers=N), parse(law) if isinstance(law, str) else law)
    assert expected.seconds is None and "simulate" in expected.why


@pytest.mark.slow
def test_the_command_says_which_it_is(tmp_path: Any) -> None:
    def shown(spec: str) -> str:
        words = ["strategies", "show", spec, "--workers", "8", "--json", str(tmp_path / "shown.json")]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        return next(line for line in done.output.splitlines() if line.startswith("an update"))

    assert shown("uncoded:wait=0.5s") == (
        "an update with 8 workers and exp:mean=1: 0.50225 s, in closed form  (integral of the chance that "
        "wait=0.5s|decodable is not met yet)"
    )
    line = shown("uncoded:wait=3mad")
    assert " s, simulated  (no closed form for wait=3mad|decodable; simulate)" in line
    assert '"how": "simulated"' in (tmp_path / "shown.json").read_text()
    assert "not known  (tau changes with the loss)" in shown("adacomm:tau=4,interval=10")


@pytest.mark.parametrize("kind", ["binary", "cyclic"])
def test_nested_codes_compute_until_the_first_level_is_ready(kind: Any) -> None:
    """One oracle for both: partitions finished at ``min_u tau_u``, the earliest time of any of the fixed codes."""
    n, rounds = 8, 20
    pace = 0.5 + np.random.default_rng(3).exponential(size=(rounds, n))  # seconds a partition
    code = NestedCode(n, stragglers=3, kind=kind)
    ends = np.min([level.finish_times(pace * level.load) for level in code.levels], axis=0)
    done = np.minimum(code.load, np.floor(ends[:, None] / pace + 1e-9))
    law = TableDelays(pace, by="round", per="load")
    load = computed_load(anyk.strategy(code.spec, workers=n), law, updates=rounds)
    assert load == pytest.approx(done.sum() / (rounds * n * n))
    assert 1 / n <= load < code.load / n


def test_a_codes_load_is_computed_if_nobody_is_cut_off() -> None:
    law = parse("constant:1,per=load")
    for spec in ("uncoded", "frc:load=2", "m-sgc:B=1,W=2,lambda=3,jobs=60"):
        strategy: Any = anyk.strategy(spec, workers=8)
        load = getattr(strategy, "load", None) or strategy.code.load / 8
        # of m-sgc the first round and the one after the last are without a part of the pieces
        assert computed_load(strategy, law, updates=60) == pytest.approx(load, rel=0.02), spec
    slow = parse("bimodal:fast=1,slow=9,probability=0.3,per=load")
    assert 1 / 8 < computed_load(anyk.strategy("frc:load=4", workers=8), slow, updates=60) < 0.5
    with pytest.raises(BadInput, match="workers of 'pasgd:tau=3' take local steps, which are no share of the data"):
        computed_load(anyk.strategy("pasgd:tau=3", workers=8), law)


def test_the_log_says_what_was_finished() -> None:
    """Worker 0 is fast and finishes four partitions before worker 7 has one; level 0 is never ready."""
    pace = np.array([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 99.0]])
    strategy = anyk.strategy("nested:stragglers=1", workers=8)
    log = LogWriter()
    driver = Driver(strategy, Simulated(8, delays=TableDelays(pace, by="round", per="load")), log=log, steps=1)
    with session(driver):
        driver.run()
    rows = log.rows("SELECT worker, done, ending FROM chunks WHERE version = 0 ORDER BY worker")
    assert [done for _, done, _ in rows] == [2, 2, 2, 2, 2, 2, 2, 0]
    assert [worker for worker, _, ending in rows if ending == "counted"] == [0, 2, 4, 6]
