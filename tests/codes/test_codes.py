"""Every code: its settings by default, properties that other packages read, and training on both clusters."""

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.codes import (
    Algorithmic,
    BatchedCoupons,
    CommunicationEfficient,
    DracoCode,
    ExpanderCode,
    HeterogeneousCode,
    StochasticBlockCode,
    registry,
)

WORKERS = (2, 4, 7, 12, 30)
SHORT = {"stragglers": [1, 1, 1, 1, 3], "load": [2, 2, 2, 2, 3], "degree": [None, 2, 2, 2, 3]}  # log n; a tenth of n
DEFAULTS = {
    "uncoded": {},
    "frc": {"load": [2, 2, 1, 3, 3]},  # of the divisors of n the nearest
    "cyclic": {"stragglers": SHORT["stragglers"]},
    "mds": {"stragglers": SHORT["stragglers"]},
    "binary": {"stragglers": SHORT["stragglers"]},
    "nested": {"stragglers": SHORT["stragglers"], "kind": ["binary", "binary", "cyclic", "binary", "cyclic"]},
    "progress": {"load": SHORT["load"], "placement": ["cyclic"] * 5},
    "partial": {"stragglers": [1] * 5, "load": [4, 4, 5, 4, 4]},
    "bcc": {"batches": [1, 2, 2, 4, 8]},
    "comm-efficient": {"stragglers": [0, 1, 1, 1, 3], "blocks": [2] * 5},
    "draco": {"byzantine": [None, 1, 1, 1, 1], "stragglers": [None, 0, 0, 0, 0]},
    "tree": {"children": [2, 4, 7, 3, 5], "stragglers": [1] * 5},
    "bgc": {"expected_load": SHORT["load"]},
    "rbgc": {"expected_load": SHORT["load"]},
    "sbc": {"block": [2, 2, 2, 2, 3], "inside": [0.8] * 5, "expected_load": [1.6, 2.0, 13.28 / 7, 2.0, 3.0]},
    "expander": {"load": [None, 3, 2, 3, 3]},
    "biregular": {"load": SHORT["load"], "partitions": list(WORKERS)},
    "graph": {"degree": SHORT["degree"]},
    "bibd": {"load": [None, 3, 3, None, None], "family": [None, "affine", "projective", None, None]},
    "kronecker": {"left": [None, 2, None, 3, 5], "right": [None, 2, None, 4, 6]},
    "hetero": {"load": SHORT["load"], "probability": [0.1] * 5, "relearn": [20] * 5},
}
PROPERTIES = {
    "approximate": "bgc rbgc sbc expander biregular graph bibd kronecker hetero",
    "optimal": "tree bgc rbgc sbc expander biregular graph kronecker",
    "unbiased": "hetero",
    "own_messages": "uncoded",
}


def built(name, workers):
    try:
        return anyk.code(name, workers=workers)
    except anyk.BadInput:
        return None


@pytest.mark.in_process
def test_every_code_is_here():
    assert DEFAULTS.keys() == {entry.name for entry in registry if entry.build.__module__.startswith("anyk.")} - {
        "matrix"
    }


@pytest.mark.in_process
@pytest.mark.parametrize("name", DEFAULTS)
def test_settings_by_default(name):
    for key, values in DEFAULTS[name].items():
        for workers, value in zip(WORKERS, values, strict=True):
            code = built(name, workers)
            got = getattr(code, key, None)
            assert (got.workers if isinstance(got, anyk.codes.Code) else got) == (
                pytest.approx(value) if isinstance(value, float) else value
            ), (key, workers)


@pytest.mark.in_process
@pytest.mark.parametrize("name", DEFAULTS)
def test_properties(name):
    code = built(name, 13 if name == "bibd" else 12)
    assert {key for key in PROPERTIES if getattr(code, key)} == {
        k for k, names in PROPERTIES.items() if name in names.split()
    }


@pytest.mark.in_process
def test_a_product_with_an_approximate_factor_is_approximate():
    exact, approximate = anyk.code("frc:load=2", workers=4), anyk.code("bgc:load=2", workers=4)
    kinds = [anyk.codes.KroneckerCode(*pair) for pair in ((exact, exact), (exact, approximate), (approximate, exact))]
    assert [code.approximate for code in kinds] == [False, True, True]
    assert [code.tolerates for code in kinds] == [3, 0, 0]


@pytest.mark.in_process
@pytest.mark.parametrize(
    "build",
    [
        lambda: BatchedCoupons(6, batches=2.5),  # type: ignore[arg-type]
        lambda: DracoCode(9, byzantine=1.5),  # type: ignore[arg-type]
        lambda: Algorithmic(1.5),  # type: ignore[arg-type]
        lambda: HeterogeneousCode(4, load=2.5),  # type: ignore[arg-type]
        lambda: HeterogeneousCode(4, partitions=4.5),  # type: ignore[arg-type]
        lambda: ExpanderCode(8, load=2.5),  # type: ignore[arg-type]
        lambda: StochasticBlockCode(8, block=2.5),  # type: ignore[arg-type]
        lambda: CommunicationEfficient(5, stragglers=1, blocks=2.5),  # type: ignore[arg-type]
    ],
)
def test_what_must_be_whole(build: Any) -> None:
    with pytest.raises(BadInput, match="whole number"):
        build()


SPECS = [
    *(entry.name for entry in registry if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"),
    *("agc", "nested:kind=cyclic", "progress:placement=random", "draco:kind=cyclic", "tree:children=2,stragglers=0"),
    *("bgc:decoder=one-step", "biregular:decoder=algorithmic", "expander:wait=30%"),
]


def fleet(spec: str) -> int:
    return 7 if spec.startswith("bibd") else 6


@pytest.mark.slow
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
