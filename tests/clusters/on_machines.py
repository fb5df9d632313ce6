"""Training on three machines that are namespaces of this one, while one of them is killed or its link is down.

As a program it tries the clusters that are named, as ``scripts/soak machines [ray mpi]`` does; it needs root. Each run
must end with the model that the cluster ``processes`` trains, unless the table says that the cluster cannot go on. With
``ray:slices=nodes`` a machine that holds a slice is killed, and ``--supervise`` must continue the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import anyk
from machines import Machines

COUNT = 3
BIN = Path(sys.executable).parent
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32, "RAY_USAGE_STATS_ENABLED": "0"}
TRAINING = """
import json, sys
import numpy as np
import anyk


class Begun(anyk.Callback):
    def on_step(self, info):
        if info.step == 5:
            print("BEGUN", flush=True)


cluster, folder, steps = sys.argv[1:]
problem = anyk.problems.from_data("synthetic:rows=240,features=20")
if cluster == "resume":
    run = anyk.resume(folder, problem=problem)
else:
    run = anyk.train(
        problem, "frc:load=2", cluster, workers=6, steps=int(steps), delays="exp:mean=0.2", seed=3, out=folder,
        checkpoint_every=0.5, callbacks=[Begun()],
    )
seconds = np.diff(run.history["seconds"], prepend=0.0)
found = {"steps": run.steps, "loss": run.loss, "model": run.model.tobytes().hex()[:64], "slowest": seconds[5:].max(),
         "median": float(np.median(seconds[5:])), "lost": run.ledger["lost"]}
print("FOUND", json.dumps(found), flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, **THREADS, **TOKEN, "PATH": f"{BIN}:{os.environ['PATH']}"}


# ------------------------------------------------------------------------------------------- how clusters start


@contextmanager
def ray(machines: Machines) -> Iterator[Callable[[list[str]], subprocess.Popen[str]]]:
    """A Ray cluster over all machines; what is started on the first one belongs to it."""
    options = ["--num-cpus=2", "--object-store-memory=300000000", "--disable-usage-stats"]
    head = [f"--node-ip-address={machines.address(0)}", "--port=6379", "--include-dashboard=false"]
    machines.run(0, [str(BIN / "ray"), "start", "--head", *head, *options], env=environment())
    for machine in range(1, machines.count):
        joining = [f"--address={machines.address(0)}:6379", f"--node-ip-address={machines.address(machine)}"]
        machines.run(machine, [str(BIN / "ray"), "start", *joining, *options], env=environment())
    yield lambda script: started(machines, script)


@contextmanager
def mpi(machines: Machines) -> Iterator[Callable[[list[str]], subprocess.Popen[str]]]:
    """MPI ranks on all machines that live, whose proxies are started by hand, as ssh would."""

    def start(script: list[str]) -> subprocess.Popen[str]:
        living = [machine for machine in range(machines.count) if machines.lives(machine)]
        hosts = ",".join(map(machines.address, living))
        launcher = [str(BIN / "mpiexec"), "-launcher", "manual", "-iface", "eth0", "-hosts", hosts, "-n", "7"]
        job = started(machines, [*launcher, *script])
        assert job.stdout is not None
        for machine in living:
            line = job.stdout.readline()
            assert line.startswith("HYDRA_LAUNCH: "), line
            machines.start(machine, line.split()[1:], env=environment(), stderr=subprocess.DEVNULL)
        return job

    yield start


def started(machines: Machines, command: list[str]) -> subprocess.Popen[str]:
    return machines.start(0, command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


STARTS = {"ray": ray, "mpi": mpi}
SPECS = {"ray": "ray:address=10.77.0.1:6379", "mpi": "mpi"}

# ------------------------------------------------------------------------------------------- faults


def killed(machines: Machines) -> None:
    machines.kill(2)


def disconnected(machines: Machines) -> None:
    machines.link(2, up=False)
    time.sleep(10.0)
    machines.link(2, up=True)


FAULTS: dict[str, Callable[[Machines], None]] = {
    "none": lambda machines: None,
    "a machine is killed": killed,
    "a link is down for 10 s": disconnected,
}
ENDS = {("mpi", "a machine is killed")}  # MPI cannot go on without a rank


def train(cluster: str, fault: str) -> tuple[dict[str, Any] | str, bool]:
    """Return what a run on machines found, or the last line of what it printed, and whether it had to be resumed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Machines(COUNT, rate="1gbit") as machines,
        STARTS[cluster](machines) as start,
    ):
        disturbing = threading.Thread(target=FAULTS[fault], args=(machines,))
        job = start(command(folder, SPECS[cluster]))
        assert job.stdout is not None
        printed: list[str] = []
        for line in job.stdout:
            printed.append(line.rstrip())
            if printed[-1] == "BEGUN":
                disturbing.start()
        job.wait()
        assert disturbing.ident is not None, f"the run ended before the fault: {printed}"
        disturbing.join()
        found = found_in(printed)
        if isinstance(found, dict):
            return found, False
        again = start(command(folder, "resume"))
        assert again.stdout is not None
        return found_in([line.rstrip() for line in again.stdout]), True


def command(folder: str, cluster: str) -> list[str]:
    script = Path(folder, "training.py")
    script.write_text(TRAINING, encoding="utf-8")
    return [sys.executable, str(script), cluster, str(Path(folder, "run")), "120"]


def found_in(printed: list[str]) -> dict[str, Any] | str:
    for line in printed:
        if line.startswith("FOUND "):
            found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
            return found
    return next((line for line in reversed(printed) if line.strip()), "nothing was printed")


def reference() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        training = command(folder, "processes")
        done = subprocess.run(training, env=environment(), capture_output=True, text=True, check=True)
    found = found_in(done.stdout.splitlines())
    assert isinstance(found, dict), found
    return found


def train_in_slices() -> str:
    """Kill the machine of a slice while Ray trains under ``--supervise``; return what is not as it should be."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Machines(COUNT, rate="1gbit") as machines,
        ray(machines) as start,
    ):
        train = [sys.executable, "-m", "anyk", "train", "--data", "synthetic:rows=24,features=300000", "--quiet"]
        train += [
            "--strategy",
            "frc:load=2",
            "--optimizer",
            "adamw:lr=0.001",
            "--delays",
            "constant:0.1",
            "--seed",
            "3",
        ]
        train += ["--workers", "4", "--steps", "150"]
        ends = Path(folder, "on-processes"), Path(folder, "in-slices")
        on_processes = [*train, "--cluster", "processes", "--out", str(ends[0])]
        subprocess.run(on_processes, env=environment(), capture_output=True, check=True)
        in_slices = [*train, "--cluster", f"{SPECS['ray']},slices=nodes", "--out", str(ends[1]), "--supervise"]
        job = start(in_slices)
        printed: list[str] = []
        reading = threading.Thread(target=lambda: printed.extend(job.stdout or ()))
        reading.start()
        while not list(ends[1].rglob("checkpoint*")) and job.poll() is None:
            time.sleep(0.1)
        machines.kill(2)
        reading.join()
        said = [line for line in printed if "was lost with its slice of the model" in line]
        resumed = [line for line in printed if "the run lost a machine; resuming it again" in line]
        if job.wait() or not len(said) == len(resumed) == 1:
            return f"it ended with {job.returncode}: {''.join(printed)}"
        print(said[0], end="")
        with anyk.Run.open(ends[0]) as expected, anyk.Run.open(ends[1]) as run:
            equal = np.array_equal(run.model, expected.model)
            return "" if equal and run.steps == 150 else f"the model is another one after {run.steps} steps"


def main() -> int:
    if "slices" in sys.argv[1:]:
        return tell_of_slices()
    expected = reference()
    print(f"processes: loss {expected['loss']:.6f}, slowest step {expected['slowest']:.2f} s")
    failures = 0
    for cluster in sys.argv[1:] or list(STARTS):
        for fault in FAULTS:
            found, resumed = train(cluster, fault)
            ended = ": the program ended and was resumed on the other machines" * resumed
            if isinstance(found, str):
                print(f"{cluster}, {fault}{ended}: FAILED: {found}", flush=True)
                failures += 1
                continue
            equal = found["model"] == expected["model"]
            failures += not equal or resumed != ((cluster, fault) in ENDS)
            print(
                f"{cluster}, {fault}{ended}: the model is {'equal' if equal else 'ANOTHER'}, loss {found['loss']:.6f}, "
                f"slowest step {found['slowest']:.2f} s, {found['lost']} chunks lost",
                flush=True,
            )
        if cluster == "ray":
            failures += tell_of_slices()
    return int(failures > 0)


def tell_of_slices() -> int:
    """Tell what a run in slices on Ray came to; return how many checks failed."""
    failure = train_in_slices()
    outcome = f"FAILED: {failure}" if failure else "the run was resumed on the other machines: the model is equal"
    print(f"ray:slices=nodes, a machine is killed: {outcome}", flush=True)
    return int(bool(failure))


if __name__ == "__main__":
    sys.exit(main())
