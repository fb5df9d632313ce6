"""Runs that begin where another stands: exact, replayed, resumed, and independent of the other's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.optimizers import GD, Adam, Momentum, Nesterov
from anyk.runs.callbacks import Watching
from anyk.runs.folder.config import Origin

PROBLEM = anyk.problems.from_data("synthetic:rows=250,features=5")


def fleet(kind: str = "simulated", workers: int = 6, delays: str = "exp:mean=0.3") -> Any:
    return anyk.cluster(kind, workers=workers, delays=delays, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [Nesterov(lr=0.3), Adam(lr="exponential:start=0.3,decay=0.9"), GD(lr="inverse:start=0.5,decay=1")],
                         ids=lambda optimizer: optimizer.spec)  # fmt: skip
def test_a_run_in_two_parts_is_the_run_in_one(optimizer: Any, tmp_path: Path) -> None:
    """State of the optimiser, learning rate, mini-batches: all go on. To the bit where the strategy is the same."""
    uninterrupted = anyk.train(PROBLEM, "frc:load=2,batch=7", fleet(), steps=11, optimizer=optimizer)
    for out in (None, tmp_path / "first"):
        first = anyk.train(PROBLEM, "frc:load=2,batch=7", fleet(), steps=4, optimizer=optimizer, out=out)
        second = anyk.train(PROBLEM, "frc:load=2,batch=7", fleet(), steps=11, optimizer=optimizer, begin=out or first)
        assert second.model.tobytes() == uninterrupted.model.tobytes()
        assert second.begun == 4 and second.steps == 11
        assert second.history["step"].tolist() == list(range(4, 12))
        assert second.history["loss"] == pytest.approx(uninterrupted.history["loss"][4:], rel=1e-12)
        first.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simulated", "processes"])
@pytest.mark.parametrize("spec", ["cyclic:stragglers=1", "m-sgc:B=1,W=2,lambda=2,models=3", "k-batch-sync:k=4"])
def test_replayed_floored_and_without_the_other(kind: str, spec: str, tmp_path: Path) -> None:
    several = "models" in spec
    problem = anyk.problems.ManyProblems([PROBLEM] * 3) if several else PROBLEM
    first = anyk.train(problem, "uncoded:models=3" if several else "uncoded", fleet(kind, 4, "exp:mean=0.003"),
                       steps=3, optimizer=Momentum(lr=0.1), out=tmp_path / "first")  # fmt: skip
    first.close()
    run = anyk.train(problem, spec, fleet(kind, 6, "exp:mean=0.003"), steps=8, optimizer=Momentum(lr=0.1),
                     begin=tmp_path / "first", out=tmp_path / "second")  # fmt: skip
    shutil.rmtree(tmp_path / "first")
    assert run.config.begin == Origin(str(tmp_path / "first"), first.config.strategy, 3)
    assert run.notes[0]["text"] == f"at step 3 of {tmp_path / 'first'} ({first.config.strategy})"
    assert run.floor_seconds is not None and run.floor_seconds > 0
    if kind == "simulated":
        assert run.seconds == pytest.approx(run.floor_seconds, abs=1e-12)
    run.close()
    assert str(anyk.replay(tmp_path / "second", problem=problem)).endswith("the same bits of model")
    second = anyk.Run.open(tmp_path / "second")
    assert (second.begun, second.steps) == (3, 8)
    second.close()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["frc:load=2", "sr-sgc:B=1,W=2,lambda=3,models=2"])
@pytest.mark.parametrize("killed", ["at once", "by a callback", "half-way"])
def test_killed_and_resumed(spec: str, killed: str, tmp_path: Path) -> None:
    several = "models" in spec
    problem = anyk.problems.ManyProblems([PROBLEM] * 2) if several else PROBLEM
    setting: dict[str, Any] = {"optimizer": Nesterov(lr=0.3), "steps": 12}
    first = anyk.train(
        problem, "uncoded:models=2" if several else "uncoded", fleet(), steps=3, optimizer=Nesterov(lr=0.3)
    )
    uninterrupted = anyk.train(problem, spec, fleet(), begin=first, **setting)

    error = SystemExit if killed == "at once" else ZeroDivisionError  # of which the first leaves no checkpoint

    def watch(*_: Any) -> None:
        raise error

    if killed != "half-way":
        with pytest.raises(error):
            anyk.train(
                problem, spec, fleet(), begin=first, out=tmp_path / "run", callbacks=[Watching(watch)], **setting
            )
    else:
        seconds = uninterrupted.seconds / 2
        anyk.train(problem, spec, fleet(), begin=first, out=tmp_path / "run", seconds=seconds, **setting).close()
    resumed = anyk.resume(tmp_path / "run", problem=problem, steps=12)
    for slot, w in uninterrupted.models.items():
        assert resumed.models[slot].tobytes() == w.tobytes()
    assert resumed.history_of(resumed.slot)["step"].tolist() == list(range(3, 13))
    resumed.close()
    if several:
        with pytest.raises(BadInput, match="the run was planned for 12 steps of each model, and its last rounds"):
            anyk.resume(tmp_path / "run", problem=problem, steps=20)
    if killed == "at once":
        (tmp_path / "run" / "begin.safetensors").unlink()
        with pytest.raises(BadInput, match=r"started from another run, but its begin\.safetensors is missing"):
            anyk.resume(tmp_path / "run", problem=problem, steps=14)


@pytest.mark.slow
def test_delays_go_on_behind_those_that_were_drawn() -> None:
    """By task, by round (a table's next rows) and of several models, whose rounds are counted and not their steps."""
    table = np.arange(1.0, 41.0)[:, None] * np.ones(4)  # round t takes t + 1 seconds
    many = anyk.problems.ManyProblems([PROBLEM] * 2)
    for problem, specs in ((PROBLEM, ("uncoded", "frc:load=2", "gc:stragglers=1")),
                           (many, ("uncoded:models=2", "m-sgc:B=1,W=2,lambda=1", "frc:load=2,models=2"))):  # fmt: skip
        for spec in specs:
            run = None
            for stage in (spec, specs[0], spec):
                cluster = anyk.clusters.Simulated(4, delays=anyk.delays.TableDelays(table, by="round"))
                steps = 2 + (run.steps if run is not None else 0)
                before = run.steps * len(run.models) if run is not None else 0
                run = anyk.train(problem, stage, cluster, steps=steps, begin=run)
                rounds = 2 * len(run.models) + (stage.startswith("m-sgc"))  # T rounds more
                assert run.seconds == pytest.approx(sum(range(before + 1, before + rounds + 1)))
    drawn = [anyk.train(PROBLEM, "uncoded", fleet(), steps=5)]
    drawn.append(anyk.train(PROBLEM, "uncoded", fleet(), steps=10, begin=drawn[0]))
    waits = [np.diff(run.history["seconds"], prepend=0.0) for run in drawn]
    assert not set(np.round(waits[0][1:], 9)) & set(np.round(waits[1][1:], 9))


def test_what_cannot_go_on(tmp_path: Path) -> None:
    first = anyk.train(PROBLEM, "uncoded", fleet(), steps=4, optimizer=Momentum(lr=0.1), out=tmp_path / "first")

    def begin(spec: str = "frc:load=2", problem: Any = PROBLEM, begin: Any = first, **rest: Any) -> None:
        anyk.train(problem, spec, fleet(), begin=begin, **({"optimizer": Momentum(lr=0.1), "steps": 9} | rest))

    with pytest.raises(BadInput, match="the run starts at step 4, and steps are counted from 0; give more, got 4"):
        begin(steps=4)
    with pytest.raises(
        BadInput, match=r"optimised by 'momentum:momentum=0.9', whose state 'adam.*' does not know; use 'momentum"
    ):
        begin(optimizer=Adam(lr=0.1))
    with pytest.raises(BadInput, match="model of the run to continue from has 5 numbers of float64, the problem has 6"):
        begin(problem=anyk.problems.from_data("synthetic:rows=250,features=6"))
    with pytest.raises(
        BadInput, match=r"trained 'model', 'gc:.*' trains 2 models, 'model 0' to 'model 1'; they must be the same"
    ):
        begin("gc:stragglers=1,models=2", anyk.problems.ManyProblems([PROBLEM] * 2))
    with pytest.raises(
        BadInput, match="'pasgd:tau=5' counts local steps, not versions, and cannot continue from another"
    ):
        begin("pasgd:tau=5")
    with pytest.raises(BadInput, match="is not a run folder"):
        begin(begin=tmp_path)
    (tmp_path / "first" / "checkpoint.safetensors").unlink()
    with pytest.raises(BadInput, match=r"the checkpoint '.*' is gone"):
        begin(begin=tmp_path / "first")
    first.close()
