"""Seconds of a step for numbers of nodes, on the virtual clock."""

import json

import numpy as np
import pytest

import anyk
from anyk import BadInput
from anyk.fleet import NodeLink, node_counts, scale, transfer_seconds

GIGABIT = NodeLink.read("1Gb/s", latency=1e-4)
PARAMETERS = 12 << 20  # of 4 bytes: slices of 4, 6, 8 and 12 nodes are of one size
SIZE = 4 * PARAMETERS


def seconds(strategy, way, nodes=8, **settings):
    settings = {"parameters": PARAMETERS, "network": GIGABIT} | settings
    return scale(strategy, nodes=(nodes,), **settings).rows[0].of(way).seconds


@pytest.mark.parametrize("nodes", [4, 6, 12])
@pytest.mark.parametrize(("spec", "replicas"), [("uncoded", 1), ("frc:load=2", 2)])
@pytest.mark.parametrize(("way", "copies"), [("star", 1), ("slices", 1), ("slices", 2), ("all-reduce", 1)])
def test_without_delays_the_clock_agrees_with_the_formulas(nodes, spec, replicas, way, copies):
    settings = {"nodes": nodes, "sums": nodes // replicas, "replicas": replicas, "copies": copies}
    expected = transfer_seconds(way, SIZE, GIGABIT, **settings).seconds
    assert seconds(spec, way, nodes, copies=copies) == pytest.approx(expected)


def test_codes_without_replicas_read_all_chosen_messages():
    assert seconds("cyclic:stragglers=1", "slices") == pytest.approx(seconds("uncoded", "slices"))
    vectors = (seconds("cyclic:stragglers=1", "star") - 6e-4) / (SIZE / GIGABIT.bandwidth)
    assert vectors == pytest.approx(6 + 7), "seven of eight messages, one of them rank 0's own"


def test_computing_counts_as_often_as_the_load():
    for spec, load in (("uncoded", 1), ("frc:load=2", 2), ("cyclic:stragglers=2", 3)):
        for way in ("star", "slices"):
            assert seconds(spec, way, compute=0.5) == pytest.approx(seconds(spec, way) + 0.5 * load)
        assert seconds(spec, "all-reduce", compute=0.5) == pytest.approx(seconds(spec, "all-reduce") + 0.5)


@pytest.mark.slow
def test_on_a_fast_network_only_the_waiting_is_left():
    fast = {"network": NodeLink(bandwidth=1e15), "delays": "exp:mean=0.5", "seed": 3}
    row = scale("frc:load=2", parameters=1e3, nodes=(8,), **fast).rows[0]
    for way in (row.star, row.slices):
        assert way.seconds == pytest.approx(row.waiting.seconds, rel=1e-6)
    assert row.all_reduce.seconds == pytest.approx(row.waiting_for_all.seconds, rel=1e-6)
    law = anyk.delays.parse("exp:mean=0.5")
    expected = law.order_statistic(8, 8)
    assert abs(row.waiting_for_all.seconds - expected) < 5 * row.waiting_for_all.error


@pytest.mark.slow
def test_transfers_overlap_waiting_and_take_no_less_than_either():
    for way in ("star", "slices"):
        with_delays = seconds("frc:load=2", way, delays="exp:mean=0.5")
        alone = seconds("frc:load=2", way)
        waiting = scale("frc:load=2", parameters=1, network=GIGABIT, nodes=(8,), delays="exp:mean=0.5").rows[0].waiting
        assert max(alone, waiting.seconds) < with_delays < alone + waiting.seconds + 0.3


def test_a_message_that_comes_alone_takes_its_workers_full_time():
    """Slices of a late message come from one link only: (N - 1) / N of a vector, not 1 / N."""
    late = {"delays": anyk.delays.TableDelays(np.array([[0.0] * 7 + [5.0]]), by="round"), "steps": 3}
    vector = SIZE / GIGABIT.bandwidth
    expected = 5.0 + 2 * 7 / 8 * vector + 10e-4
    assert seconds("uncoded", "slices", **late) == pytest.approx(expected)
    assert seconds("uncoded", "star", **late) == pytest.approx(5.0 + (7 + 1) * vector + 6e-4)


@pytest.mark.slow
def test_a_slow_node_is_felt_where_everybody_reads_from_it():
    plain = {way: seconds("frc:load=2", way) for way in ("star", "slices", "all-reduce")}
    slow = {way: seconds("frc:load=2", way, slow=3.0) for way in plain}
    vector = SIZE / GIGABIT.bandwidth
    assert slow["star"] == pytest.approx(plain["star"], rel=0.01), "its replica is faster"
    assert slow["slices"] - plain["slices"] > 2 * 7 / 8 * vector
    assert slow["all-reduce"] - plain["all-reduce"] == pytest.approx(2 * 2 * 7 / 8 * vector)
    late = scale("frc:load=2", parameters=1, network=GIGABIT, nodes=(8,), compute=1.0, slow=3.0).rows[0]
    assert late.waiting.seconds == pytest.approx(2.0), "with load 2, and without the slow one"
    assert late.waiting_for_all.seconds == pytest.approx(3.0)
    delays = scale("uncoded", parameters=1, network=GIGABIT, nodes=(8,), delays="constant:1", slow=3.0).rows[0]
    assert delays.waiting.seconds == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("compressed:of=(uncoded),by=half", "compressed"),
        ("comm-efficient:stragglers=1,blocks=2", "replies are shorter than the model"),
        ("draco:byzantine=1", "replies are compared"),
    ],
)
def test_strategies_without_slices_say_why(spec, reason):
    row = scale(spec, parameters=1e6, network=GIGABIT, nodes=(8,)).rows[0]
    assert reason in row.slices.reason and row.slices.seconds is None
    assert row.star.seconds > 0 and row.best is not None


def test_averaged_models_move_in_slices_as_sums_do():
    assert seconds("pasgd:tau=3", "slices") == pytest.approx(seconds("uncoded", "slices"))


def test_a_small_model_lies_on_few_nodes():
    few = scale("uncoded", parameters=3 << 17, network=GIGABIT, nodes=(8,)).rows[0].slices.seconds  # three slices
    assert few == pytest.approx(2 * 7 * (4 << 17) / GIGABIT.bandwidth + 10e-4), "each holder's link moves 7 slices"


def test_a_compressed_message_takes_its_own_size():
    half = seconds("compressed:of=(uncoded),by=half", "star")
    full = seconds("uncoded", "star")
    assert full - half == pytest.approx(7 * SIZE / 2 / GIGABIT.bandwidth, rel=1e-3), "seven messages of half the bytes"


@pytest.mark.parametrize("spec", ["dpsgd", "easgd", "ad-psgd", "nested:stragglers=1", "anytime"])
def test_messages_between_workers_are_refused(spec):
    with pytest.raises(BadInput, match="from worker to worker"):
        scale(spec, parameters=1e6, network=GIGABIT, nodes=(6,))


@pytest.mark.parametrize("spec", ["async", "k-async:k=3", "k-batch-async:k=2"])
def test_without_rounds_rank_zero_sends_models_one_after_another(spec):
    row = scale(spec, parameters=1e7, network=GIGABIT, nodes=(8,), delays="exp:mean=0.5", seed=1).rows[0]
    assert row.star.seconds > row.slices.seconds > row.waiting.seconds


def test_numbers_of_nodes_without_the_strategy_are_named():
    scaling = scale("frc:load=3", parameters=1e6, network=GIGABIT, nodes=(4, 6, 8))
    missing = [row for row in scaling.rows if row.reason]
    assert [row.nodes for row in missing] == [4, 8]
    assert missing[0].reason.startswith("frc:load=3 does not exist for 4 workers")
    assert missing[0].best is None and missing[0].all_reduce.seconds > 0
    with pytest.raises(BadInput, match="frc:load=3 does not exist for 4 workers"):
        scale("frc:load=3", parameters=1e6, network=GIGABIT, nodes=(4, 8))
    with pytest.raises(BadInput, match="no strategy 'frk'"):
        scale("frk", parameters=1e6, network=GIGABIT)


@pytest.mark.slow
def test_the_ways_that_win_and_json():
    scaling = scale("frc:load=2", parameters=1e7, network=GIGABIT, nodes="2..16", compute=0.12)
    covered = sorted(span for way in ("star", "slices", "all-reduce") for span in scaling.wins(way))
    assert covered[0][0] == 2 and covered[-1][1] == 16
    for row in scaling.rows:
        known = {way: row.of(way).seconds for way in ("star", "slices", "all-reduce")}
        assert known[row.best] <= 1.01 * min(known.values())
    assert json.loads(json.dumps(scaling.report()))["rows"][0]["nodes"] == 2
    assert all(row.best == "all-reduce" for row in scale("uncoded", parameters=1e7, network="1Gb/s").rows), "a tie"


@pytest.mark.parametrize("nodes", ["4..", "four", "4..2", "1..8", "1", "4..9999", [], [0], "4;8", "-4"])
def test_numbers_of_nodes_that_cannot_be_are_refused(nodes):
    with pytest.raises(BadInput, match="nodes"):
        node_counts(nodes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parameters", 0.5),
        ("parameters", float("nan")),
        ("compute", -1.0),
        ("slow", 0.5),
        ("dtype", "int8"),
        ("network", "10G"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, value):
    with pytest.raises(BadInput, match=name):
        scale("uncoded", **({"parameters": 1e6, "network": GIGABIT, "nodes": (4,)} | {name: value}))
