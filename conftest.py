"""Every test leaves behind what it found: no process, no descriptor, no shared memory, and its priority."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from hashlib import blake2b
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import psutil
import pytest

from forked_helpers import Parent, Starting

# the same examples in every run, so that a failure is the change's and not luck's; HYPOTHESIS_PROFILE=explore draws
# new ones each time, and prints how to repeat a failure; on a busy machine any example may take long
untimed: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, database=None, **untimed)
hypothesis.settings.register_profile("explore", print_blob=True, **untimed)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# a shell has what it starts in the background ignore interrupts, and nohup hang-ups, which some tests send
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.pop("COLUMNS", None)  # set by pytest-xdist; output into a pipe is as wide as it needs to be
os.environ["ANYK_RACE_PAGE"] = "none"  # a page takes a second; the tests of pages ask for one

if "ANYK_MESSAGES" in os.environ:  # a folder for the sentences of bad input that tests meet
    import messages

    messages.record(os.environ["ANYK_MESSAGES"])

# whether the kernel lists children, without a look at every process of the machine, which tests would wait for
LISTED = Path(f"/proc/self/task/{os.getpid()}/children").exists()

# of Playwright: a browser is started once for many tests, and below it processes come and go as they like
DRIVER = "node"

# of which a program has one until it ends, from when it first shares memory or semaphores by multiprocessing
resource_tracker.ensure_running()

ROOT = Path(__file__).parent
ONE_IN = 20  # slow tests that a draw chooses
DATA = Path(os.environ.get("ANYK_DATA", ROOT.parent / "shared" / "data"))


def _all_slow(path: Path) -> bool:
    """Return whether a file marks all of its tests as slow, which a quick run leaves out."""
    return path.suffix == ".py" and any(
        line.startswith("pytestmark") and "mark.slow" in line for line in path.read_text(encoding="utf-8").splitlines()
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare the imports of files whose tests are all slow when slow tests are deselected."""
    return True if config.getoption("markexpr") == "not slow" and _all_slow(collection_path) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", metavar="TEXT", help=f"of the slow tests run one in {ONE_IN}, those that TEXT draws")


def pytest_report_header(config: pytest.Config) -> str | None:
    draw = config.getoption("draw")
    return draw and f"one in {ONE_IN} slow tests, drawn by {draw}: scripts/test --all runs all of them"


def _may_be_left_out(item: pytest.Item) -> bool:
    """Return whether a test is slow without ``always``; of one that always runs, cases can be marked as slow."""
    return any(not mark.kwargs.get("always") for mark in item.iter_markers("slow"))


def _is_drawn(item: pytest.Item, draw: str) -> bool:
    """Return whether a text draws a test; the same text draws the same tests on every machine."""
    return int.from_bytes(blake2b(f"{draw} {item.nodeid}".encode()).digest()) % ONE_IN == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests that may take longest, so that at the end no process works alone."""
    if draw := config.getoption("draw"):
        left_out = {item for item in items if _may_be_left_out(item) and not _is_drawn(item, draw)}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    items.sort(key=lambda item: -max([300, *(mark.args[0] for mark in item.iter_markers("timeout") if mark.args)]))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import all tests without looking for garbage among what they import, a fourth of the time; it all stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


PARENTS: dict[str, Parent] = {}  # of helper programs that have imported torch, and of others
ENVIRONMENT = "anyk.runs.folder.environment"
STARTERS = ("anyk.clusters.processes.helper_program", "anyk.clusters.processes.aside")


def _remember_environment(module: ModuleType) -> None:
    """Ask git for the commit of this repository once, and packages for their versions, not at the start of each run."""
    commit, remembered = module._commit, functools.cache(module._commit)
    module._commit = lambda folder: (remembered if folder.is_relative_to(ROOT) else commit)(folder)
    module.version = functools.cache(module.version)


def _parent(library: str) -> Parent:
    if library not in PARENTS:
        PARENTS[library] = Parent(library, of=_parent("") if library else None)
    return PARENTS[library]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if ENVIRONMENT in sys.modules and not hasattr(sys.modules[ENVIRONMENT].version, "cache_info"):
        _remember_environment(sys.modules[ENVIRONMENT])
    if sys.platform != "linux":
        return
    itself = item.path.is_relative_to(ROOT / "tests/clusters/processes")  # the tests of how they are started
    library = "torch" if hasattr(getattr(item, "module", None), "torch") else ""
    for name in STARTERS:
        if name in sys.modules:
            assert hasattr(sys.modules[name], "subprocess"), f"{name} starts no helper program any more"
            sys.modules[name].subprocess = subprocess if itself else Starting(lambda: _parent(library))  # type: ignore[attr-defined]


def pytest_sessionfinish() -> None:
    while PARENTS:
        PARENTS.popitem()[1].close()


def _children() -> set[int]:
    """Processes below this one, at any depth."""
    if not LISTED:
        return {process.pid for process in psutil.Process().children(recursive=True)}
    below, new = set[int](), {os.getpid()}
    while new:
        new = {child for pid in new if not _name_of(pid).startswith(DRIVER) for child in _children_of(pid)} - below
        below |= new
    return below - {parent.pid for parent in PARENTS.values()}


def _name_of(pid: int) -> str:
    """A process's name; none where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _children_of(pid: int) -> list[int]:
    """The children of each thread of a process; none where it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _descriptors() -> int:
    """Open descriptors, fonts aside, which matplotlib keeps."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return 0
    count = 0
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # the listing's own is gone already
            count += not os.readlink(entry).endswith(".ttf")
    return count - sum(parent.descriptors for parent in PARENTS.values())


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {p.name for p in folder.iterdir() if "anyk" in p.name} if folder.is_dir() else set()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest):
    """Fail a test that leaves a process, descriptor or shared memory; with the mark ``in_process`` only a descriptor."""
    if request.node.get_closest_marker("in_process"):  # it can start nothing, and a look at all processes costs more
        descriptors = _descriptors()
        yield
        if _descriptors() > descriptors + 2:
            gc.unfreeze()
            gc.collect()
        assert _descriptors() <= descriptors + 2, "the test left descriptors open"
        return
    children, descriptors, memory, nice = _children(), _descriptors(), _shared_memory(), os.nice(0)
    yield
    assert os.nice(0) == nice, "the test left all that come after it a lower priority"
    gc.collect()  # a mapping keeps a descriptor for as long as a traceback keeps the mapping
    if _descriptors() > descriptors + 2:
        gc.unfreeze()
        gc.collect()
    gc.freeze()  # what is left is looked at no more: with torch and JAX loaded that would cost more than the tests
    for _ in range(200):  # on a busy machine the kernel may need a moment to take away what has ended
        if _children() <= children:
            break
        time.sleep(0.1)
    assert _children() <= children, "the test left processes behind"
    assert _shared_memory() <= memory, "the test left shared memory behind"
    assert _descriptors() <= descriptors + 2, "the test left descriptors open"


@pytest.fixture
def data_folder() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"no folder {DATA}; set ANYK_DATA to the folder with the real data sets")
    return DATA
