"""Passes over data by processes of their own, so that nothing is opened where the driver runs its loop.

They are started and ended within a call. What is to be done goes to them by cloudpickle, as problems go to workers;
what comes back is bytes, which nobody unpickles.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anyk.errors import BadInput, MissingPackage, RunFailed

_MOST = 8
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_BOOT = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
_FRAME = struct.Struct("<?q")  # whether it went well, and how many bytes follow


def in_processes(work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
    """Return the result of ``work`` for each piece, in order, by up to 8 processes, at most one per processor.

    Raises :class:`~anyk.errors.BadInput` with the sentence of the first piece that fails.
    """
    import cloudpickle

    number = max(1, min(len(pieces), os.cpu_count() or 1, _MOST))
    environment = dict(os.environ) | dict.fromkeys(_SINGLE, "1")
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    try:
        orders = [cloudpickle.dumps((work, list(pieces[i::number]))) for i in range(number)]
    except Exception as error:
        raise BadInput(f"the data cannot be sent to processes that read it: {error}") from None
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _BOOT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        for _ in range(number)
    ]
    results: list[bytes] = [b""] * len(pieces)
    try:
        for process, order in zip(started, orders, strict=True):
            assert process.stdin is not None
            process.stdin.write(order)  # all are at work before the first is waited for
            process.stdin.close()
            process.stdin = None
        for i, process in enumerate(started):
            text = process.communicate()[0]
            results[i::number] = _unpacked(text, len(pieces[i::number]))
    except BrokenPipeError:
        raise RunFailed("a process that reads the data has ended; see its message above") from None
    finally:
        for process in started:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()
    return results


def _unpacked(text: bytes, count: int) -> list[bytes]:
    results, at = [], 0
    while at < len(text):
        good, size = _FRAME.unpack_from(text, at)
        body = text[at + _FRAME.size : at + _FRAME.size + size]
        if not good:
            raise BadInput(body.decode())
        results.append(body)
        at += _FRAME.size + size
    if len(results) < count:
        raise RunFailed("a process that reads the data has ended before it was done; see its message above")
    return results


def main() -> None:
    """Entry point of such a process: orders come by standard input, results go to standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's function prints is for people
    work, pieces = pickle.load(sys.stdin.buffer)  # from the driver that started this process
    for piece in pieces:
        try:
            body, good = work(piece), True
        except (BadInput, MissingPackage) as error:
            body, good = str(error).encode(), False
        except Exception as error:
            body, good = f"the data cannot be read: {type(error).__name__}: {error}".encode(), False
        out.write(_FRAME.pack(good, len(body)) + body)
        out.flush()
        if not good:
            return
