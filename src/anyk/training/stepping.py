"""A loop of one's own: decoded gradients are handed out, and whoever gets them takes the step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.clusters.base import Cluster
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.optimizers.steps import State
from anyk.problems.base import Problem, Vector
from anyk.protocol import Strategy
from anyk.strategies import strategy as build_strategy
from anyk.training.launch import train
from anyk.training.run import Run

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Step:
    """A gradient of the objective, decoded, and the model to be changed with it, both of length d.

    ``number`` counts from 0. ``scale`` is what the strategy would multiply a learning rate with (less than 1 for stale
    gradients, say). Whatever ``model`` is when the next step is asked for is the next version.
    """

    number: int
    gradient: Vector
    model: Vector
    scale: float


@dataclass(frozen=True)
class _HandOver(Optimizer):
    """An optimiser that asks somebody else to step."""

    name = "own"
    steps: Any = None  # where steps are handed out, and their ends come back
    ends: Any = None

    @property
    def spec(self) -> str:
        return self.name

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        del state
        step = Step(t, gradient.astype(w.dtype, copy=False), w.copy(), scale)
        self.steps.put(step)
        self.ends.get()
        if out is None:
            return step.model
        out[:] = step.model
        return out


class Rounds:
    """The steps of a run, to be taken by whoever iterates over it; :func:`rounds` makes one.

    After the loop :attr:`run` is the :class:`~anyk.training.Run`.
    """

    run: Run | None = None

    def __init__(self, problem: Problem, strategy: Strategy, cluster: Cluster, into: Any, options: Any) -> None:
        self._what = problem, strategy, cluster
        self._into, self._options = into, options
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._left = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Step]:
        if self._left:
            raise BadInput("these rounds are over; ask for new ones")
        self._left = False
        thread = threading.Thread(target=self._train, name="anyk rounds")
        thread.start()
        try:
            while (step := self._steps.get()) is not None:
                if self._into is not None:
                    _put_gradient(self._into, step.gradient)
                yield step
                if self._into is not None:
                    step.model = _parameters(self._into)
                self._ends.put(None)
        finally:
            self._left = True
            self._ends.put(None)  # if it was left early, the run ends with the version that it has
            thread.join()
        if self._error is not None:
            raise self._error

    def _train(self) -> None:
        problem, strategy, cluster = self._what
        own = _HandOver(steps=self._steps, ends=self._ends)
        try:
            self.run = train(problem, strategy, cluster, optimizer=own, watch=self._watch, **self._options)
        except BaseException as error:
            self._error = error
        finally:
            self._steps.put(None)

    def _watch(self, driver: Any, evaluator: Any) -> None:
        del evaluator
        driver.reached = driver.reached or self._left


class _From:
    """A problem that begins where a module stands."""

    def __init__(self, problem: Problem, w: Vector) -> None:
        self._problem, self._w = problem, w

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def initial(self) -> Vector:
        return self._w


def rounds(
    problem: Problem,
    strategy: Strategy | str,
    cluster: Cluster,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    into: torch.nn.Module | None = None,
    evaluate_every: int | None = None,
) -> Rounds:
    """Gradients for a training loop of one's own: ``for step in anyk.rounds(…)``.

    Each :class:`Step` has the decoded gradient of the objective (regulariser included) and the model, which the loop
    changes in place. With ``into``, a PyTorch module whose trainable parameters are the problem's, gradients are put
    into its parameters' ``grad``, and what its parameters are at the end of the loop's body is the next version: an
    existing script keeps its optimiser, its scheduler and its clipping. Limits are those of :func:`anyk.train`; leaving
    the loop early ends the run.

    Raises :class:`~anyk.errors.BadInput` for strategies whose workers take the steps (local updates), and where the
    module's parameters are not as many as the problem's.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> for step in anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(workers=4), steps=20):
    ...     step.model -= 0.5 * step.gradient
    >>> bool(problem.loss(step.model) < problem.loss(problem.initial()))
    True
    """
    made = build_strategy(strategy, workers=cluster.workers) if isinstance(strategy, str) else strategy
    if getattr(made, "inner", None) is not None:
        raise BadInput(f"under '{made.spec}' workers take the steps: there are no gradients to hand out")
    if len(made.slots) > 1:
        raise BadInput(f"'{made.spec}' trains {len(made.slots)} models; a loop of one's own takes the steps of one")
    if into is not None:
        w = _parameters(into)
        if w.size != problem.dimension:
            raise BadInput(f"the module has {w.size:,} trainable parameters, the problem {problem.dimension:,}")
        problem = _From(problem, w.astype(problem.dtype, copy=False))
    return Rounds(problem, made, cluster, into, {"steps": steps, "seconds": seconds, "evaluate_every": evaluate_every})


def _parameters(module: torch.nn.Module) -> Vector:
    """The trainable parameters, in their order, as one vector."""
    parts = [p.detach().cpu().numpy().reshape(-1) for p in module.parameters() if p.requires_grad]
    w: Vector = np.concatenate(parts)
    return w


def _put_gradient(module: torch.nn.Module, gradient: Vector) -> None:
    import torch

    at = 0
    for p in module.parameters():
        if p.requires_grad:
            piece = torch.from_numpy(gradient[at : at + p.numel()].copy()).reshape(p.shape)
            p.grad = piece.to(device=p.device, dtype=p.dtype)
            at += p.numel()
