"""Seeds that fail, and the fewest deviations from an undisturbed run with which they still do.

As a program it runs seeds, as ``scripts/soak world`` does: ``python -m world.search [--seeds N] [--first SEED] [--runs KIND]``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .broken import Broken
from .choices import Deviations
from .folder import FolderWorld
from .kernel import Deadlock, Endless
from .world import ENDINGS, FAMILIES, NOT_MPI, OF_NODES, Options, World, in_folder, on_mpi, on_nodes

# what has to happen in a long series of seeds, besides every family of faults
STATES = (
    "resumed", "restarted", "abandoned", "helper replaced", "cancelled", "discarded", "late_counted", "lost", "retried",
    "preempted", "cancelled while sending", "interrupted at once", "reversed", "waited longer",
)  # fmt: skip
NOT_ON_MPI = {*NOT_MPI, "restarted", "helper replaced"}
NOT_ON_NODES = {"helper replaced", "wrong numbers"}  # that is an agent's business
ENDED = ("saved", "resumed", "from a checkpoint", "begun again", "interrupted", "interrupted at once")  # in folders


class Failure(NamedTuple):
    """A run in which something did not hold."""

    seed: int
    options: Options
    auditor: str
    what: str
    deviations: Deviations
    trace: list[tuple[object, ...]]

    def __str__(self) -> str:
        chosen = ", ".join(
            f"{stream} {number}: {option}" for (stream, number), option in [*self.deviations.items()][:12]
        )
        return f"seed {self.seed} ({self.options}): {self.auditor}: {self.what[:300]}\n  with {len(self.deviations)} deviations: {chosen}"


def attempt(seed: int, options: Options | None = None, only: Deviations | None = None) -> Failure | World:
    """Run a seed; return its world, or what failed."""
    kind = FolderWorld if options is not None and options.folder is not None else World
    world = kind(seed, options=options, only=only)
    try:
        world.run()
        return world
    except (Deadlock, Endless) as error:
        auditor, what = "progress", str(error)
    except Broken as error:
        auditor, what = error.auditor, str(error)
    except Exception as error:  # whatever the code under test raises
        auditor, what = "crash", f"{type(error).__name__}: {error}"
    return Failure(seed, world.options, auditor, what, dict(world.choices.deviations), world.kernel.trace)


def shrink(failure: Failure, runs: int = 300, enough: int = 0) -> Failure:
    """Return the failure with as few deviations as ``runs`` further runs find; stop at ``enough`` deviations."""
    best, size = failure, len(failure.deviations)
    while size and runs > 0 and len(best.deviations) > enough:
        start, before = 0, len(best.deviations)
        while start < len(best.deviations) and runs > 0 and len(best.deviations) > enough:
            kept = list(best.deviations.items())
            again = attempt(failure.seed, failure.options, dict(kept[:start] + kept[start + size :]))
            runs -= 1
            if isinstance(again, Failure) and again.auditor == failure.auditor:
                best = again
            else:
                start += size
        if size > 1 or len(best.deviations) == before:  # single ones until none can be left out
            size //= 2
    return best


def first_difference(failure: Failure) -> str:
    """Return the first call that differs from the run with one deviation less, which does not fail."""
    for left_out in reversed(failure.deviations):
        fewer = {key: option for key, option in failure.deviations.items() if key != left_out}
        passing = attempt(failure.seed, failure.options, fewer)
        if isinstance(passing, World):
            pairs = zip(failure.trace, passing.kernel.trace, strict=False)
            differing = next(((one, other) for one, other in pairs if one != other), None)
            return f"without {left_out} it passes; the first call that differs: {differing}"
    return "it fails without any single one of them"


def search(
    seeds: Iterable[int], options: Callable[[int], Options] = Options.draw, calls: hashlib._Hash | None = None
) -> tuple[Failure | None, Counter[str]]:
    """Run seeds until one fails; return the failure, and what happened in the runs before.

    ``calls``: a hash of all calls of all runs, which is the same on every version of Python.
    """
    happened = Counter[str]()
    for seed in seeds:
        outcome = attempt(seed, options(seed))
        if isinstance(outcome, Failure):
            return outcome, happened
        happened += outcome.happened
        if calls is not None:
            calls.update(repr(outcome.kernel.trace).encode())
    return None, happened


def main() -> int:
    """Run the seeds of the command line; return 1 if one fails, or something that must happen never did."""
    parser = argparse.ArgumentParser(prog="scripts/soak world")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    kinds = {"memory": Options.draw, "mpi": on_mpi, "nodes": on_nodes, "folder": in_folder}
    where = "in memory, there on MPI or nodes, or in folders"
    parser.add_argument("--runs", choices=tuple(kinds), default="memory", help=where)
    chosen = parser.parse_args()
    began = time.monotonic()
    kind, calls = chosen.runs, hashlib.sha256()
    failure, happened = search(range(chosen.first, chosen.first + chosen.seeds), kinds[kind], calls)
    if failure is not None:
        print(f"scripts/soak world --first {failure.seed} --seeds 1 --runs {kind}\n{failure}")
        least = shrink(failure)
        print(f"shrunk to {len(least.deviations)} deviations: {least}\n{first_difference(least)}")
        for call in least.trace[-12:]:
            print(" ", *call)
        return 1
    print(f"{chosen.seeds} seeds in {time.monotonic() - began:.0f} s: {dict(sorted(happened.items()))}")
    print(f"hash of all calls: {calls.hexdigest()[:16]}")
    expected = {
        "memory": {*FAMILIES, *STATES},
        "mpi": {*FAMILIES, *STATES} - NOT_ON_MPI,
        "nodes": {*FAMILIES, *STATES, *OF_NODES} - NOT_ON_NODES,
        "folder": {*ENDINGS, *ENDED, "damage"},
    }
    missing = [name for name in sorted(expected[kind]) if not happened[name]]
    if chosen.seeds >= 1000 and missing:
        print(f"never happened: {', '.join(missing)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
