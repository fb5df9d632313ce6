"""A helper program that is forked is what one that is started would be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forked_helpers import Parent, Starting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="helper programs are forked on Linux"),
]

SEEN = """
import os, signal, sys
own = int(sys.argv[1])
seen = sys.argv, os.getcwd(), __name__, os.environ.get("TRIED"), "HOME" in os.environ, os.getpgid(0) == os.getpid()
seen += sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1], os.read(0, 1), signal.getsignal(signal.SIGINT)
os.write(own, repr(seen).encode())
"""


@pytest.fixture(scope="module", params=["", "array"])
def forking(request: pytest.FixtureRequest) -> Iterator[Starting]:
    """From a process that was started, and from one that was forked from it and has imported another library."""
    parents = [Parent()]
    if request.param:
        parents.append(Parent(request.param, of=parents[0]))
    yield Starting(lambda: parents[-1])
    for parent in reversed(parents):
        parent.close()


def run(how: Any, code: str) -> tuple[bytes, int]:
    """What a program writes into its descriptor, and how it ends."""
    read, write = os.pipe()
    program = how.Popen(
        [sys.executable, "-c", code, str(write)],
        pass_fds=[write],
        stdin=subprocess.DEVNULL,
        env={"TRIED": "yes", "PATH": os.environ["PATH"]},
        process_group=0,
    )
    os.close(write)
    with open(read, "rb") as pipe:
        return pipe.read(), program.wait(250)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("sys.exit('too late')", 1),
        ("import atexit; atexit.register(os.write, own, b'at the end')", 0),
        ("import threading; threading.Timer(0.1, os.write, (own, b'late')).start()", 0),
        ("1 / 0", 1),
    ],
)
def test_it_sees_and_ends_as_a_started_one(
    forking: Starting, end: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = run(subprocess, SEEN + end)
    assert run(forking, SEEN + end) == started
    assert started[0].startswith(b"(['-c', ") and started[1] == status


def test_it_is_waited_for_and_killed(forking: Starting) -> None:
    def sleeping() -> Any:
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            code = [sys.executable, "-c", "import time; time.sleep(1000)"]
            env = dict(os.environ)
            return forking.Popen(code, pass_fds=[null], stdin=subprocess.DEVNULL, env=env, process_group=0)
        finally:
            os.close(null)

    program = sleeping()
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    program.kill()
    assert (program.wait(), program.wait(), Path(f"/proc/{program.pid}").exists()) == (-9, -9, False)
    program.kill()  # its number may be another's
