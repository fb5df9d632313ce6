"""A residual network with batch norm, on images that are shifted at random. Four workers, of which three suffice.

On Ray: python examples/resnet.py ray 4
On MPI, one rank more than workers: mpiexec -n 5 python examples/resnet.py mpi 4
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import anyk


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return torch.relu(self.path(x) + self.short(x))


def resnet():
    begin = nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    return nn.Sequential(*begin, Block(8, 16, 1), Block(16, 32, 2), *end)


class Digits(torch.utils.data.Dataset):
    """Images of handwritten digits, 8 x 8; in training each is shifted by a pixel or none, another way each time."""

    def __init__(self, train):
        X, y = load_digits(return_X_y=True)
        part = slice(1400) if train else slice(1400, None)
        self.images = torch.tensor(X[part] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels, self.train = torch.tensor(y[part]), train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        shift = torch.randint(-1, 2, (2,)).tolist() if self.train else (0, 0)
        return self.images[i].roll(shift, (1, 2)), self.labels[i]


def make_problem():
    """Also for: anyk train --problem examples/resnet.py:make_problem --optimizer torch:AdamW --lr 0.01"""
    torch.manual_seed(0)
    return anyk.problems.TorchProblem(resnet(), nn.CrossEntropyLoss(), Digits(train=True), held_out=Digits(train=False))


if __name__ == "__main__":
    steps = 40
    optimizer = anyk.optimizers.TorchOptimizer("AdamW", schedule=f"OneCycleLR:max_lr=0.02,total_steps={steps}")
    where, workers = sys.argv[1:] or ("processes", "4")
    cluster = anyk.cluster(where, workers=int(workers), delays="exp:mean=0.05", seed=1)
    run = anyk.train(
        make_problem(), "frc:stragglers=1,batch=32", cluster, optimizer=optimizer, steps=steps, evaluate="every=40"
    )
    print(f"{steps} steps in {run.seconds:.1f} s, accuracy {run.metric['value']:.3f}")
