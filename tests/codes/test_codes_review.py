"""What a review of the codes found, each as the test that shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyk import codes
from anyk.codes import (
    Algorithmic,
    BatchedCoupons,
    BernoulliCode,
    CommunicationEfficient,
    CyclicMDS,
    DracoCode,
    ExpanderCode,
    HeterogeneousCode,
    RegularisedBernoulliCode,
    StochasticBlockCode,
)
from anyk.errors import BadInput

pytestmark = [pytest.mark.in_process, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(60))
def test_a_regularised_code_never_holds_more_than_twice_the_load(seed: int) -> None:
    for n, load in ((3, 1), (50, 1), (20, 2)):
        code = RegularisedBernoulliCode(n, expected_load=load, seed=seed)
        assert code.load <= 2 * load and {j for held in code.assignment for j in held} == set(range(n))


@pytest.mark.parametrize(("n", "s"), [(1000, 5), (256, 6), (100, 6)])
def test_finish_times_of_mds_do_not_promise_what_rounding_breaks(n: int, s: int) -> None:
    code = CyclicMDS(n, stragglers=s)
    times = np.ones((1, n))
    times[0, :s] = np.inf
    assert np.isinf(code.finish_times(times)[0]) == (not code.decode(range(s, n)).exact)


def test_mds_decodes_random_sets_where_least_squares_do() -> None:
    code, random = CyclicMDS(256, stragglers=16), np.random.default_rng(16)
    for _ in range(20):
        code.decode_exactly(random.choice(256, 240, replace=False))


@pytest.mark.parametrize("factor", ["progress", "partial", "comm-efficient"])
def test_a_product_refuses_factors_without_one_whole_message(factor: str) -> None:
    with pytest.raises(BadInput, match="one whole message"):
        codes.code(f"kronecker:left=({factor}),right=(frc)", workers=12)


def test_nothing_is_promised_for_codes_that_are_not_exact_at_all() -> None:
    code = BernoulliCode(6, expected_load=2, seed=0)
    assert code.decode(range(6)).residual > 0.1 and code.worst_error(0) is None
    assert HeterogeneousCode(6).worst_error(0) is None


def test_cyclic_draco_is_refused_where_it_would_accuse_the_wrong() -> None:
    with pytest.raises(
        BadInput, match="up to 5 Byzantine workers among at most 40 .*got 50 with 8; use kind=repetition"
    ):
        DracoCode(50, byzantine=8, kind="cyclic")
    assert DracoCode(50, byzantine=8).load == 25


def test_the_load_of_uneven_communities() -> None:
    code = StochasticBlockCode(10, block=6, inside=1.0, outside=0.0)
    assert code.encoding.nnz / 10 == pytest.approx(code.expected_load)
    errors = [10 * code.decode(range(10), decoder="one-step").residual ** 2]
    assert code.drawn_error(10) == pytest.approx(np.mean(errors))


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


def test_workers_that_never_straggle_give_the_exact_sum() -> None:
    assert HeterogeneousCode(6, probability=0.0).decode(range(6)).exact


def test_what_was_learned_is_part_of_what_a_code_is() -> None:
    code = HeterogeneousCode(3, load=2)
    assert code.relearned((5, 0, 0), 10) != code
    assert code.relearned((5, 0, 0), 10) == code.relearned((5, 0, 0), 10)


def test_an_even_ring_is_no_expander() -> None:
    with pytest.raises(BadInput, match="expander:load=2 does not exist for 6 workers"):
        ExpanderCode(6, load=2)
    assert ExpanderCode(12).load == 3 and ExpanderCode(7, load=2).second_singular < 1.0


def test_a_community_that_holds_more_than_the_load_is_refused() -> None:
    with pytest.raises(BadInput, match="sbc:load=2,block=3 does not exist: with inside=0.8 a worker holds 2.4"):
        codes.code("sbc:load=2,block=3", workers=6)


def test_codes_with_short_replies_conform() -> None:
    from anyk.testing import check_code

    check_code(CommunicationEfficient(6, stragglers=1, blocks=2))
    check_code(CommunicationEfficient(7, stragglers=2, blocks=3))


def test_the_floor_knows_who_lies() -> None:
    import anyk

    for spec in ("draco:byzantine=1", "draco:byzantine=2,stragglers=1,kind=cyclic"):
        cluster = anyk.cluster("simulated:byzantine=3", workers=9, delays="exp:mean=0.5", seed=1)
        run = anyk.train(anyk.testing.Squares(9), spec, cluster, steps=10)
        assert run.seconds == pytest.approx(run.floor_seconds, rel=1e-12)
