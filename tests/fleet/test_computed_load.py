"""The load that workers really compute: against the order of finished partitions, and between what codes promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.clusters import Simulated
from anyk.codes import NestedCode
from anyk.delays import Table, parse
from anyk.errors import BadInput
from anyk.fleet import computed_load
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.log.runlog import RunLog


@pytest.mark.parametrize("kind", ["binary", "cyclic"])
def test_nested_codes_compute_until_the_first_level_is_ready(kind: Any) -> None:
    """One oracle for both: partitions finished at ``min_u tau_u``, the earliest time of any of the fixed codes."""
    n, rounds = 8, 20
    pace = 0.5 + np.random.default_rng(3).exponential(size=(rounds, n))  # seconds a partition
    code = NestedCode(n, stragglers=3, kind=kind)
    ends = np.min([level.finish_times(pace * level.load) for level in code.levels], axis=0)
    done = np.minimum(code.load, np.floor(ends[:, None] / pace + 1e-9))
    law = Table(pace, by="round", per="load")
    found = computed_load(anyk.strategy(code.spec, workers=n), law, updates=rounds)
    assert found == pytest.approx(done.sum() / (rounds * n * n))
    assert 1 / n <= found < code.load / n


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
    log = RunLog()
    driver = Driver(strategy, Simulated(8, delays=Table(pace, by="round", per="load")), log=log, steps=1)
    with session(driver):
        driver.run()
    rows = log.rows("SELECT worker, done, ending FROM chunks WHERE version = 0 ORDER BY worker")
    assert [done for _, done, _ in rows] == [2, 2, 2, 2, 2, 2, 2, 0]
    assert [worker for worker, _, ending in rows if ending == "counted"] == [0, 2, 4, 6]
