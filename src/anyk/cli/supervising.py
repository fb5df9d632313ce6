"""``--supervise``: train in a separate process, and resume the run when that process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from anyk.base import SUPERVISED, StateLost
from anyk.cli.output import warn
from anyk.runs.api import CHECKPOINT_FILE, is_locked

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IN_VAIN = 4  # deaths without a new checkpoint after which the run is not resumed again
_LONGEST, _LOOKS = 300.0, 0.2  # seconds to wait for processes that were left behind, and between two looks
_KILLED = range(-64, 0)  # exit codes of processes that a signal has ended
_PAUSE = 1.0  # seconds before the run is resumed, so that a machine without memory gets some back


def supervised() -> bool:
    """Return whether this process is the one that a supervisor has started."""
    return SUPERVISED in os.environ


def supervises() -> bool:
    """Return whether this process is one that only starts another, which trains."""
    return "--supervise" in sys.argv and not supervised()


def supervise(resume: click.Command, folder: Path) -> int:
    """Train in a separate process as this command line specifies, until it ends by itself; return its exit code.

    A process that is killed by a signal (also for want of memory), or that lost a machine with a part of the model, is
    resumed from its last checkpoint. Bad input and runs that fail or diverge are final. An interrupt of this process is
    forwarded, and ends both.
    """
    train = [argument for argument in sys.argv[1:] if argument != "--supervise"]
    command = [*train, "--out", str(folder)]
    resume_command = ["resume", str(folder), "--trust", *_shared(train, resume)]
    in_vain, newest = 0, _checkpoint(folder)
    with _Forwarding() as forwarding:
        while not forwarding.interrupted:
            process = subprocess.Popen(
                [sys.executable, "-m", "anyk", *command], env=os.environ | {SUPERVISED: "1"}, process_group=0
            )
            code = forwarding.wait(process)
            if code not in (StateLost.exit_code, *_KILLED) or forwarding.interrupted:
                return code if code >= 0 else 128 - code
            reached = _checkpoint(folder)
            in_vain = in_vain + 1 if reached == newest else 0
            newest = reached
            ended = f"was killed ({signal.Signals(-code).name})" if code < 0 else "lost a machine"
            if in_vain >= _IN_VAIN:
                warn(f"the run {ended} {in_vain} times without a new checkpoint; it is not resumed")
                return 1
            command = resume_command if (folder / "run.toml").exists() or (folder / "auto.toml").exists() else command
            warn(f"the run {ended}; {'resuming' if command is resume_command else 'starting'} it again")
            time.sleep(_PAUSE)
            forwarding.wait_for_lock(folder)
    return 130


class _Forwarding(ExitStack):
    """Forwards signals to the process that trains, which is in a separate group and receives each signal once."""

    interrupted = False
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self) -> None:
        super().__init__()
        for number in _FORWARDED:
            if signal.getsignal(number) == signal.SIG_IGN:  # nohup ignores SIGHUP, for the process that trains as well
                continue
            self.callback(signal.signal, number, signal.signal(number, self._forward))

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a process, forward signals to it meanwhile, and return its exit code."""
        self._process = process
        if self.interrupted:  # before the process started
            process.terminate()
        return process.wait()

    def wait_for_lock(self, folder: Path) -> None:
        """Wait until no process has the folder locked: the one that was killed may have left some that still end."""
        until, said = time.monotonic() + _LONGEST, False
        while not self.interrupted and time.monotonic() < until and is_locked(folder):
            if not said:
                warn(f"a process that the run has left behind still has '{folder}' locked; waiting for its end")
                said = True
            time.sleep(_LOOKS)

    def _forward(self, number: int, _: FrameType | None) -> None:
        self.interrupted = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _shared(arguments: Sequence[str], command: click.Command) -> Iterable[str]:
    """Yield those options of a command line that another command has as well, with their values."""
    options = {name: option for option in command.params for name in option.opts}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, _ = argument.partition("=")
        option = options.get(name)
        if isinstance(option, click.Option):
            yield argument
            if not option.is_flag and not equals:
                yield next(remaining)


def _checkpoint(folder: Path) -> tuple[int, ...]:
    """Return the times of the checkpoints of a folder, which change whenever one is written."""
    return tuple(sorted(file.stat().st_mtime_ns for file in folder.rglob(CHECKPOINT_FILE)))
