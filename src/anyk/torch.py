"""PyTorch training loops that keep their shape: an optimiser whose ``step()`` takes the decoded gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from anyk.base import BadInput, RunFailed, as_bad_input, describe_error
from anyk.clusters import Cluster, nodes_of_job
from anyk.clusters import cluster as build_cluster
from anyk.codes import Code
from anyk.problems import TorchProblem
from anyk.protocol import Strategy, Workers
from anyk.runs import Run, SlicedRounds, optimizer_rounds

if TYPE_CHECKING:
    import torch

    from anyk.runs import Step


class _Limit(Exception):
    """The run has reached its limit."""


def _same(one: Any, other: Any) -> bool:
    """Return whether two gradients are the same."""
    return one is other if one is None or other is None else bool((one == other).all())


def _make_cluster(spec: str, workers: int | tuple[int, int] | None) -> Cluster:
    """Return the cluster of a spec, by default with one worker on each node of a job."""
    if workers is None and spec.partition(":")[0] != "nodes":
        raise BadInput(f"the cluster '{spec}' needs the number of workers: give workers=…")
    return build_cluster(spec, workers=nodes_of_job() if workers is None else Workers.of(workers).most)


_ENDLESS = 10**9  # steps: the loop ends the run


class Optimizer(AbstractContextManager["Optimizer"]):
    """Wraps a PyTorch optimiser so that ``step()`` first computes the gradient on a cluster, by :func:`anyk.rounds`.

    ``optimizer`` has the parameters of ``problem.module``, the module from which the problem was made; its groups,
    schedulers and state work as without anyk. :meth:`step` has workers compute the partial gradients at the module's
    parameters, puts the decoded gradient into their ``grad`` and lets ``optimizer`` step, with its learning rates times
    the strategy's factor, if it has one (``lr_scale``). ``prepare`` is called in between. ``clip``: the Euclidean norm
    to which gradients are shortened before, as by ``torch.nn.utils.clip_grad_norm_`` of all parameters that were
    trainable when the problem was made; hooks come after it (``prepare`` may clip what they leave).
    ``cluster`` may be a spec, with the number of ``workers``; on ``nodes`` there is by default one on each, and all
    ranks but 0 leave the program here. Neither ``backward`` nor ``zero_grad`` is needed. Further options are as for
    :func:`anyk.rounds` (``evaluate``, ``seconds``, ``accumulate``, ``out``, ``go_on``, …); the run folder also stores
    the state of ``optimizer``. The run ends with :meth:`close` or the ``with`` block, or at ``steps``.

    On ``nodes:slices=nodes`` the nodes step, each its slice, with the numbers that ``optimizer.param_groups`` has at
    each :meth:`step`, so that schedulers and learning rates set by hand work; the state lies there as well. Meanwhile
    the module's parameters hold NaN. The model is read when the module is called or its ``state_dict()`` is, the state
    when ``optimizer.state_dict()`` is, both for checkpoints and at the end. There the loop cannot see gradients or
    change parameters, and ``prepare``, ``accumulate``, closures (LBFGS), hooks and running statistics of batch norms
    are refused.

    Raises :class:`~anyk.BadInput` if the optimiser has other parameters than the module, and the errors of
    :func:`anyk.rounds`.

    >>> import anyk, torch
    >>> X = torch.randn(40, 3)
    >>> module = torch.nn.Linear(3, 2)
    >>> problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
    >>> adam = torch.optim.Adam(module.parameters(), lr=0.1)
    >>> with anyk.torch.Optimizer(adam, problem, "frc:load=2", anyk.clusters.Simulated(4)) as optimizer:
    ...     for _ in range(20):
    ...         step = optimizer.step()
    >>> optimizer.run.steps, bool(optimizer.run.loss < problem.loss(problem.initial()))
    (20, True)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        problem: TorchProblem,
        strategy: Strategy | Code | str,
        cluster: Cluster | str,
        *,
        workers: int | tuple[int, int] | None = None,
        prepare: object = None,
        clip: float | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(problem, TorchProblem):
            raise BadInput(f"the problem must be a TorchProblem, got {type(problem).__name__}")
        if not hasattr(optimizer, "param_groups"):
            raise BadInput(f"the optimiser must be one of PyTorch, made, got {type(optimizer).__name__}")
        if not (prepare is None or callable(prepare)):
            raise BadInput(f"prepare must be a function without arguments, got {prepare!r}")
        problem.places_of([parameter for group in optimizer.param_groups for parameter in group["params"]])
        if isinstance(cluster, str):
            cluster = _make_cluster(cluster, workers)
            workers = None if isinstance(workers, int) else workers
        if workers is not None:
            options["workers"] = workers
        self.optimizer, self._prepare, self._problem = optimizer, prepare, problem
        parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
        self._needs_closure = parameter is not None and parameter.default is inspect.Parameter.empty
        limit = _ENDLESS if steps is None and seconds is None else steps
        options.setdefault("keep", optimizer)
        self._rounds = optimizer_rounds(
            optimizer, problem, strategy, cluster, prepare=prepare, clip=clip, steps=limit, seconds=seconds, **options
        )
        self._in_slices = isinstance(self._rounds, SlicedRounds)
        self._refuse_closure(None)
        self._steps: Iterator[Step] | None = None
        self._over = False

    def step(self, closure: Callable[[], Any] | None = None) -> Step:
        """Take the next step and return it, with its number, scale and receipt.

        An optimiser that evaluates a closure, such as LBFGS, takes a round for each evaluation, all at the same data;
        the step returned is the last. ``closure``: returns the loss of the module, and computes no gradient
        (``lambda: loss(module(X), y)``); by default the problem's loss is evaluated on the driver.

        Raises :class:`~anyk.BadInput` after the run's end, and the errors of the run.
        """
        if self._over:
            raise BadInput("the run is over: it was closed, or has reached its limit; make a new optimiser for another")
        if self._steps is None:
            self._steps = iter(self._rounds)
        self._refuse_closure(closure)
        try:
            if closure is not None or self._needs_closure:
                return self._step_by_rounds(closure)
            step = self._next()
            if not self._in_slices:
                self._step(step.scale)
        except StopIteration:
            self._over = True
            raise BadInput("the run has reached its limit of steps or seconds; leave the loop before") from None
        except BaseException:
            self.close()
            raise
        return step

    def _refuse_closure(self, closure: object) -> None:
        """Raise :class:`~anyk.BadInput` if the optimiser evaluates a closure, and the gradient lies in slices."""
        if self._in_slices and (closure is not None or self._needs_closure):
            raise BadInput(
                f"{type(self.optimizer).__name__} would evaluate a closure, which needs the whole gradient, and with "
                "slices no node has it; use an optimiser that steps without one, or a cluster without slices"
            )

    def _next(self) -> Step:
        """Return the next round, whose gradient is prepared in the module."""
        assert self._steps is not None
        step = next(self._steps)
        if self._prepare is not None:
            self._prepare()
        return step

    def _step_by_rounds(self, closure: Callable[[], Any] | None) -> Step:
        """Let the optimiser step with a closure that takes a round whenever it is evaluated."""
        import torch

        self._check_repeatable()
        self._rounds.evaluates = True
        steps: list[Step] = []

        def evaluate() -> torch.Tensor:
            try:
                steps[:] = [self._next()]
            except StopIteration:
                raise _Limit from None
            if steps[0].scale != 1.0:
                raise BadInput("a closure has no learning rate to scale: leave out lr_scale of the strategy")
            if closure is None:
                return torch.tensor(self._rounds.module_loss(), dtype=torch.float64)
            value = self._call_unchanged(closure)
            wrong = f"the closure of step() must return the loss, one number, got {value!r}"
            with as_bad_input(wrong, RuntimeError, TypeError, ValueError):
                return torch.as_tensor(value).detach().reshape(())

        evaluate.is_round = True  # type: ignore[attr-defined]
        try:
            self.optimizer.step(evaluate)  # type: ignore[arg-type]
        except _Limit:
            raise StopIteration from None
        if not steps:
            raise BadInput(f"{type(self.optimizer).__name__}.step(closure) has not evaluated the closure")
        return steps[0]

    def _check_repeatable(self) -> None:
        """Raise BadInput unless two evaluations of a closure have gradients of the same data."""
        strategy = self._rounds.strategy
        if strategy.layout.minibatches or strategy.layout.epochs or strategy.spec.startswith("async"):
            raise BadInput(
                f"under '{strategy.spec}' two evaluations of a closure have gradients of different data or "
                "models; use a strategy with full batches whose rounds wait for the newest model, such as 'uncoded'"
            )

    def _call_unchanged(self, closure: Callable[[], Any]) -> Any:
        """Return what a user's closure returns; raise BadInput if it changes the gradient."""
        import torch

        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
        with torch.enable_grad():
            value = closure()
        if not all(map(_same, before, [parameter.grad for parameter in parameters])):
            raise BadInput(
                "the closure of step() changes the gradient, which the cluster has computed: let it return the "
                "loss alone, without zero_grad() and backward(), or leave it out"
            )
        return value

    def _step(self, scale: float) -> None:
        """Let the optimiser step with its learning rates times ``scale``."""
        groups = self.optimizer.param_groups if scale != 1.0 else []
        if any("lr" not in group for group in groups):
            raise BadInput(
                f"a group of {type(self.optimizer).__name__} has no learning rate 'lr', which lr_scale of the strategy "
                "multiplies"
            )
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * scale
        try:
            self.optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def close(self) -> None:
        """End the run after the last step taken; if no step was taken, no run is started."""
        steps, self._over = self._steps, True
        if steps is not None:
            steps.close()  # type: ignore[attr-defined]  # the iterator of rounds is a generator

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"anyk.torch.Optimizer has step, close and run, but no '{name}'; it takes neither backward nor "
            "zero_grad, and states, groups and schedulers are those of the PyTorch optimiser that it was made of"
        )

    @property
    def run(self) -> Run:
        """The run, after it has ended; raises the error with which it failed."""
        try:
            return self._rounds.run
        except AttributeError as error:  # from a user's code; here Python would report a missing 'run'
            raise RunFailed(describe_error(error)) from error
