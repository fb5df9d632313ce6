"""The command that lists the entries of registries, such as strategies or data sets, and commands that show one."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from anyk.base import BadInput, ByName, RunFailed, suggest, values_of
from anyk.cli.code_commands import survey_codes
from anyk.cli.fields import is_given
from anyk.cli.group import main
from anyk.cli.kinds import KINDS
from anyk.cli.options import PLUGINS, join_cluster, json_option, picture_option, plugin_option, workers_option
from anyk.cli.output import json_to_output, say_result, text_width, write_json
from anyk.cli.scaling import compute_option, dtype_option, model_option


@main.command("list")
@click.argument("kind", required=False)
@click.option("--workers", type=int, help="Of codes: compare those that exist for this number of workers.")
@click.option("--stragglers", type=int, help="With --workers: the number of stragglers; default: a tenth of them.")
@json_option
@plugin_option
def list_kind(kind: str | None, workers: int | None, stragglers: int | None) -> None:
    """List what can be named in a SPEC, with all keys: strategies, codes, delays, … Without KIND: the kinds.

    The table of codes for a number of workers has these columns. load: partitions that a worker computes, of how many;
    copies: holders of a partition; tolerates: the number of stragglers with which the sum is certain to be exact.
    residual: root mean square over random sets of that many stragglers (~: measured on 200 sets or 40, else a closed
    form); worst: the largest (≥: a lower bound, found by a search). gain: amplification of the rounding of replies.
    decode ms: time to find the weights for a new set.

    \b
    anyk list strategies
    anyk list codes --workers 30 --stragglers 2
    """
    if kind is None:
        say_result(*(f"{name:<14} {listing.summary}" for name, listing in KINDS.items()))
        say_result("", "'anyk list KIND' lists them.")
        write_json([{"name": name, "summary": listing.summary} for name, listing in KINDS.items()])
        return
    if kind not in KINDS:
        raise BadInput(f"no kind '{kind}'; {suggest(kind, KINDS, 'kinds: ' + ', '.join(KINDS))}")
    if kind != "codes" and (workers is not None or stragglers is not None):
        raise BadInput(f"--workers and --stragglers are for 'anyk list codes', got them with '{kind}'")
    if workers is not None:
        survey_codes(workers, stragglers)
        return
    if stragglers is not None:
        raise BadInput(f"--stragglers {stragglers} needs --workers, the number of workers")
    listed = KINDS[kind]
    entries = list(getattr(import_module(listed.module), listed.registry))
    origins = {entry.name: f" (from {entry.origin})" if entry.origin else "" for entry in entries}
    say_result(*(f"{entry.usage()}\n    {entry.summary}{origins[entry.name]}" for entry in entries))
    if listed.also:
        say_result(listed.also)
    write_json([{"name": e.name, "usage": e.usage(), "summary": e.summary} for e in entries])


@main.group()
def strategies() -> None:
    """Explain or test a strategy; every code is one, too. 'anyk list strategies' lists them."""


@strategies.command()
@click.argument("spec")
@workers_option(30)
@click.option("--delays", metavar="SPEC", default="exp:mean=1", help="Delays; see 'anyk list delays'.")
@json_option
@plugin_option
def show(spec: str, workers: int, delays: str) -> None:
    """Explain a strategy: its full form, how it works, how long an update takes and how stale it is."""
    from anyk.delays import parse
    from anyk.fleet import pace, simulated_pace, stability_limit
    from anyk.strategies import strategy
    from anyk.views import theory_text

    candidate = strategy(spec, workers=workers)
    law = parse(delays)
    expected = pace(candidate, law)
    seconds, error, how = expected.seconds, 0.0, "not known"
    value = how
    if seconds is not None:
        how, value = "closed form", f"{seconds:.6g} s, in closed form"
    elif "changes" not in expected.why:
        measured = simulated_pace(candidate, law)
        seconds, error, how = measured.seconds, measured.error, "simulated"
        value = f"{seconds:.4g} ± {2 * error:.2g} s, simulated"
    stale = "not known" if expected.staleness is None else f"{expected.staleness:.4g} versions on average"
    lines = [
        spec if candidate.spec == spec else f"{spec}, that is {candidate.spec}",
        f"an update with {workers} workers and {law.spec}: {value}  ({expected.why})",
        f"staleness: {stale}",
    ]
    if expected.staleness:
        factor = 0.5 * stability_limit(expected.staleness)
        lines.append(f"learning rate: stable up to about {factor:.3g} times what synchronous steps allow")
    say_result(*lines, "", theory_text(candidate, text_width()))
    plain: ByName = {"spec": candidate.spec, "workers": workers, "delays": law.spec}
    plain |= {"seconds": seconds, "error": error, "how": how, **values_of(expected, "staleness", "why")}
    write_json(plain)


@strategies.command()
@click.argument("spec")
@workers_option(6)
@click.option("--schedules", default=100, help="Number of random schedules.")
@click.option("--seed", default=0, help="Seed of the first schedule; the others follow.")
@click.option("--steps", default=20, help="Steps of each run.")
@click.option("--outages", default=3, help="Workers lost, which return, in each run.")
@plugin_option
def check(spec: str, workers: int, schedules: int, seed: int, steps: int, outages: int) -> None:
    """Test a strategy, anyk's or your own, on random schedules of delays, losses and returns.

    Each seed gives a hostile schedule: messages in any order, late or twice, chunks that fail, workers that die and
    return. A copy is saved and restored along the way, and so is a run on the simulated cluster. There must be no
    deadlock, nothing may count twice, the ledger must balance, and the decisions of the copies must agree. The first
    failing schedule is shortened, and printed with the command that repeats it.
    """
    from anyk.strategies import strategy
    from anyk.testing import check_strategy

    if min(schedules, steps, outages + 1) < 1:
        raise BadInput("schedules and steps must be at least 1, outages at least 0")
    candidate = strategy(spec, workers=workers)
    with click.progressbar(range(seed, seed + schedules), label=spec, file=sys.stderr) as seeds:
        for number in seeds:
            try:
                check_strategy(candidate, steps=steps, outages=outages, seed=number, spec=spec)
            except AssertionError as error:
                files = click.get_current_context().meta.get(PLUGINS, ())
                plugins = "".join(f" --plugin '{file}'" for file in files)
                raise RunFailed(f"{error}{plugins}") from None
    click.echo(f"{spec}, {workers} workers: {schedules} schedules passed")


@main.group()
def cluster() -> None:
    """Measure a cluster, or the machines of a job. 'anyk list clusters' lists the kinds."""


@cluster.command("check")
@click.argument("spec", required=False, callback=lambda _, __, spec: spec and join_cluster(spec))
@workers_option(8)
@click.option("--steps", default=20, help="Number of measurements of each.")
@click.option(
    "--strategy",
    metavar="SPEC",
    help="Of machines: the strategy to predict; default: frc:load=2, or cyclic:stragglers=1 if their number is odd.",
)
@model_option(default="1e7", show_default=True)
@dtype_option
@compute_option
@click.option("--address", default="", help="Of machines: this one's address, if MASTER_ADDR does not lead to it.")
@click.option("--port", default=0, metavar="PORT", help="Of machines: as in nodes:port=; 0: any ports that are free.")
@json_option
@plugin_option
def check_cluster(spec: str | None, workers: int, steps: int, address: str, port: int, **step: Any) -> None:
    """Measure a cluster or, without SPEC, the machines of a job before its first run.

    With a SPEC, a cluster is started: latency, bandwidth, and a step at 0.1, 2 and 50 MB beside its floor. Without, all
    machines on which torchrun, srun or ssh has started this command read a few megabytes from each other: their
    versions, addresses, ports and devices, MB/s and round trips of all pairs, and what a step of your model would take
    as a star, in slices, and as an all-reduce.

    \b
    anyk cluster check processes --workers 8
    torchrun --nnodes 4 --node-rank $I --master-addr FIRST --no-python \\
        anyk cluster check --model 1e8
    """
    if spec is None:
        _check_machines(address, port, **step)
        return
    for name in ("strategy", "parameters", "dtype", "compute", "address", "port"):
        if is_given(name):
            option = {"parameters": "model"}.get(name, name)
            raise BadInput(f"--{option} is for the machines of a job, which are measured without a SPEC")
    from anyk.clusters import cluster as build
    from anyk.runs.api import cluster_speed
    from anyk.views import speed_table

    speed = cluster_speed(
        lambda: build(spec, workers=workers),
        steps=steps,
        tell=lambda sentence: click.echo(f"· {sentence}", err=True),
    )
    say_result(
        f"{speed.spec}: {speed.workers} workers ready after {speed.start:.2f} s, latency {1e3 * speed.latency:.2f} ms",
        speed_table(speed),
        "round trip: one worker gets a model and answers; step: all do; floor: adding up the answers here",
    )
    rows = [of_size._asdict() | {"bandwidth": speed.bandwidth(of_size)} for of_size in speed.speeds]
    write_json(speed._asdict() | {"speeds": rows})


def _check_machines(address: str, port: int, **step: Any) -> None:
    """Survey the machines of a job; only rank 0 prints."""
    if not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        raise BadInput(
            "'anyk cluster check' needs a SPEC such as processes, or to be started on each machine of a job by "
            "torchrun, srun or ssh (RANK=0 WORLD_SIZE=4 MASTER_ADDR=FIRST MASTER_PORT=29500 anyk cluster check)"
        )
    for name in ("workers", "steps"):
        if is_given(name):
            raise BadInput(f"--{name} is for a cluster that is started, with a SPEC such as processes")
    from anyk.clusters import nodes_of_job, survey_nodes
    from anyk.fleet import NodeLink, scale
    from anyk.views import machines_table, pairs_table, step_lines, survey_lines

    counts = (nodes_of_job(),)
    step["strategy"] = step["strategy"] or ("cyclic:stragglers=1" if counts[0] % 2 else "frc:load=2")
    scale(network=NodeLink(1e9), nodes=counts, **step)  # what cannot be predicted is refused on all ranks, first
    survey = survey_nodes(address=address, port=port)
    if survey is None:
        return
    say_result(machines_table(survey), *survey_lines(survey), "", *pairs_table(survey))
    report = survey.report()
    if survey.bandwidth is not None:
        network = NodeLink(survey.bandwidth, (survey.round_trip or 0.0) / 2)
        slow = max(survey.slow.values(), default=1.0)
        prediction = scale(network=network, nodes=counts, slow=slow, **step)
        say_result("", *step_lines(survey, prediction))
        report["step"] = prediction.report()
    write_json(report)
    if survey.unreachable or survey.differences:
        raise RunFailed("these machines cannot train together yet: see above")


@main.group()
def graphs() -> None:
    """Show a graph for decentralised averaging. 'anyk list graphs' lists them."""


@graphs.command("show")
@click.argument("spec")
@workers_option(16)
@click.option("--delays", metavar="SPEC", default="exp:mean=1", help="Seconds of a local step.")
@click.option(
    "--communication",
    metavar="SPEC",
    default="none",
    help="Seconds of an exchange with a neighbour.",
)
@picture_option("Draw graph and matrix.")
@json_option
@plugin_option
def show_graph(spec: str, workers: int, delays: str, communication: str, picture: str | None) -> None:
    """Show a graph: its neighbours, its mixing matrix, zeta, and the time of a round with local and global barriers."""
    from anyk.base import bracketed
    from anyk.delays import communication as lines
    from anyk.delays import parse
    from anyk.fleet import simulated_pace
    from anyk.graphs import graph
    from anyk.strategies import strategy
    from anyk.views import draw_graph, graph_text

    mixing, law, link = graph(spec, workers=workers), parse(delays), lines(communication)
    times = {
        barrier: simulated_pace(
            strategy(f"dpsgd:graph={bracketed(spec)},barrier={barrier}", workers=workers), law, communication=link
        )
        for barrier in ("local", "global")
    }
    if not json_to_output():
        click.echo(graph_text(mixing))
        for barrier, pace in times.items():
            others = "its neighbours" if barrier == "local" else "everybody"
            click.echo(
                f"a round where a node waits for {others}: {pace.seconds:.4g} ± {2 * pace.error:.2g} s  "
                f"({law.spec}, communication {link.spec}; simulated)"
            )
    if picture is not None:
        draw_graph(mixing, picture)
        click.echo(f"picture: {picture}", err=json_to_output())
    rounds = {barrier: pace.seconds for barrier, pace in times.items()}
    write_json(
        {
            "spec": mixing.spec,
            "workers": workers,
            "zeta": mixing.zeta,
            "seconds": rounds,
            "matrices": [matrix.tolist() for matrix in mixing.rounds],
        }
    )
