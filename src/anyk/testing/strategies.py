"""Requirements of every strategy, under random delays, losses and returns, and under hostile schedules."""

from __future__ import annotations

import copy
import json

from anyk import codes
from anyk.base import BadInput, keyed_generator, parse_spec
from anyk.clusters import Outage, Simulated
from anyk.delays import Exponential
from anyk.protocol import Running, Strategy, Workers
from anyk.runs import Driver, LogWriter, session
from anyk.runs.api import decisions, log_columns
from anyk.strategies import registry
from anyk.strategies import strategy as build_strategy
from anyk.testing.hostile import Play, explained, hostile
from anyk.testing.world import Broken

_EVENTS = 8  # of a hostile schedule, for each step asked for
_COMPARED = 60  # events in which a strategy is compared with the one that its spec builds


def check_strategy(
    strategy: Strategy, *, steps: int = 20, outages: int = 3, seed: int = 0, spec: str | None = None
) -> None:
    """Check a strategy on the random schedules of a seed.

    It receives events in any order, some late or twice (:mod:`anyk.testing.hostile`), and runs on the simulated cluster
    while workers are lost and return. It must take its steps without deadlock, use no task number twice, dispatch no
    task to a busy worker, and use no message twice, before its arrival or after its cancellation. Every chunk ends in
    exactly one way; weights give the residual that a step claims; the same seed gives the same decisions; and a
    strategy restored from its state, through JSON, continues exactly as if it had not been interrupted. If its name is
    registered, its spec builds a strategy that decides in the same way, as a resumed run needs.

    Raises :class:`AssertionError` with the broken rule, the shortest schedule found and the command that repeats it.
    ``spec``: the strategy in that command, by default its own spec.

    >>> import anyk
    >>> check_strategy(anyk.strategy("frc:load=2", workers=4))
    """
    try:
        hostile(strategy, seed=seed, events=_EVENTS * steps)
        _check(strategy, steps, outages, seed)
        _check_spec(strategy, seed)
    except Exception as error:  # a user's strategy may raise anything
        raise AssertionError(
            f"{explained(error)}\n"
            f"again: anyk strategies check '{spec or strategy.spec}' --workers {strategy.layout.workers} "
            f"--steps {steps} --outages {outages} --seed {seed} --schedules 1"
        ) from error


def _check(strategy: Strategy, steps: int, outages: int, seed: int) -> None:
    uninterrupted = _drive(copy.deepcopy(strategy), steps, outages, seed, None)
    repeated = _drive(copy.deepcopy(strategy), steps, outages, seed, None)
    assert uninterrupted == repeated, "two runs with one seed differ"
    for interrupted in {1, max(1, steps // 2), steps - 1}:
        resumed = _drive(copy.deepcopy(strategy), steps, outages, seed, interrupted)
        assert resumed == uninterrupted, f"resumed at step {interrupted} it decides otherwise"


def _check_spec(strategy: Strategy, seed: int) -> None:
    """Compare a strategy with the one that its spec builds, if the name is registered for its class."""
    spec = strategy.spec
    name = parse_spec(spec)[0]
    if name not in registry.entries and name not in codes.registry.entries:
        return
    try:
        built = build_strategy(spec, workers=Workers.of_layout(strategy.layout))
    except BadInput as error:
        raise AssertionError(f"no strategy can be built from its spec '{spec}': {error}") from None
    if type(built) is not type(strategy):
        return
    hint = "is every setting in the spec?"
    assert built.layout == strategy.layout, f"its spec '{spec}' builds a strategy with another layout: {hint}"
    play = Play(strategy, seed)
    play.twin = Running(built)
    try:
        play.play((action._replace(save=False) for action in play.sample_actions(_COMPARED)), whole=False)
    except Broken as error:
        if error.kind == "restored":
            raise AssertionError(f"its spec '{spec}' builds a strategy that decides otherwise: {hint}") from None


def _cluster(strategy: Strategy, outages: int, seed: int) -> Simulated:
    random = keyed_generator(seed, "check-strategy", strategy.spec)
    planned = []
    for _ in range(outages):
        time = float(random.exponential(1.0))
        back = time + float(random.exponential(0.5))
        planned.append(Outage(time, int(random.integers(strategy.layout.workers)), back))
    return Simulated(strategy.layout.workers, delays=Exponential(mean=0.3), seed=seed, outages=planned)


def _drive(
    strategy: Strategy, steps: int, outages: int, seed: int, interrupted: int | None
) -> list[tuple[object, ...]]:
    """Return the decisions of a run, which is saved and resumed at the step ``interrupted``, if not None."""
    fresh = copy.deepcopy(strategy)
    log = LogWriter()
    driver = Driver(strategy, _cluster(strategy, outages, seed), log=log, steps=interrupted or steps)
    with session(driver):
        driver.run()
        state = json.loads(json.dumps(driver.state()))
    if interrupted is not None and driver.stopped is None:  # the run may have ended before
        log.truncate(state["seq"])
        driver = Driver(fresh, _cluster(strategy, outages, seed), log=log, steps=steps)
        with session(driver, (state, {})):
            driver.run()
    ledger = driver.ledger.counts
    assert ledger.open == 0, f"the ledger of '{strategy.spec}' does not balance: {ledger}"
    chunks = log_columns(log, "chunks")
    numbers = zip(chunks["task"].tolist(), chunks["chunk"].tolist(), strict=True)
    received = dict(zip(numbers, chunks["received"].tolist(), strict=True))
    return [(*used, received[used.task, used.chunk]) for used in decisions(log)]
