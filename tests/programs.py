"""Python programs, each in a process that is forked from one that has imported what they would all import.

What pages and examples do takes a fraction of a second; importing NumPy, SciPy, pandas and scikit-learn for it takes two
seconds of a core, a hundred times over. Of this project nothing is imported beforehand, and so it is imported as by a
user. Nor are PyTorch, whose presence changes what this project does, and JAX, which forks may not share.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("numpy", "scipy.sparse", "scipy.stats", "pandas", "sklearn.datasets", "click", "rich.console", "rich.table")


def parent() -> subprocess.Popen[str]:
    """The process that programs are forked from, just started."""
    command, pipe = [sys.executable, "-W", "error", __file__], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)


class Programs:
    """Runs programs, one after the other, as ``python -W error`` would."""

    def __init__(self) -> None:
        self._parent = parent()

    def script(self, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        """``python PATH`` in a folder."""
        return self._run({"folder": str(folder), "script": str(path)}, words=[str(path)])

    def module(self, name: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """``python -m NAME WORDS`` in a folder."""
        return self._run({"folder": str(folder), "module": name}, words=[name, *words])

    def _run(self, program: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            stdout, stderr = Path(scratch, "stdout"), Path(scratch, "stderr")
            request = {**program, "words": words, "stdout": str(stdout), "stderr": str(stderr)}
            try:
                print(json.dumps(request), file=self._parent.stdin, flush=True)
                status = int(self._parent.stdout.readline())
            except BaseException:  # as a test that takes too long ends: its program must not answer the next one
                self.close()
                self._parent = parent()
                raise
            return subprocess.CompletedProcess(words, status, stdout.read_text("utf-8"), stderr.read_text("utf-8"))

    def close(self) -> None:
        """End the process that programs are forked from, and a program that still runs."""
        os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()


def next_program() -> dict[str, str]:
    """Fork a process for each request and answer with its exit status; return in each of these with its request."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(request: dict[str, str]) -> None:
    """Be the program that is asked for, to the end of this process."""
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(request[name], os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")]
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(request["folder"])
    sys.argv[:] = request["words"]
    if "script" in request:
        sys.path[0] = str(Path(request["script"]).parent)
        runpy.run_path(request["script"], run_name="__main__")
    else:
        sys.path[0] = request["folder"]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for package in PACKAGES:
        importlib.import_module(package)
    become(next_program())
