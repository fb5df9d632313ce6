"""Codes side by side: random ones averaged over draws."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet import compare_codes
from anyk.fleet.theory.code_curves import draws_of

pytestmark = pytest.mark.in_process


def test_the_mean_over_draws_is_the_law_of_the_code() -> None:
    """One-step decoding of BGC has mean error m (m - d) / (r d) over draws (Charles et al. 2017); one draw is off it."""
    heard: list[str] = []
    terms = {"workers": 40, "decoder": "one-step", "most": 1, "sets": 1}
    (many,) = compare_codes(["bgc:load=10"], draws=100, tell=heard.append, **terms)
    (one,) = compare_codes(["bgc:load=10,seed=3"], **terms)
    law = np.array([(40 - 10) / (r * 10) for r in (40, 39)])
    error = 2 * many.random * many.spread  # of the squares
    assert many.draws == 100 and np.all(np.abs(many.random**2 - law) < 4 * error) and np.all(error < 0.03 * law)
    assert abs(one.random[0] ** 2 - law[0]) > 4 * error[0]
    assert heard == ["bgc:load=10"] * 2
    np.testing.assert_allclose(many.expected**2, law, atol=4 * error.max())  # the closed form of each draw, averaged


RANDOM = ["bgc", "rbgc", "sbc", "expander", "biregular", "graph", "bcc", "comm-efficient", "progress:placement=random"]


@pytest.mark.parametrize("spec", [*RANDOM, "uncoded", "frc", "mds", "nested:kind=binary", "progress", "hetero"])
def test_a_code_is_drawn_again_if_it_is_random(spec: str) -> None:
    """Every draw is what its seed gives; codes without randomness, or whose seed does nothing, have one."""
    drawn = draws_of(spec, workers=12, draws=3)
    assert len(drawn) == (3 if spec in RANDOM else 1)
    for seed, code in enumerate(drawn[1:], start=1):
        alone = anyk.code(f"{spec}{',' if ':' in spec else ':'}seed={seed}", workers=12)
        assert code.spec == alone.spec and (code.encoding != alone.encoding).nnz == 0


def test_draws_from_the_command_line() -> None:
    words = ["codes", "compare", "bgc:load=2", "frc:load=2", "--workers", "6", "--stragglers", "2", "--draws", "12"]
    result = CliRunner(env={"COLUMNS": ""}).invoke(main, [*words, "--sets", "5"])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[1:3] for row in rows if row[0] in ("bgc:load=2", "frc:load=2")] == [["12", "draws"], ["1", "draw"]]
    assert [row[:5] for row in rows if row[0] == "chosen"] == [
        ["chosen", "to", "hurt", "10", "draws"], ["chosen", "to", "hurt", "1", "draw"],
    ]  # fmt: skip
    report = json.loads(CliRunner().invoke(main, [*words, "--json", "-"]).stdout)
    assert [one["draws"] for one in report] == [12, 1] and report[0]["spread"][2] > 0
    with pytest.raises(BadInput, match="draws must be a whole number of at least 1, got 0"):
        compare_codes(["bgc"], workers=6, draws=0)
