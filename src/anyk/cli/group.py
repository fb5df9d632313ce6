"""The group of all commands, and the exit code of each error."""

from __future__ import annotations

import errno
import sys

import click

from anyk.cli.help import Listing
from anyk.cli.output import drop_output, plain_where_needed, warn
from anyk.errors import RAISED, BadInput, RunFailed, describe_error

NOT_BEGUN = "anyk: interrupted before the run began; start it again"


class _Group(Listing):
    """Turns the package's errors into one sentence and an exit code."""

    sections = {  # noqa: RUF012
        "Train": ("race", "train", "resume"),
        "Runs": ("show", "report", "watch", "predict", "coefficients", "export", "replay", "verify", "chaos"),
        "Measured fleets": ("record", "explain", "plan", "check", "trace"),
        "Codes, graphs and papers": ("codes", "graphs", "reproduce", "decompile"),
        "Lists": ("strategies", "delays", "data", "compression", "callbacks", "cluster"),
    }

    def invoke(self, ctx: click.Context) -> object:
        plain_where_needed()
        try:
            return super().invoke(ctx)
        except BadInput as error:
            warn(str(error))
            ctx.exit(2)
        except PermissionError as error:  # of a folder; files are checked earlier
            place = f"'{error.filename}' is not accessible" if error.filename else ""
            warn(f"{place} (permission denied)" if place else "permission denied")
            ctx.exit(2)
        except RunFailed as error:
            warn(str(error))
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo(NOT_BEGUN, err=True)
            ctx.exit(130)
        except MemoryError as error:
            reason = f" ({error})" if str(error) else ""
            warn(f"this takes more memory than there is{reason}; use fewer workers or less data")
            ctx.exit(2)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of the output has ended, which is no error
            ctx.exit(0)
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
            if any(note.startswith(RAISED) for note in notes):
                warn(f"{describe_error(error)}; {'; '.join(notes)}")
                ctx.exit(1)
            if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                raise
            drop_output()
            warn(f"the output cannot be written ({error.strerror})")
            ctx.exit(2)


_SETTINGS = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ANYK", "show_default": True}


@click.group(cls=_Group, context_settings=_SETTINGS)
@click.version_option(package_name="anyk", message="anyk %(version)s")
def main() -> None:
    """Train by gradient descent with the replies of any k of n workers, without waiting for stragglers.

    A SPEC is name:key=value,key=value, as in frc:load=3 or exp:mean=0.5.

    Exit codes: 0 done, 1 the run failed (resume it), 2 bad input, 130 interrupted (resume it).
    """
