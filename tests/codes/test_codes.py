"""The settings that codes have by default, and the properties that other packages read from them."""

import pytest

import anyk
from anyk.codes import registry

pytestmark = pytest.mark.in_process

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


def test_every_code_is_here():
    assert DEFAULTS.keys() == {entry.name for entry in registry if entry.build.__module__.startswith("anyk.")} - {
        "matrix"
    }


@pytest.mark.parametrize("name", DEFAULTS)
def test_settings_by_default(name):
    for key, values in DEFAULTS[name].items():
        for workers, value in zip(WORKERS, values, strict=True):
            code = built(name, workers)
            got = getattr(code, key, None)
            assert (got.workers if isinstance(got, anyk.codes.Code) else got) == (
                pytest.approx(value) if isinstance(value, float) else value
            ), (key, workers)


@pytest.mark.parametrize("name", DEFAULTS)
def test_properties(name):
    code = built(name, 13 if name == "bibd" else 12)
    assert {key for key in PROPERTIES if getattr(code, key)} == {
        k for k, names in PROPERTIES.items() if name in names.split()
    }


def test_a_product_with_an_approximate_factor_is_approximate():
    exact, approximate = anyk.code("frc:load=2", workers=4), anyk.code("bgc:load=2", workers=4)
    kinds = [anyk.codes.KroneckerCode(*pair) for pair in ((exact, exact), (exact, approximate), (approximate, exact))]
    assert [code.approximate for code in kinds] == [False, True, True]
    assert [code.tolerates for code in kinds] == [3, 0, 0]
