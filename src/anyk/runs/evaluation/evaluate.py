"""The evaluation of a model while it is trained: how often, on which data, and on how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from anyk.checks import typed
from anyk.clusters.processes.aside import Aside
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, abilities_of
from anyk.problems.data.streams import NO_LOSS
from anyk.protocol import Strategy
from anyk.runs.limits import Limits, check_limits, first_metrics
from anyk.specs import Registry

OFF = "none"  # how a configuration writes that nothing is evaluated
_registry: Registry[Evaluate] = Registry("evaluation")


@_registry.register("evaluate")
@typed
@dataclass(frozen=True)
class Evaluate:
    """Which versions of a model are evaluated, and on what; it happens off the clock.

    ``every``: versions whose number it divides, besides the first and the last; left out, some hundreds of them.
    ``seconds``: at least so many seconds of the run's clock between two. ``samples``: on so many of the training
    samples and as many of the held-out ones, the same each time (all, where there are no more). ``on``: ``train``, the
    objective on training data, and the metric if there is held-out data; ``held_out``, the metric only. Left out, it is
    ``train`` for data in memory; data that the driver would have to read item by item is left alone (``held_out``, and
    nothing without held-out data). ``where``: on the ``driver``, whose steps it delays by a twentieth at most; or
    ``aside``, in a process of its own on the driver's machine, for which no step waits, nearly as soon as versions are
    made. Then only that process reads the data to evaluate; data in memory it has a copy of. Or on the
    ``workers``, for the training loss: each evaluates data that it holds, in pauses between the partitions of its
    tasks, which slows the run by about a twentieth at most, and the driver reads none of it; ``on`` is then ``train``
    unless said otherwise. On a virtual clock the driver computes what workers do.

    Raises :class:`~anyk.errors.BadInput` for numbers out of range.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=4, steps=9, evaluate=Evaluate(every=5, samples=50))
    >>> run.history["step"][run.history["loss"] > 0].tolist()
    [0, 5, 9]
    >>> anyk.train(problem, "uncoded", "simulated", workers=4, steps=9, evaluate=None).loss is None
    True
    """

    every: int | None = None
    samples: int | None = None
    on: Literal["train", "held_out"] | None = None
    seconds: float | None = None
    where: Literal["driver", "aside", "workers"] = "driver"

    def __post_init__(self) -> None:
        for name in ("every", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                what = "step" if name == "every" else "sample"
                raise BadInput(f"{name} of evaluate must be at least 1 {what}, got {value}")
        if self.where == "workers" and self.on == "held_out":
            raise BadInput(
                "workers hold the training data, and held-out data is evaluated on the driver's machine; give "
                "where='driver' or 'aside', or on='train'"
            )
        if self.seconds is not None and not 0.0 < self.seconds < float("inf"):
            raise BadInput(f"seconds of evaluate must be a finite number above 0, got {self.seconds:g}")

    @property
    def spec(self) -> str:
        """The short form: ``every=10,samples=500``, empty if nothing is given."""
        values = {name: getattr(self, name) for name in ("every", "samples", "on", "seconds")}
        values["where"] = None if self.where == "driver" else self.where
        return ",".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in values.items()
            if value is not None
        )


USUAL = Evaluate()


def read_evaluate(given: Evaluate | str | None) -> Evaluate | None:
    """Return a user's request as an object; None for no evaluation.

    >>> read_evaluate("every=10,on=held_out"), read_evaluate("none")
    (Evaluate(every=10, samples=None, on='held_out', seconds=None, where='driver'), None)
    """
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text == OFF:
        return None
    if text and "=" not in text:
        raise BadInput(f"evaluate must be 'none' or settings such as every=10,samples=500,on=held_out, got '{given}'")
    return _registry.build(f"evaluate:{text}" if text else "evaluate")


def spec_of(evaluate: Evaluate | None) -> str:
    """Return the text that a configuration stores."""
    return OFF if evaluate is None else evaluate.spec


def resolved(evaluate: Evaluate | None, problem: Problem) -> Evaluate | None:
    """With ``on`` as the problem has it where the user does not say; None where nothing is left to evaluate.

    Raises :class:`~anyk.errors.BadInput` where the problem cannot be evaluated as asked.
    """
    if evaluate is not None and evaluate.samples is None and evaluate.on == "train" and abilities_of(problem).endless:
        raise BadInput(NO_LOSS)
    if evaluate is None or evaluate.on is not None:
        return evaluate
    on = abilities_of(problem).evaluated_on
    if evaluate.where == "workers":
        on = "train"
    return None if on is None else replace(evaluate, on=on)


@contextmanager
def evaluating(evaluate: Evaluate | None, problem: Problem) -> Iterator[Problem]:
    """The problem that is evaluated in the place of the whole, as long as this is open.

    Raises :class:`~anyk.errors.BadInput` where the problem cannot be evaluated as asked.
    """
    if evaluate is not None and evaluate.where == "aside":
        with Aside(problem, evaluate.samples) as aside:
            yield aside.problem
    elif evaluate is None or evaluate.samples is None or evaluate.where == "workers":  # who pick their samples
        yield problem
    else:
        yield abilities_of(problem).sampled(evaluate.samples)


def check_evaluation(problem: Problem, evaluate: Evaluate | None, limits: Limits) -> None:
    """Raise :class:`~anyk.errors.BadInput` if runs on a problem cannot be evaluated or cannot reach their limits."""
    with evaluating(evaluate, problem) as evaluated:
        check_held_out(evaluate, evaluated)
        check_limits(evaluated, limits)


def check_evaluate(evaluate: Evaluate | None, strategy: Strategy, target: float | None) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a strategy or a target needs what is not evaluated."""
    if evaluate is None and target is not None:
        raise BadInput(
            f"a target of {target:g} needs evaluation, which evaluate=None switches off; leave out one of them"
        )
    if not gives_loss(evaluate) and strategy.layout.losses:
        raise BadInput(needs_loss(strategy.spec))
    if evaluate is not None and evaluate.where == "workers" and strategy.layout.losses:
        raise BadInput(
            f"'{strategy.spec}' adapts to the training loss and needs it at once, but workers answer between parts of "
            "their tasks; evaluate where='driver' or 'aside'"
        )


def check_watched(evaluate: Evaluate | None, evaluated: Problem, strategy: Strategy, optimizer: Optimizer) -> None:
    """Raise :class:`~anyk.errors.BadInput` where an optimiser goes by evaluations and cannot."""
    watches = optimizer.watches
    if watches is None:
        return
    if evaluate is None or evaluate.every is None or evaluate.seconds is not None:
        raise BadInput(
            "a schedule that goes by evaluations (ReduceLROnPlateau) needs to know after which steps they are made; "
            "give evaluate=Evaluate(every=…), without seconds"
        )
    if evaluate.where == "workers":
        raise BadInput(
            "a schedule that goes by evaluations (ReduceLROnPlateau) needs them before the next step, and workers "
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
            f"the schedule goes by the {name}, of which {better} is better; give ReduceLROnPlateau mode={mode}"
        )


def check_held_out(evaluate: Evaluate | None, evaluated: Problem) -> None:
    """Raise :class:`~anyk.errors.BadInput` where the user wants held-out data evaluated and there is none."""
    if evaluate is not None and evaluate.on == "held_out" and not first_metrics(evaluated):
        raise BadInput(
            "evaluate on='held_out' needs held-out data (X_test and y_test of a linear model, held_out of others); "
            "give some, or on='train'"
        )


def gives_loss(evaluate: Evaluate | None) -> bool:
    """Whether the user lets the training loss be evaluated."""
    return evaluate is not None and evaluate.on != "held_out"


def needs_loss(strategy: str) -> str:
    """Return a sentence for a strategy that asks for losses that are not evaluated."""
    return (
        f"'{strategy}' adapts to the training loss, which is not evaluated; give evaluate=Evaluate(on='train') (on the "
        "command line: --evaluate on=train), with samples=… to use a sample"
    )
