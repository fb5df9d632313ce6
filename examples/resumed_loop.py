"""A training loop of one's own that may be killed at any moment: started again, it goes on where it was.

Here the process kills itself in the middle of a step and is started again, until all steps are taken.
"""

import os
import signal
import subprocess
import sys
import tempfile

import torch

import anyk

STEPS = 60


def train(folder: str, killed_at: int) -> None:
    torch.manual_seed(0)
    X = torch.randn(300, 8)
    y = (X[:, 0] * X[:, 1] > 0).long()
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, y))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    cluster = anyk.clusters.Simulated(workers=6, delays=anyk.delays.Exponential(mean=0.2), seed=1)
    loop = anyk.rounds(
        problem, "frc:stragglers=1", cluster, steps=STEPS, into=module,
        out=folder, keep=[optimizer, schedule], go_on=True, checkpoint_every=0.0,
    )  # fmt: skip
    for step in loop:
        if step.number == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    print(f"{loop.run.steps} steps, loss {loop.run.loss:.6f}, learning rate {rate:.6f}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(f"{folder}/whole", killed_at=-1)
        done = subprocess.run([sys.executable, __file__, f"{folder}/killed"])
        print(f"killed by signal {-done.returncode}; started again", flush=True)
        train(f"{folder}/killed", killed_at=-1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], killed_at=25)
    else:
        main()
