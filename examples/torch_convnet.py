"""A convolutional network with batch norm and dropout. Try: python examples/torch_convnet.py FOLDER_WITH_MNIST

The folder holds MNIST's (or Fashion-MNIST's) IDX files; without one, scikit-learn's digits. Four workers with an exact
gradient code: whoever comes last in a step is not waited for, and all replies are mini-batches drawn by key.
"""

import sys

import torch
from torch import nn

import anyk


class ConvNet(nn.Module):
    def __init__(self, side, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classes = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * (side // 4) ** 2, classes))

    def forward(self, x):
        return self.classes(self.features(x))


def images(X, side):
    return torch.tensor(X[:, : side * side], dtype=torch.float32).reshape(-1, 1, side, side)


def make_problem(folder=None, device="cpu"):
    """Also for: anyk train --problem examples/torch_convnet.py:make_problem --optimizer torch:AdamW --lr 0.005"""
    data = anyk.problems.load("mnist-idx", file=folder) if folder else anyk.problems.load("digits")
    side = int(data.X_train.shape[1] ** 0.5)  # a column of ones comes after the pixels
    X, X_test = images(data.X_train, side), images(data.X_test, side)
    torch.manual_seed(0)
    return anyk.problems.TorchProblem(
        ConvNet(side, len(data.classes)),
        nn.CrossEntropyLoss(),
        (X, data.y_train.astype(int)),
        held_out=(X_test, data.y_test.astype(int)),
        device=device,
    )


if __name__ == "__main__":
    problem = make_problem(*sys.argv[1:])
    steps = 60
    run = anyk.train(
        problem,
        "frc:stragglers=1,batch=32",
        anyk.clusters.Processes(workers=4, delays=anyk.delays.Exponential(mean=0.02), seed=1),
        optimizer=anyk.optimizers.TorchOptimizer("AdamW", lr=5e-3, schedule=f"CosineAnnealingLR:T_max={steps}"),
        steps=steps,
        evaluate=f"every={steps}",
    )
    print(f"{problem.dimension:,} parameters, {steps} steps in {run.seconds:.1f} s: {run.metric}")
    print(problem.module_at(run.model))  # with running statistics, in evaluation mode: ready to use
