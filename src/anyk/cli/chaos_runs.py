"""The command that trains under faults: chaos."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from anyk.base import RunFailed, values_of
from anyk.cli.fields import is_given, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import ProblemOptions, json_option, read_workers
from anyk.cli.output import check_page, say, warn, write_json
from anyk.protocol import Workers

_OWN = ("optimizer", "delays")  # options whose default differs from that of train


def _rate(purpose: str) -> Any:
    return option(metavar="RATE", default="", show_default=False, help=f"{purpose}, such as 2/s, 30/min or 5/h.")


@options_class
class ChaosOptions(ProblemOptions):
    """The options of ``chaos``."""

    strategy: str = option(default="frc:load=2", metavar="SPEC", help="Strategy; see 'anyk list strategies'.")
    cluster: str = option(default="processes", metavar="SPEC", help="processes, ray or nodes.")
    workers: Workers = option(
        default="6", metavar="N|RANGE", callback=read_workers, help="Number of workers, n, or a range such as 3..6."
    )
    delays: str = option(default="exp:mean=0.01", metavar="SPEC", help="Injected delays; see 'anyk list delays'.")
    optimizer: str | None = option(default="gd", metavar="SPEC", help="Optimiser, as for train; gd forgets no error.")
    kill: str = _rate("Kill a random worker at this rate (SIGKILL)")
    stop: str = _rate("Stop a random worker for up to 2 seconds at this rate (SIGSTOP)")
    freeze: int = option(default=0, help="Number of workers that are stopped all the time.")
    slow: str = option(default="", show_default=False, metavar="FACTOR", help="Slow one worker by a factor, as 3x.")
    corrupt: str = _rate("Alter numbers of a message at this rate; needs a strategy that compares all, such as draco")
    nan: str = _rate("Have a worker send a message that is not a number at this rate")
    node_kill: str = _rate("Kill a node at this rate, and start it again; needs --cluster nodes")
    node_stop: str = _rate("Stop a node for up to 8 seconds at this rate; needs --cluster nodes")
    driver: str = _rate("Kill the process that trains at this rate, and resume the run")
    disk_full: bool = option(is_flag=True, help="Once, let nothing more be written to files; then resume the run.")
    seconds: float = option(
        default=60.0, help="Seconds of training under faults; the start and the checks afterwards take more."
    )
    seed: int = option(default=0, help="Seed of the times and victims of the faults.")
    least: float = option(default=1.0, metavar="NUMBER", help="Least updates per second, in every 30 seconds.")
    out: str | None = option("-o", "--out", metavar="FOLDER", help="New folder for the run; default: it is not kept.")
    page: str | None = option(metavar="FILE.html", help="Write a self-contained page about the result.")


@main.command()
@takes(ChaosOptions)
@json_option
def chaos(options: ChaosOptions) -> None:
    """Train for real while workers and the driver are killed, stopped and made to lie; check all that is promised.

    The run must take steps all the time, end with the right model, replay, be intact and leave nothing behind. Each
    fault that is named must occur. Exit codes: 0 all holds, 1 something does not, 2 bad input.

    \b
    anyk chaos --kill 2/s --stop 1/s --driver 2/min
    anyk chaos --strategy draco --corrupt 3/min --page chaos.html
    """
    from anyk.testing import FaultPlan
    from anyk.testing import chaos as run_chaos
    from anyk.views import chaos_page, chaos_table

    if options.page is not None:
        check_page(options.page, folder=Path(options.page).parent)
    faults = FaultPlan(**values_of(options, *(field.name for field in fields(FaultPlan))))
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run_chaos(
            options.strategy,
            options.cluster,
            faults,
            workers=options.workers,
            least=options.least,
            options=tuple(_forwarded(options)),
            out=options.out,
            tell=lambda sentence: click.echo(sentence, err=True),
        )
    except KeyboardInterrupt:
        warn("interrupted; all processes of the run have been ended")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, previous)
    verdicts = [f"{'ok    ' if one.holds else 'FAILED'} {one.name}: {one.text}" for one in result.findings]
    say(chaos_table(result), *verdicts)
    write_json(result.report())
    if options.page is not None:
        click.echo(f"page: {chaos_page(result, options.page)}", err=True)
    if not result.passed:
        failed = [finding for finding in result.findings if not finding.holds]
        raise RunFailed("; ".join(f"{finding.name}: {finding.text}" for finding in failed))


def _forwarded(options: ChaosOptions) -> Iterator[str]:
    """Yield those options that the training takes as they are."""
    for name in (*(field.name for field in fields(ProblemOptions)), "delays"):
        value = vars(options)[name]
        if value is not None and (name in _OWN or is_given(name)):
            yield from (f"--{name.replace('_', '-')}", str(value))
