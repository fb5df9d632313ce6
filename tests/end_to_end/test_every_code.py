"""Every code there is trains on both clusters, to the same bits, and its log replays."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.codes import registry

pytestmark = pytest.mark.slow

SPECS = [
    *(entry.name for entry in registry if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"),
    *("agc", "nested:kind=cyclic", "progress:placement=random", "draco:kind=cyclic", "tree:children=2,stragglers=0"),
    *("bgc:decoder=one-step", "biregular:decoder=algorithmic", "expander:wait=30%"),
]


def fleet(spec: str) -> int:
    return 7 if spec.startswith("bibd") else 6


@pytest.mark.parametrize("spec", SPECS)
def test_a_code_trains_on_both_clusters_to_the_same_bits(spec: str) -> None:
    n = fleet(spec)
    problem = anyk.problems.from_data("synthetic:rows=120,features=6")
    runs = [
        anyk.train(problem, spec, anyk.cluster(name, workers=n, delays="hetero:means=0.02/0.04/0.06", seed=5), steps=3)
        for name in ("simulated", "processes")
    ]
    simulated, real = runs
    used = "SELECT step, worker, weight FROM chunks WHERE step IS NOT NULL ORDER BY step, worker, chunk"
    if simulated.log.rows(used) == real.log.rows(used):  # nobody overtook anybody within the time of computing
        assert simulated.model.tobytes() == real.model.tobytes()
    for run in runs:
        assert str(anyk.replay(run, problem=problem)).endswith("the same decisions and the same bits of model")
        ledger = dict(run.ledger)
        assert ledger["dispatched"] == sum(
            count for name, count in ledger.items() if name not in ("dispatched", "unusable")
        )
        receipt = run.receipt(2)
        assert abs(np.sqrt(np.mean((receipt.weights - 1.0) ** 2)) - receipt.residual) < 1e-6
        run.close()
    if not getattr(anyk.strategy(spec, workers=n).code, "approximate", False) and "wait" not in spec and spec != "agc":
        plain = anyk.train(problem, "uncoded", anyk.clusters.Simulated(n), steps=3)
        assert np.allclose(real.model, plain.model, rtol=1e-8, atol=1e-12)
        assert np.allclose(simulated.model, plain.model, rtol=1e-8, atol=1e-12)
