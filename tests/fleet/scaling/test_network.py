"""What a step moves over links: rates as text, the formulas, and figures that were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyk import BadInput
from anyk.clusters.nodes.slices import cut
from anyk.fleet import NodeLink, transfer_seconds
from anyk.fleet.scaling.network import slice_sizes


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("100MB/s", 100.0),
        ("0.1 GB/s", 100.0),
        ("100MiB/s", 104.8576),
        ("100Mbytes/s", 100.0),
        ("1Gb/s", 125.0 * 1448 / 1538),
        ("1Gbit/s", 125.0 * 1448 / 1538),
        ("1gbit/s", 125.0 * 1448 / 1538),
        ("1000Mbps", 125.0 * 1448 / 1538),
        ("1e9b/s", 125.0 * 1448 / 1538),
    ],
)
def test_rates_in_bits_lose_what_ethernet_takes_and_bytes_do_not(text, megabytes):
    assert NodeLink.read(text).bandwidth / 1e6 == pytest.approx(megabytes)


@pytest.mark.parametrize(
    "text", ["10G", "10Gb", "10GB", "10gb/s", "100mb/s", "1e9", "", "Gb/s", "-1Gb/s", "nanGb/s", "fast"]
)
def test_ambiguous_rates_are_refused_with_what_to_write(text):
    with pytest.raises(BadInput, match=r"write bits as in 10Gb/s or 10Gbit/s .* or bytes as in 100MB/s"):
        NodeLink.read(text)


@pytest.mark.parametrize("text", ["0Gb/s", "1b/s", "1e300GB/s"])
def test_rates_that_no_network_has_are_refused(text):
    with pytest.raises(BadInput, match="at least 1 kB/s"):
        NodeLink.read(text)


# milliseconds of a step at 1 Gb/s, of N nodes and MB: gloo, slices uncoded and of frc:load=2, the star of frc:load=2.
# Measured in network namespaces of a machine with two cores (medians of 5), with nothing added to the copy of a sum.
MEASURED = {
    (4, 10): (130, 148, 96, 340),
    (4, 40): (507, 565, 383, 1371),
    (8, 10): (150, 195, 137, 849),
    (8, 40): (603, 706, 507, 3522),
}


@pytest.mark.parametrize(("nodes", "megabytes"), MEASURED)
def test_predictions_are_near_what_was_measured_in_namespaces(nodes, megabytes):
    gigabit = NodeLink.read("1Gb/s")

    def predicted(way, sums, replicas):
        seconds = transfer_seconds(way, 1e6 * megabytes, gigabit, nodes=nodes, sums=sums, replicas=replicas).seconds
        return 1e3 * seconds

    gloo, uncoded, coded, star = MEASURED[nodes, megabytes]
    assert predicted("all-reduce", nodes, 1) == pytest.approx(gloo, rel=0.03)
    assert predicted("star", nodes // 2, 2) == pytest.approx(star, rel=0.04)
    # it took no less than predicted, as two cores were shared by all nodes
    assert 0.87 * uncoded <= predicted("slices", nodes, 1) <= uncoded
    assert 0.87 * coded <= predicted("slices", nodes // 2, 2) <= coded


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize(
    ("numbers", "nodes"), [(2_500_000, 4), (2_500_000, 8), (1, 3), (100_000_000, 512), (1 << 18, 2), (1_250_001, 5)]
)
def test_slices_are_those_that_nodes_hold(numbers, nodes, itemsize):
    held = [itemsize * (last - first) for first, last in cut(numbers, itemsize, nodes)]
    assert slice_sizes(numbers * itemsize, nodes, itemsize).tolist() == held


@pytest.mark.slow
@given(nodes=st.integers(2, 500), units=st.integers(1, 50))
def test_uncoded_slices_move_what_a_ring_moves_and_replicas_less(nodes, units):
    network, size = NodeLink(bandwidth=1e9), float(units * 2 * nodes << 20)  # of which each node holds as much
    ring = transfer_seconds("all-reduce", size, network, nodes=nodes).seconds
    slices = transfer_seconds("slices", size, network, nodes=nodes).seconds
    assert slices == pytest.approx(ring)
    twice = transfer_seconds("slices", size, network, nodes=2 * nodes, sums=nodes, replicas=2)
    once = transfer_seconds("slices", size, network, nodes=2 * nodes)
    assert twice.spread == once.spread
    assert twice.reduce == pytest.approx(once.reduce * (nodes - 1) / (2 * nodes - 1))


@given(groups=st.integers(1, 60), replicas=st.integers(1, 5), units=st.integers(1, 20))
def test_two_copies_double_the_reduce_and_spare_a_slice(groups, replicas, units):
    nodes = groups * replicas
    if nodes < 2:
        return
    network, size = NodeLink(bandwidth=1e9), float(units * nodes << 19)  # of which each node holds as much
    settings = {"nodes": nodes, "sums": groups, "replicas": replicas}
    once, twice = (transfer_seconds("slices", size, network, copies=copies, **settings) for copies in (1, 2))
    assert twice.reduce == pytest.approx(2 * once.reduce)
    assert once.spread - twice.spread == pytest.approx(size / nodes / 1e9)
    assert twice.latency == once.latency


def test_a_slow_node_costs_slices_their_spread_and_a_ring_all():
    network = NodeLink(bandwidth=1e8, latency=1e-3)

    def of(way, slow, replicas=2):
        return transfer_seconds(way, 40 << 20, network, nodes=8, sums=8 // replicas, replicas=replicas, slow=slow)

    assert of("slices", 3.0).spread == pytest.approx(3.0 * of("slices", 1.0).spread)
    assert of("slices", 3.0).reduce < 1.6 * of("slices", 1.0).reduce, "the replica sends most of it"
    assert of("slices", 3.0, replicas=1).reduce == pytest.approx(3.0 * of("slices", 1.0, replicas=1).reduce)
    assert of("star", 3.0) == of("star", 1.0)
    ring = of("all-reduce", 3.0)
    assert ring.seconds - ring.latency == pytest.approx(3.0 * 2 * 7 / 8 * (40 << 20) / 1e8)
    assert [of(way, 1.0).latency for way in ("star", "slices", "all-reduce")] == pytest.approx([0.006, 0.010, 0.014])
