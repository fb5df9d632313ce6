"""Separate processes that read data, so that the driver's own process opens no file.

They start and end within a call. Work is sent by cloudpickle, as problems are sent to workers; results are
bytes, which are never unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from anyk.base.errors import BadInput, RunFailed, as_bad_input

_MOST_PROCESSES = 8
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_BOOT = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
_Results = tuple[str | None, list[bytes]]  # a process's error message, and its results before the error


def python_settings() -> tuple[dict[str, str], str]:
    """Return the environment of a process that computes on one thread, and the places of modules, as JSON."""
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    return dict(os.environ) | dict.fromkeys(_SINGLE, "1"), path


def map_in_processes(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """Return the result of ``work`` for each piece, in order, by up to 8 processes, at most one per processor.

    Raises :class:`~anyk.BadInput` with the message of a piece that fails.
    """
    import cloudpickle

    number = max(1, min(len(pieces), os.cpu_count() or 1, _MOST_PROCESSES))
    environment, path = python_settings()
    with as_bad_input("the data cannot be sent to processes that read it", Exception):
        orders = [cloudpickle.dumps((work, list(pieces[i::number]))) for i in range(number)]
    results: list[bytes] = [b""] * len(pieces)
    try:
        with ExitStack() as stack:
            processes = []
            for _ in orders:
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
                processes.append(stack.enter_context(process))
                stack.callback(process.kill)  # else leaving the stack would wait for it
            for process, order in zip(processes, orders, strict=True):
                assert process.stdin is not None
                process.stdin.write(order)  # all processes start work before this one waits for the first
                process.stdin.close()
                process.stdin = None
            for i, process in enumerate(processes):
                message, sent = msgspec.msgpack.decode(process.communicate()[0], type=_Results)
                if message is not None:
                    raise BadInput(message)
                results[i::number] = sent
    except (BrokenPipeError, msgspec.DecodeError):
        raise RunFailed("a process that reads the data has ended before it was done; see its message above") from None
    return results


def main() -> None:
    """Read work from standard input, and write its results to standard output: the entry point of a process."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a user's function may print
    work, pieces = pickle.load(sys.stdin.buffer)  # from the driver that started this process
    error, results = None, []
    try:
        for piece in pieces:
            results.append(work(piece))
    except BadInput as bad_input:
        error = str(bad_input)
    except Exception as failure:
        error = f"the data cannot be read: {type(failure).__name__}: {failure}"
    out.write(msgspec.msgpack.encode((error, results)))
    out.close()
