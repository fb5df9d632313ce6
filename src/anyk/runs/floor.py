"""The floor of a run: how long the same decisions take when nothing but the injected delays does."""

from __future__ import annotations

from collections.abc import Mapping

from anyk.clusters import Cluster, Simulated
from anyk.protocol import LossEvaluated, NoiseMeasured, Strategy
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.log.runlog import RunLog

_TOLD = (LossEvaluated, NoiseMeasured)  # what the driver works out from models and messages
SHOWN_FROM = 1e-3  # seconds a step; a ratio to less than this says nothing


def floor_seconds(
    strategy: Strategy,
    cluster: Cluster,
    steps: int | Mapping[str, int],
    log: RunLog | None = None,
    *,
    warm_start: WarmStart | None = None,
) -> float:
    """Seconds that ``strategy`` takes for ``steps`` steps on the virtual clock with the delays of ``cluster``.

    Of several models ``steps`` may say by slot how many each is to have.

    Computing and communication count as nothing. What the strategy was told of losses and
    gradients in the run is told again, in the same order, from its ``log``. A run that went on from another has that
    one's steps in ``steps``, and its ``warm_start``.

    >>> import anyk
    >>> strategy = anyk.strategy("uncoded", workers=3)
    >>> floor_seconds(strategy, anyk.cluster("processes", workers=3, delays="constant:2"), steps=5)
    10.0
    """
    first_step = 0 if warm_start is None else warm_start.step
    each = steps if isinstance(steps, Mapping) else {}
    if steps == first_step or (each and set(each.values()) == {first_step}):
        return 0.0
    virtual = Simulated(
        cluster.workers,
        delays=cluster.delays,
        seed=cluster.seed,
        byzantine=cluster.byzantine,
        communication=cluster.communication,
    )
    # without a problem nothing is computed, but vectors have their length all the same
    virtual.injection.messages = cluster.injection.messages
    logged = () if log is None else log.events([kind.__name__ for kind in _TOLD])
    events = [event for event in logged if isinstance(event, _TOLD)]
    number = None if isinstance(steps, Mapping) else steps

    def look(driver: Driver) -> None:
        if each and all(driver.versions[slot] >= version for slot, version in each.items()):
            driver.end()

    driver = Driver(strategy, virtual, steps=number, told=events, warm_start=warm_start, on_step=look)
    with session(driver):
        driver.run()
    return driver.time
