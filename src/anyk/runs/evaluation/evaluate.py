"""The evaluation of a model while it is trained: how often, on which data, and on how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput
from anyk.base.registries import Registry
from anyk.base.specs import show_spec
from anyk.clusters.processes.aside import Aside
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, abilities_of
from anyk.problems.data.streams import NO_LOSS
from anyk.protocol import Strategy
from anyk.runs.limits import Duration, Limits, check_limits, first_metrics

OFF = "none"  # the spec of a run that is not evaluated
_registry: Registry[Evaluate] = Registry("evaluation")


@_registry.register("evaluate")
@typed
@dataclass(frozen=True)
class Evaluate:
    """The versions of a model that are evaluated, and the data; evaluation does not count on the run's clock.

    ``every``: versions whose number is a multiple of it, besides the first and the last; by default a few hundred.
    ``seconds``: the least distance between two evaluated versions on the run's clock. ``samples``: the number of
    training samples, and of held-out samples, to evaluate on, the same each time; by default all.

    ``on``: ``train`` for the objective on the training data, and the metric if there is held-out data; ``held_out`` for
    the metric alone. The default is ``train`` for data in memory, and ``held_out`` for data that the driver would have
    to read item by item; without held-out data these are not evaluated.

    ``where``: ``driver`` delays the run's steps by a twentieth at most. ``aside`` evaluates in a separate process on
    the driver's machine, for which no step waits, soon after a version is made; only that process reads the data, and
    data in memory are copied to it. On the ``workers``, which is for the training loss, each worker evaluates its own
    data between the partitions of its tasks, which slows the run by about a twentieth at most, and the driver reads no
    training data; ``on`` is then ``train`` by default. On a virtual clock the driver computes in place of the workers.

    Raises :class:`~anyk.BadInput` for numbers out of range.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=4, steps=9, evaluate=Evaluate(every=5, samples=50))
    >>> run.history["step"][run.history["loss"] > 0].tolist()
    [0, 5, 9]
    >>> anyk.train(problem, "uncoded", "simulated", workers=4, steps=9, evaluate=None).loss is None
    True
    """

    every: AtLeastOne | None = None
    samples: AtLeastOne | None = None
    on: Literal["train", "held_out"] | None = None
    seconds: Duration | None = None
    where: Literal["driver", "aside", "workers"] = "driver"

    def __post_init__(self) -> None:
        if self.where == "workers" and self.on == "held_out":
            raise BadInput(
                "workers hold the training data, and held-out data is evaluated on the driver's machine; give "
                "where='driver' or 'aside', or on='train'"
            )

    @property
    def spec(self) -> str:
        """The spec, such as ``every=10,samples=500``; empty if all values are the defaults."""
        return show_spec("", vars(self), vars(USUAL)).removeprefix(":")


USUAL = Evaluate()


def read_evaluate(evaluate: Evaluate | str | None) -> Evaluate | None:
    """Return the object of a spec; None for no evaluation.

    >>> read_evaluate("every=10,on=held_out"), read_evaluate("none")
    (Evaluate(every=10, samples=None, on='held_out', seconds=None, where='driver'), None)
    """
    if not isinstance(evaluate, str):
        return evaluate
    stripped = evaluate.strip()
    if stripped == OFF:
        return None
    if stripped and "=" not in stripped:
        raise BadInput(
            f"evaluate must be 'none' or settings such as every=10,samples=500,on=held_out, got '{evaluate}'"
        )
    return _registry.build(f"evaluate:{stripped}" if stripped else "evaluate")


def spec_of(evaluate: Evaluate | None) -> str:
    """Return the spec, also of no evaluation."""
    return OFF if evaluate is None else evaluate.spec


def resolve_data(evaluate: Evaluate | None, problem: Problem) -> Evaluate | None:
    """Return the evaluation with the problem's default for ``on``; None if there is nothing to evaluate.

    Raises :class:`~anyk.BadInput` if the problem cannot be evaluated in this way.
    """
    if evaluate is not None and evaluate.samples is None and evaluate.on == "train" and abilities_of(problem).endless:
        raise BadInput(NO_LOSS)
    if evaluate is None or evaluate.on is not None:
        return evaluate
    on = "train" if evaluate.where == "workers" else abilities_of(problem).evaluated_on
    return None if on is None else replace(evaluate, on=on)


@contextmanager
def evaluating(evaluate: Evaluate | None, problem: Problem) -> Iterator[Problem]:
    """Yield the problem that is evaluated: the problem itself, a sample of it, or one that another process evaluates.

    Raises :class:`~anyk.BadInput` if the problem cannot be evaluated in this way.
    """
    if evaluate is not None and evaluate.where == "aside":
        with Aside(problem, evaluate.samples) as aside:
            yield aside.problem
    elif evaluate is None or evaluate.samples is None or evaluate.where == "workers":  # workers sample
        yield problem
    else:
        yield abilities_of(problem).sampled(evaluate.samples)


def check_evaluation(problem: Problem, evaluate: Evaluate | None, limits: Limits) -> None:
    """Raise :class:`~anyk.BadInput` if runs on a problem cannot be evaluated or cannot reach their limits."""
    with evaluating(evaluate, problem) as evaluated:
        check_held_out(evaluate, evaluated)
        check_limits(evaluated, limits)


def check_evaluate(evaluate: Evaluate | None, strategy: Strategy, target: float | None) -> None:
    """Raise :class:`~anyk.BadInput` if a strategy or a target needs a value that is not evaluated."""
    if evaluate is None and target is not None:
        raise BadInput(f"a target of {target:g} needs evaluation, which evaluate=None switches off; omit one of them")
    if not gives_loss(evaluate) and strategy.layout.losses:
        raise BadInput(needs_loss(strategy.spec))
    if evaluate is not None and evaluate.where == "workers" and strategy.layout.losses:
        raise BadInput(
            f"'{strategy.spec}' adapts to the training loss and needs it immediately, but workers answer between parts "
            "of their tasks; evaluate where='driver' or 'aside'"
        )


def check_watched(evaluate: Evaluate | None, evaluated: Problem, strategy: Strategy, optimizer: Optimizer) -> None:
    """Raise :class:`~anyk.BadInput` if the learning rate depends on evaluations that do not come in time."""
    watches = optimizer.watches
    if watches is None:
        return
    if evaluate is None or evaluate.every is None or evaluate.seconds is not None:
        raise BadInput(
            "a schedule that depends on evaluations (ReduceLROnPlateau) needs to know after which steps they are made; "
            "give evaluate=Evaluate(every=…), without seconds"
        )
    if evaluate.where == "workers":
        raise BadInput(
            "a schedule that depends on evaluations (ReduceLROnPlateau) needs them before the next step, and workers "
            "evaluate beside their tasks; evaluate where='driver' or 'aside'"
        )
    if strategy.layout.losses:
        raise BadInput(
            f"'{strategy.spec}' adapts to the loss and the learning rate, which it must know from the start; use "
            "another schedule than ReduceLROnPlateau"
        )
    metrics = first_metrics(evaluated)
    name, better = (next(iter(metrics)), evaluated.better) if metrics else ("loss", "lower")
    if better != watches:
        mode = "max" if better == "higher" else "min"
        raise BadInput(
            f"the schedule depends on the {name}, and a {better} one is better; give ReduceLROnPlateau mode={mode}"
        )


def check_held_out(evaluate: Evaluate | None, evaluated: Problem) -> None:
    """Raise :class:`~anyk.BadInput` if held-out data are to be evaluated and there are none."""
    if evaluate is not None and evaluate.on == "held_out" and not first_metrics(evaluated):
        raise BadInput(
            "evaluate on='held_out' needs held-out data (X_test and y_test of a linear model, held_out of others); "
            "give some, or on='train'"
        )


def gives_loss(evaluate: Evaluate | None) -> bool:
    """Return whether the training loss may be evaluated."""
    return evaluate is not None and evaluate.on != "held_out"


def needs_loss(strategy: str) -> str:
    """Return the message for a strategy that needs losses in a run that does not evaluate them."""
    return (
        f"'{strategy}' adapts to the training loss, which is not evaluated; give evaluate=Evaluate(on='train') (on the "
        "command line: --evaluate on=train), with samples=… to use a sample"
    )
