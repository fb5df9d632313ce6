"""The command line: parses, calls, prints."""

from __future__ import annotations

import errno
import sys

import click

from anyk.cli.output import drop_output, plain_where_needed
from anyk.errors import RAISED, BadInput, RunFailed, told

NOT_BEGUN = "anyk: interrupted before the run began; start it again"


class _Group(click.Group):
    """Turns the package's errors into one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        plain_where_needed()
        try:
            return super().invoke(ctx)
        except BadInput as error:
            click.echo(f"anyk: {error}", err=True)
            ctx.exit(2)
        except PermissionError as error:  # of a folder that may not be looked into; files have sentences of their own
            what = (
                f"'{error.filename}' is not accessible (permission denied)" if error.filename else "permission denied"
            )
            click.echo(f"anyk: {what}", err=True)
            ctx.exit(2)
        except RunFailed as error:
            click.echo(f"anyk: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo(NOT_BEGUN, err=True)
            ctx.exit(130)
        except MemoryError as error:
            reason = f" ({error})" if str(error) else ""
            click.echo(f"anyk: this takes more memory than there is{reason}; use fewer workers or less data", err=True)
            ctx.exit(2)
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has gone, and nobody needs to hear of it
            ctx.exit(0)
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
            if any(note.startswith(RAISED) for note in notes):
                click.echo(f"anyk: {told(error)}; {'; '.join(notes)}", err=True)
                ctx.exit(1)
            if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                raise
            drop_output()
            click.echo(f"anyk: the output cannot be written ({error.strerror})", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ANYK"})
@click.version_option(package_name="anyk", message="anyk %(version)s")
def main() -> None:
    """Train by gradient descent with the replies of any k of n workers, without waiting for stragglers.

    \b
    anyk race                    train with four strategies under the same stragglers, and compare
    anyk train --strategy SPEC   train with one strategy
    anyk report RUN              write one HTML page about runs or races; see also export
    anyk watch                   serve live pages about runs while they go on
    anyk predict RUN FILE        predict new rows with a run's model; see also coefficients
    anyk codes                   compare gradient codes; see also codes show, codes compare
    anyk explain SOURCE          explain what slow workers cost in a measured fleet; see also record
    anyk plan SOURCE             say which strategy to run on a measured fleet, and what that gains
    anyk check RUN               say whether a run has kept the promise of its plan, and if not, why
    anyk trace show FILE         describe measured delays; see also trace record, and plan
    anyk reproduce               reproduce figures of papers and check their claims
    anyk graphs                  list graphs for averaging among neighbours; see also graphs show
    anyk decompile FUNCTION      write a JAX function as Python, for JAX or for NumPy
    anyk strategies | delays | data | compression | callbacks    list what is available

    A SPEC is name:key=value,key=value, as in frc:load=3 or exp:mean=0.5.

    Exit codes: 0 done, 1 the run failed (resume it), 2 bad input, 130 interrupted (resume it).
    """


# they add their commands to the group above
from anyk.cli import (  # noqa: E402
    clusters,
    codes,
    decompile,
    fleets,
    graphs,
    lists,
    predictions,
    races,
    reports,
    reproduce,
    runs,
    traces,
)

__all__ = [
    "clusters",
    "codes",
    "decompile",
    "fleets",
    "graphs",
    "lists",
    "main",
    "predictions",
    "races",
    "reports",
    "reproduce",
    "runs",
    "traces",
]
