"""The machines of a job: what they are, how fast they read from each other, and what a step of a model takes."""

from __future__ import annotations

from typing import Any

from anyk.clusters import MachineSurvey
from anyk.fleet import ScaleResult, seconds_text
from anyk.views.columns import Columns

_PAIRS = 28  # in the table: all of 8 machines
_ALIKE = 0.01  # difference, relative to the all-reduce, that is none


def machines_table(survey: MachineSurvey) -> Columns:
    """Return a row for each machine."""
    rows = [
        [
            f"{machine.rank}  {machine.host}",
            machine.address,
            str(machine.port),
            str(machine.cores),
            _devices(machine.devices),
        ]
        for machine in survey.machines
    ]
    return Columns(["node", "address", "port", "cores", "devices"], rows)


def _devices(names: list[str]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" for name, count in kinds.items()) or "no GPU"


def survey_lines(survey: MachineSurvey) -> list[str]:
    """Return where the machines meet, and whether their versions are the same."""
    lines = [f"they met at {survey.store}, and read from each other's ports for {seconds_text(survey.seconds)} s"]
    if survey.differences:
        return [*lines, *survey.differences]
    versions = ", ".join(f"{name} {value}" for name, value in survey.machines[0].versions.items() if name != "wire")
    return [*lines, f"the same versions on all: {versions}"]


def pairs_table(survey: MachineSurvey) -> list[Any]:
    """Return a row for each pair, the slowest first, and sentences about machines that are slow or out of reach."""
    reads = {(read.reader, read.source): read for read in survey.reads}
    pairs = sorted({(min(pair), max(pair)) for pair in reads})

    def rate(reader: int, source: int) -> float | None:
        return reads[reader, source].bandwidth

    def slowest(pair: tuple[int, int]) -> float:
        return min(rate(*pair) or 0.0, rate(*pair[::-1]) or 0.0)

    rows = []
    for low, high in sorted(pairs, key=slowest)[:_PAIRS]:
        trips = [reads[pair].round_trip for pair in ((low, high), (high, low))]
        measured = [trip for trip in trips if trip is not None]
        rows.append(
            [
                f"{low} and {high}",
                _megabytes(rate(high, low)),
                _megabytes(rate(low, high)),
                f"{1e3 * min(measured):.2f}" if measured else "–",
            ]
        )
    if not rows:
        return []
    lines: list[Any] = [Columns(["nodes a and b", "MB/s a to b", "MB/s b to a", "round trip ms"], rows)]
    if len(pairs) > _PAIRS:
        lines.append(f"the slowest {_PAIRS} of {len(pairs)} pairs; --json has all")
    lines += [
        f"node {read.reader} cannot read from node {read.source}: does a firewall let it through to "
        f"{survey.machines[read.source].address}, port {survey.machines[read.source].port}? "
        "--port fixes the ports, see the page 'Four machines'"
        for read in survey.unreachable
    ]
    lines += [f"node {rank} sends {factor:.2g} times slower than the others" for rank, factor in survey.slow.items()]
    return lines


def _megabytes(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e6:,.0f}" if rate >= 1e7 else f"{rate / 1e6:.2g}"


def step_lines(survey: MachineSurvey, prediction: ScaleResult) -> list[str]:
    """Return what a step takes on these machines, in which way, and whether DistributedDataParallel is better."""
    row = prediction.rows[0]
    star, slices, ring = row.star.seconds, row.slices.seconds, row.all_reduce.seconds
    assert star is not None
    assert ring is not None
    in_slices = f"{seconds_text(slices)} s" if slices is not None else f"none ({row.slices.reason})"
    lines = [
        f"a step of a model with {prediction.parameters:g} parameters ({prediction.dtype}) moves vectors of "
        f"{prediction.size / 1e6:,.4g} MB: about {seconds_text(star)} s with {row.spec} through rank 0, {in_slices} in "
        f"slices, {seconds_text(ring)} s as an all-reduce, at {prediction.network.bandwidth / 1e6:,.4g} MB/s and if no "
        f"machine is late; {_computing(prediction)}"
    ]
    if prediction.slow > 1:
        cost = prediction.slow_node_costs(row.nodes)["slices"]
        slowest = max(survey.slow, key=lambda rank: survey.slow[rank])
        lines.append(
            f"that counts node {slowest} as {prediction.slow:.2g} times slower: with slices, everybody waits "
            f"{seconds_text(cost)} s more in each step for the slice that it holds"
        )
    return [*lines, *_choice(star, slices, ring, 0.0 if prediction.compute else row.load - 1)]


def _computing(prediction: ScaleResult) -> str:
    """Return how computing was counted."""
    load = prediction.rows[0].load
    if prediction.compute:
        return f"with {prediction.compute * load:g} s of computing ({prediction.compute:g} s for the all-reduce)"
    more = f", which takes {load:.3g} times as long as for the all-reduce" if load > 1.001 else ""
    return f"without computing{more} (--compute SECONDS counts it)"


def _choice(star: float, slices: float | None, ring: float, more: float) -> list[str]:
    """Return which of these is less without stragglers, and what waiting must cost for the others to be better.

    ``more``: computing that is not counted, as a multiple of that without redundancy.
    """
    uncounted = f", if computing {more:.3g} times more takes less than that" if more > 1e-3 else ""
    choices = [("through rank 0", star)] + [("in slices", slices)] * (slices is not None)
    lines = []
    for how, seconds in choices:
        assert seconds is not None
        better = "DistributedDataParallel is the better choice"
        if abs(seconds - ring) <= _ALIKE * ring:
            lines.append(
                f"{how}: as long as an all-reduce; {better}, unless this strategy waits less for late machines"
            )
        elif seconds < ring:
            lines.append(
                f"{how}: {seconds_text(ring - seconds)} s less than an all-reduce, even if nobody is late{uncounted}"
            )
        else:
            lines.append(
                f"{how}: {better}, unless it waits for late machines {seconds_text(seconds - ring)} s a step more than "
                "this strategy does"
            )
    return [*lines, "how long a job of DistributedDataParallel waits, a line in its script records: anyk.fleet.ddp"]
