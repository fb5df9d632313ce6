"""Any run replays: every strategy, ended by steps or by seconds, simulated and on processes."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

import anyk
from anyk.clusters.processes.memory import MemoryLayout
from anyk.runs.log.log_writer import LogWriter
from anyk.strategies import registry
from anyk.testing import Squares

pytestmark = pytest.mark.slow

SPECS = [
    "sync", "k-sync:k=4", "k-batch-sync:k=4", "async:lr_scale=0.1", "k-async:k=2", "k-batch-async:k=2",
    "anytime:deadline=0.3,parts=3", "adasync:k=2,interval=1", "adasync:base=k-sync,k=2,interval=1,rule=noise",
    "gradual:base=k-sync,every=4",
    "pasgd:tau=3,outer=slowmo,keep=true", "adacomm:tau=8,interval=1,probe=2", "adacomm:tau=4,interval=1",
    "fedbuff:tau=3,k=2", "dpsgd:tau=2", "matcha:graph=ring", "easgd", "coop:matrix=ring,auxiliary=2", "hierarchical:tau=2", "ad-psgd", "gc:stragglers=1",
    "sr-sgc:B=1,W=2,lambda=2,models=2", "m-sgc:B=1,W=2,lambda=2,models=3", "fedavg:tau=2,clients=3", "slowmo:tau=3",
    "diloco:tau=3", "compressed:of=sync,by=qsgd", "agc:load=2,wait=3", "frc:load=2,wait=3mad", "uncoded:wait=4|0.1s",
    "partial", "tree", "nested", "progress", "draco:byzantine=1", "agc:load=2,wait=3,snapshot=4",
]  # fmt: skip


def replayed(spec, kind, limit, mean, seed=4):
    strategy = anyk.strategy(spec, workers=6)
    problem = Squares(strategy.layout.partitions)
    if "model 0" in strategy.layout.slots and strategy.layout.inner is None:
        problem = anyk.problems.ManyProblems([problem] * len(strategy.layout.slots))
    cluster = anyk.cluster(kind, workers=6, delays=f"exp:mean={mean}", seed=seed)
    with anyk.train(problem, spec, cluster, optimizer=anyk.optimizers.GD(lr=0.05), **limit) as run:
        return str(anyk.replay(run, problem=problem))


def test_every_strategy_is_tried():
    names = {entry.name for entry in registry if entry.build.__module__.startswith("anyk.")}
    assert names <= {anyk.base.specs.parse_spec(spec)[0] for spec in SPECS}


@pytest.mark.parametrize("limit", [{"steps": 9}, {"seconds": 3.0}], ids=["steps", "seconds"])
@pytest.mark.parametrize("kind", ["simulated", "simulated:task=0.03,partition=0.02,step=0.05,cores=3"])
def test_simulated_runs_replay(kind, limit):
    for spec in SPECS:
        outcome = replayed(spec, kind, limit, 0.4)
        assert outcome.endswith("the same decisions and the same bits of model"), (spec, outcome)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ("adacomm:tau=4,interval=0.05", {"steps": 9}),  # goes by the time since it was started
        ("frc:load=2,wait=3mad", {"steps": 12}),
        ("agc:load=2,wait=3,snapshot=4", {"steps": 12}),  # whose workers' messages are used again and again
        ("ad-psgd", {"seconds": 0.4}),  # whose models have taken unequally many steps at the end
        ("m-sgc:B=1,W=2,lambda=2,models=3", {"seconds": 0.4}),
    ],
)
def test_runs_on_processes_replay(spec, limit):
    outcome = replayed(spec, "processes", limit, 0.02)
    assert outcome.endswith("the same decisions and the same bits of model"), outcome


def test_a_run_that_was_resumed_replays(tmp_path):
    def part(limit, **more):
        cluster = anyk.cluster("simulated", workers=6, delays="exp:mean=0.4", seed=4)
        optimizer = anyk.optimizers.GD(lr=0.05)
        return anyk.train(Squares(6), "adacomm:tau=8,interval=1", cluster, optimizer=optimizer, **limit, **more)

    part({"seconds": 5.0}, out=tmp_path / "run").close()
    with anyk.resume(tmp_path / "run", problem=Squares(6), seconds=12.0) as run:
        assert anyk.replay(run, problem=Squares(6)).model
        uninterrupted = part({"seconds": 12.0})
        assert run.model.tobytes() == uninterrupted.model.tobytes() and run.steps == 3


@pytest.mark.parametrize(
    ("spec", "kept", "first"),
    [
        ("diloco:tau=3,inner=adamw", "optimiser states", 5),
        ("pasgd:tau=3,inner=momentum,keep=true", "optimiser states", 5),
        ("compressed:of=sync,by=(top-k:share=0.5)", "error feedback", 5),
        ("compressed:of=sync,by=(top-k:share=0.5)", "error feedback", None),  # that no task has continued yet
    ],
)
def test_what_workers_forget_on_resume_is_told_and_replayed(spec, kept, first, tmp_path, monkeypatch):
    """On a cluster that does not save it, as Ray and MPI."""
    plan = MemoryLayout.of
    monkeypatch.setattr(MemoryLayout, "of", lambda *of: replace(plan(*of), state_bytes=0))
    optimizer = anyk.optimizers.GD(lr=0.05)
    cluster = anyk.clusters.Processes(3)

    class Killed(BaseException):
        pass

    def listed(log, seq, digest):
        listing(log, seq, digest)
        if first is None and log.rows("SELECT 1 FROM updates"):
            raise Killed

    listing = LogWriter.checkpoint
    monkeypatch.setattr(LogWriter, "checkpoint", listed)
    more = {"steps": first or 5, "checkpoint_every": 10.0 if first else 0.0}
    with nullcontext() if first else pytest.raises(Killed):
        anyk.train(Squares(3), spec, cluster, optimizer=optimizer, out=tmp_path / "run", **more).close()
    monkeypatch.setattr(LogWriter, "checkpoint", listing)
    lines = []
    for steps in (9, 12):
        with anyk.resume(tmp_path / "run", problem=Squares(3), steps=steps, tell=lines.append) as run:
            replay, notes = anyk.replay(run, problem=Squares(3)), run.notes
    assert lines == [f"the workers start with fresh {kept}: what they had is not saved"] * 2
    assert [note["text"] for note in notes if note["kind"] == "workers reset"] == lines
    assert str(replay).endswith("reset 2 times by resume: the same decisions and the same bits of model"), replay


@pytest.mark.parametrize("spec", ["diloco:tau=3", "compressed:of=sync,by=(top-k:share=0.5)"])
def test_what_a_worker_lost_when_it_died_is_lost_in_the_replay(spec):
    outages = [anyk.clusters.Outage(3.0, worker, 3.2) for worker in range(6)]
    cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=0.4), seed=4, outages=outages)
    with anyk.train(Squares(6), spec, cluster, optimizer=anyk.optimizers.GD(lr=0.05), steps=12) as run:
        assert anyk.replay(run, problem=Squares(6)).model, str(anyk.replay(run, problem=Squares(6)))
