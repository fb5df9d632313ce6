"""What is predicted for every wait rule is what the simulator finds, and says whether it is a closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.delays import Table, parse
from anyk.fleet import pace, simulated_pace

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
    found = simulated_pace(strategy, model, updates=600)
    assert abs(found.seconds - expected) <= 5 * found.error + 1e-5 + 1e-3 * expected


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
        ("uncoded:wait=0.5s", Table(np.array([[0.1, 0.4, 0.9, 1.2, 0.2, 0.3, 0.8, 0.7]]), by="round")),
    ],
)
def test_what_has_no_closed_form_is_left_to_the_simulator(spec: str, law: Any) -> None:
    expected = pace(anyk.strategy(spec, workers=N), parse(law) if isinstance(law, str) else law)
    assert expected.seconds is None and "simulate" in expected.why


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
