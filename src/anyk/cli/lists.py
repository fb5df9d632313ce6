"""Commands that list strategies, delay models, callbacks and data sets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from anyk.cli.group import main
from anyk.cli.options import PLUGINS, json_option, plugin_option
from anyk.cli.output import say_result, text_width, write_json
from anyk.errors import BadInput
from anyk.plain import ByName, values_of

if TYPE_CHECKING:
    from anyk.specs import Registry


def list_entries(registry: Registry[Any], json_file: str | None, *, also: str = "") -> None:
    """Print the entries of a registry, and write them as JSON."""
    entries = list(registry)
    say_result(json_file, *(f"{entry.usage()}\n    {entry.summary}" for entry in entries), *[also] * bool(also))
    write_json([{"name": e.name, "usage": e.usage(), "summary": e.summary} for e in entries], json_file)


@main.group(invoke_without_command=True)
@json_option
@plugin_option
@click.pass_context
def strategies(ctx: click.Context, /, json_file: str | None) -> None:
    """List the strategies; every code is one, too. 'anyk strategies show SPEC' explains one."""
    if ctx.invoked_subcommand is not None:
        return
    from anyk.codes import registry as codes_registry
    from anyk.strategies import registry

    names = ", ".join(entry.name for entry in codes_registry)
    list_entries(
        registry,
        json_file,
        also=(
            f"CODE:…,wait=…,scaling=…,cancel=preempt,decoder=own,batch=0,snapshot=0,balance=…\n"
            f"    Rounds of any code ({names}).\n"
            "wait: a number of replies, 'decodable' (default), 'all', a residual such as 5%, a deadline such as 0.5s "
            "or 3mad, joined by | or &\nscaling: none, marginal or conditional      cancel: preempt or discard\n"
            "decoder: own, exact, least-squares, one-step or algorithmic      batch: samples of each partition, 0 for "
            "all\n"
            "snapshot: every so many rounds an exact one, whose messages correct the others (repetition codes; 0: "
            "never)\n"
            "balance: auto cuts the data of uncoded and frc by the workers' measured speed; shares=3/1/1/… gives it\n"
            "'anyk strategies show SPEC' explains one."
        ),
    )


@strategies.command()
@click.argument("spec")
@click.option("--workers", default=30, help="Number of workers, n.")
@click.option("--delays", metavar="SPEC", default="exp:mean=1", help="Delays; see 'anyk delays'.")
@json_option
@plugin_option
def show(spec: str, workers: int, delays: str, json_file: str | None) -> None:
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
    say_result(json_file, *lines, "", theory_text(candidate, text_width()))
    plain: ByName = {"spec": candidate.spec, "workers": workers, "delays": law.spec}
    plain |= {"seconds": seconds, "error": error, "how": how, **values_of(expected, "staleness", "why")}
    write_json(plain, json_file)


@strategies.command()
@click.argument("spec")
@click.option("--workers", default=6, help="Number of workers, n.")
@click.option("--schedules", default=100, help="Number of random schedules.")
@click.option("--seed", default=0, help="Seed of the first schedule; the others follow.")
@click.option("--steps", default=20, help="Steps of each run.")
@click.option("--outages", default=3, help="Workers lost, which return, in each run.")
@plugin_option
@click.pass_context
def check(ctx: click.Context, /, spec: str, workers: int, schedules: int, seed: int, steps: int, outages: int) -> None:
    """Test a strategy, anyk's or your own, on random schedules of delays, losses and returns.

    Each seed gives a hostile schedule: messages in any order, late or twice, chunks that fail, workers that die and
    return. A copy is saved and restored along the way, and so is a run on the simulated cluster. There must be no
    deadlock, nothing may count twice, the ledger must balance, and the decisions of the copies must agree. The first
    failing schedule is shortened, and printed with the command that repeats it.
    """
    from anyk.errors import RunFailed
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
                plugins = "".join(f" --plugin '{file}'" for file in ctx.meta.get(PLUGINS, ()))
                raise RunFailed(f"{error}{plugins}") from None
    click.echo(f"{spec}, {workers} workers: {schedules} schedules passed")


@main.command()
@json_option
@plugin_option
def delays(json_file: str | None) -> None:
    """List the delay models."""
    from anyk.delays import registry

    list_entries(registry, json_file)


@main.command()
@json_option
def callbacks(json_file: str | None) -> None:
    """List the callbacks, which train, race and resume take as --callback SPEC."""
    from anyk.callbacks import registry

    list_entries(registry, json_file, also="FILE.py:FUNCTION\n    One of yours, made by a function without arguments.")


@main.command()
@json_option
@plugin_option
def data(json_file: str | None) -> None:
    """List the data sets; --data-file takes a local file instead of fetching."""
    from anyk.problems import sources

    list_entries(sources, json_file)
