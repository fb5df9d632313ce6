"""Fleets whose workers leave with notice and return, on processes of this machine: what a departure costs.

    python benchmarks/fleets.py [STEPS, 1600] [REPEATS, 3]

8 workers, 4 preemptions with notice, spread over the run. The total time is divided by that of the virtual clock with
the same delays and outages (the floor), beside the same ratio of a run in which no worker leaves: their quotient is the
price of changing the fleet. The mean duration of steps within 5 of a departure or return is divided by that of all
others.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

import anyk
from anyk.clusters import Outage, Processes, Simulated
from anyk.runs import drain

WORKERS, DELAYS = 8, "exp:mean=0.02"
PROBLEM = anyk.problems.from_data("synthetic:rows=6400,features=100")


class Preemptions(anyk.Callback):
    """Drains a worker at each of some steps, and lets it return 50 steps later."""

    def __init__(self, folder: Path, at: list[int]) -> None:
        self.folder, self.at = folder, at

    def on_step(self, info: anyk.runs.callbacks.StepInfo) -> None:
        for number, step in enumerate(self.at):
            if info.step in (step, step + 50):
                drain(self.folder, [2 * number], back=info.step != step)


def measure(steps: int, seed: int, at: list[int]) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp()) / "run"
    cluster = Processes(WORKERS, delays=DELAYS, seed=seed)
    run = anyk.train(
        PROBLEM, "uncoded", cluster, workers=(4, WORKERS), steps=steps, out=folder, evaluate=None,
        callbacks=[Preemptions(folder, at)],
    )  # fmt: skip
    gone: dict[int, float] = {}
    outages = []
    for kind, time, worker in run.log.rows("SELECT kind, time, worker FROM events WHERE kind IN ('Lost', 'Joined')"):
        if kind == "Lost":
            gone[worker] = time
        else:
            outages.append(Outage(gone.pop(worker), worker, time, notice=0.05))
    virtual = Simulated(WORKERS, delays=DELAYS, seed=seed, outages=outages)
    floor = anyk.train(PROBLEM, "uncoded", virtual, workers=(4, WORKERS), steps=steps, evaluate=None)
    durations = np.diff(run.log.rows("SELECT time FROM updates ORDER BY version"), axis=0).ravel()
    changes = [step for first in at for step in (first, first + 50)]
    near = np.array([any(abs(step - change) <= 5 for change in changes) for step in range(1, len(durations) + 1)])
    endings = dict(run.log.rows("SELECT ending, count(*) FROM chunks WHERE version < ? GROUP BY ending", (steps,)))
    values = {"ratio": run.seconds / floor.seconds, "recomputed": float(endings.get("lost", 0))}
    if at:
        values["near"] = float(durations[near].mean() / durations[~near].mean())
    run.close()
    return values


def main() -> None:
    steps, repeats = (int(text) for text in [*sys.argv[1:], "1600", "3"][:2])
    at = [steps * part // 5 for part in (1, 2, 3, 4)]
    rows = [(measure(steps, seed, at), measure(steps, seed, [])) for seed in range(repeats)]
    changing, fixed = ([row[which]["ratio"] for row in rows] for which in (0, 1))
    pairs = [a / b for a, b in zip(changing, fixed, strict=True)]
    print(
        f"times the floor: {statistics.median(changing):.3f} with 4 preemptions, {statistics.median(fixed):.3f} without"
    )
    print(f"price of 4 preemptions: {statistics.median(pairs):.3f} (from {min(pairs):.3f} to {max(pairs):.3f})")
    print(f"steps near a change against others: {statistics.median(row[0]['near'] for row in rows):.3f}")
    print(f"tasks computed in vain: {[row[0]['recomputed'] for row in rows]}")


if __name__ == "__main__":
    main()
