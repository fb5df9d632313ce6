"""``anyk chaos`` trains while it kills, stops and corrupts, and fails if anything that is promised does not hold."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.cli import main
from anyk.clusters.messages import inspect_message, spoil
from anyk.testing import FaultPlan, chaos, chaos_outcome
from anyk.testing.chaos_faults import PROMISES, per_second, slowness
from anyk.testing.chaos_training import MARK, DisturbedTraining

SMALL = ("--data", "synthetic:rows=120,features=6", "--delays", "exp:mean=0.01", "--optimizer", "gd", "--lr", "0.01")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def of_this_test() -> list[psutil.Process]:
    """The processes that a chaos run of this test has marked in their environment."""
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK, "").startswith(f"{tempfile.gettempdir()}/"):
                marked.append(process)
    return marked


# ------------------------------------------------------------------------------------------------ arguments


@pytest.mark.in_process
@pytest.mark.parametrize(("text", "rate"), [("2/s", 2.0), ("30/min", 0.5), ("1.5/min", 0.025), ("36/h", 0.01)])
def test_rates_have_a_number_and_a_unit(text: str, rate: float) -> None:
    assert per_second("kill", text) == pytest.approx(rate)


@pytest.mark.in_process
@pytest.mark.parametrize(
    "text", ["2", "0/s", "-1/s", "2/day", "/s", "1e3/s", "2 / s", "nan/s", "1000000/s", "3001/min"]
)
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(
        BadInput, match=re.escape(f"kill must be a rate such as 2/s, 30/min or 5/h, at most 50/s, got '{text}'")
    ):
        FaultPlan(kill=text)


@pytest.mark.in_process
def test_slowness_is_a_factor_above_1() -> None:
    assert (slowness("2.5x"), slowness("")) == (2.5, 1.0)
    for rate in ("3", "1x", "0.5x", "x"):
        with pytest.raises(BadInput, match="slow must be a factor above 1 such as 3x"):
            FaultPlan(slow=rate)


@pytest.mark.in_process
def test_times_depend_on_the_seed_and_each_period_has_one_fault() -> None:
    one, other = (FaultPlan(kill="2/s", driver="6/min", disk_full=True, seconds=60, seed=seed) for seed in (7, 8))
    schedule = one.schedule()
    assert schedule == one.schedule() != other.schedule()
    assert schedule == sorted(schedule)
    assert Counter(kind for _, kind in schedule) == {"kill": 120, "driver": 6, "disk-full": 1}
    assert [int(seconds * 2) for seconds, kind in schedule if kind == "kill"] == list(range(120))
    assert all(20 <= seconds <= 40 for seconds, kind in schedule if kind == "disk-full")
    without = FaultPlan(kill="2/s", seconds=60, seed=7).schedule()
    assert without == [event for event in schedule if event[1] == "kill"], "one kind's times depend on other kinds"


@pytest.mark.in_process
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a chaos run needs a fault: one or several of kill, stop"),
        (["--kill", "1/s", "--cluster", "simulated"], "not of cluster 'simulated'"),
        (["--kill", "1/s", "--cluster", "mpi"], "not of cluster 'mpi'"),
        (["--corrupt", "1/min"], "such as draco; 'frc:load=2' would use wrong numbers"),
        (["--corrupt", "1/min", "--strategy", "frc:load=3,check=0.5"], "'frc:load=3,check=0.5' would use wrong"),
        (["--node-kill", "1/s"], "node-kill needs the cluster 'nodes', not 'processes'"),
        (["--node-stop", "1/s", "--cluster", "ray"], "node-stop needs the cluster 'nodes', not 'ray'"),
        (["--node-kill", "1/s", "--cluster", "nodes:slices=nodes"], "leave out slices"),
        (["--freeze", "-1"], "freeze must be a whole number of at least 0"),
        (["--kill", "often"], "kill must be a rate"),
        (["--kill", "1/s", "--seconds", "0.5"], "seconds"),
        (["--kill", "1/s", "--strategy", "frc:load=4"], "frc"),
        (["--kill", "1/s", "--workers", "3..6"], "use frc:stragglers=s, for example frc:stragglers=1"),
        (["--kill", "1/s", "--page", "page.txt"], "a report is written as .html"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["chaos", *arguments])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.in_process
@pytest.mark.parametrize("strategy", ["draco", "frc:load=3,check=1", "cyclic:stragglers=1,check=1"])
def test_strategies_that_compare_may_get_wrong_numbers(strategy: str) -> None:
    plan = chaos_outcome.build(strategy, workers=6)
    chaos_outcome._check_possible(plan, "processes", FaultPlan(corrupt="1/s"))


@pytest.mark.slow
def test_options_that_the_training_refuses_are_bad_input() -> None:
    result = CliRunner().invoke(main, ["chaos", "--kill", "1/s", "--data", "nonsense"])
    assert result.exit_code == 2
    assert re.fullmatch(
        r"60 s of training [^\n]*\nanyk: the training took no step: [^:]*'nonsense'[^\n]*\n", result.stderr
    )
    assert not of_this_test()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nodes_are_killed_and_stopped_and_join_again() -> None:
    faults = FaultPlan(node_kill="20/min", node_stop="20/min", seconds=12.0, seed=3)
    result = chaos("frc:load=2", "nodes", faults, least=0.0, options=SMALL)
    assert result.passed, result.findings
    assert [effect.injected > 0 for effect in result.effects] == [True, True]
    assert not of_this_test()


@pytest.mark.slow
def test_a_training_that_fails_before_its_first_step_is_named(tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(
        "from anyk.testing import Squares\n"
        "class Broken(Squares):\n"
        "    def split(self, partitions, shares=None):\n"
        "        made = super().split(partitions, shares)\n"
        "        made.load = lambda assigned: 1 / 0\n"
        "        return made\n"
        "def make():\n"
        "    return Broken(6)\n"
    )
    with pytest.raises(
        RunFailed, match="the training took no step: .*could not load its partitions: .*division by zero"
    ):
        chaos("frc:load=2", "processes", FaultPlan(kill="1/s"), options=["--problem", f"{problem}:make"])
    assert not of_this_test()


@pytest.mark.slow
def test_a_training_without_a_first_step_in_time_is_named() -> None:
    slow = ["--data", "digits", "--delays", "constant:60"]
    with pytest.raises(RunFailed, match="took no step: it ended after 1 s, before its first; give it more seconds"):
        chaos("uncoded", "processes", FaultPlan(stop="1/s", seconds=1), workers=2, options=slow)
    assert not of_this_test()


@pytest.mark.slow
@pytest.mark.parametrize("evaluate", ["none", "on=held_out"])
def test_a_training_over_at_once_without_a_loss_is_no_crash(evaluate: str) -> None:
    options = [*SMALL, "--steps", "2", "--evaluate", evaluate]
    result = chaos("async", "processes", FaultPlan(kill="1/h", seconds=5), options=options)
    findings = {finding.name: finding for finding in result.findings}
    assert result.steps == 2
    assert not findings["model"].holds
    assert "the loss is compared: it was evaluated 0 times" in findings["model"].text


@pytest.mark.slow
def test_dropout_is_that_of_the_undisturbed_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    problem = tmp_path / "problem.py"
    problem.write_text(
        "import anyk, torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    X, y = torch.randn(48, 6, dtype=torch.float64), torch.randn(48, dtype=torch.float64)\n"
        "    layers = torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1), torch.nn.Flatten(0)\n"
        "    return anyk.problems.TorchProblem(torch.nn.Sequential(*layers).double(), torch.nn.MSELoss(), (X, y))\n"
    )
    options = ["--problem", f"{problem}:make", "--optimizer", "gd", "--lr", "0.01", "--delays", "exp:mean=0.01"]
    result = chaos("frc:load=2", "processes", FaultPlan(stop="1/s", seconds=6), least=0, options=options)
    findings = {finding.name: finding for finding in result.findings}
    assert findings["model"].holds, findings["model"].text
    assert "--least 0" in result.command


# ------------------------------------------------------------------------------------------------ the worker's part


@pytest.mark.in_process
def test_a_request_spoils_one_message_only(tmp_path: Path) -> None:
    for kind, finite in (("nan", False), ("corrupt", True)):
        (tmp_path / kind).touch()
        messages = [np.linspace(-5.0, 3.0, 9) for _ in range(2)]
        for message in messages:
            spoil(message, tmp_path)
        assert (inspect_message(messages[0])[0] is None) == finite
        assert np.isfinite(messages[0]).all() == finite
        assert sum(messages[0] != np.linspace(-5.0, 3.0, 9)) == 1, "more than one number was altered"
        assert np.array_equal(messages[1], np.linspace(-5.0, 3.0, 9))
        assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ whole runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "workers", "exact"),
    [
        ("frc:load=2", "6", True),
        ("k-sync:k=4", "6", False),
        ("frc:stragglers=1", "3..6", True),
    ],
)
def test_promises_hold_while_workers_and_the_driver_die(
    tmp_path: Path, strategy: str, workers: str, exact: bool
) -> None:
    files = {name: tmp_path / name for name in ("result.json", "page.html")}
    command = [
        "chaos",
        "--strategy",
        strategy,
        "--workers",
        workers,
        "--kill",
        "2/s",
        "--stop",
        "2/s",
        "--nan",
        "30/min",
        "--driver",
        "6/min",
    ]
    command += ["--seconds", "12", "--seed", "3", "--least", "0", *SMALL]
    command += ["--json", str(files["result.json"]), "--page", str(files["page.html"])]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    report = json.loads(files["result.json"].read_text())
    assert report["passed"] is True
    injected = {effect["kind"]: effect["injected"] for effect in report["effects"]}
    assert injected.keys() == {"kill", "stop", "nan", "driver"}
    assert min(injected.values()) >= 1
    assert injected == Counter(kind for _, kind in report["marks"])
    findings = {finding["name"]: finding["text"] for finding in report["findings"]}
    assert findings.keys() == {"faults", "end", "speed", "model", "replay", "folder", "remains"}
    assert ("differs by" in findings["model"]) == exact
    assert "the same bits of model" in findings["replay"]
    page = files["page.html"].read_text()
    assert "Everything held." in page
    assert all(PROMISES[kind] in page for kind in injected)
    assert not re.search(r"(?:src|href)=\"(?!data:)", page), "the page is not self-contained"
    assert "host" not in page and str(tmp_path) not in page
    assert report["command"].startswith(f"anyk chaos --strategy {strategy} --cluster processes --workers {workers} ")
    assert not of_this_test()


@pytest.mark.slow
def test_broken_promises_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing compares the messages of this strategy, so that wrong numbers reach its model
    monkeypatch.setattr(chaos_outcome, "_check_possible", lambda *_: None)
    faults = FaultPlan(corrupt="2/s", driver="1/h", seconds=4, seed=1)
    assert not [kind for _, kind in faults.schedule() if kind == "driver"]
    result = chaos("uncoded", "processes", faults, least=1e9, options=SMALL)
    assert not result.passed
    failed = {finding.name: finding.text for finding in result.findings if not finding.holds}
    assert failed.keys() == {"faults", "speed", "model", "replay"}
    assert failed["faults"] == "driver never occurred; corrupt occurred without an effect"
    assert "from a run without faults ('uncoded' on 1 simulated workers)" in failed["model"]


@pytest.mark.slow
def test_a_failed_chaos_run_ends_with_1_and_a_sentence() -> None:
    arguments = ["--stop", "2/s", "--nan", "1/h", "--seconds", "3", "--least", "0", *SMALL]
    result = CliRunner().invoke(main, ["chaos", "--strategy", "async", *arguments])
    assert result.exit_code == 1
    assert result.stderr.strip().splitlines()[-1] == "anyk: faults: nan never occurred"


@pytest.mark.slow
def test_an_interrupt_ends_all() -> None:
    command = [sys.executable, "-m", "anyk", "chaos", "--kill", "1/s", "--stop", "1/s", "--freeze", "1", *SMALL]
    process = subprocess.Popen([*command, "--seconds", "300"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("300 s of training under faults")
        assert "updates; " in process.stderr.readline()
        while len(of_this_test()) < 4:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=250)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "anyk: interrupted; all processes of the run have been ended"
    assert not of_this_test()
    assert not list(Path(tempfile.gettempdir()).glob("anyk-chaos-*"))


# ------------------------------------------------------------------------------------------------ findings


@pytest.mark.in_process
def test_every_window_must_be_fast_and_a_rollback_is_no_progress() -> None:
    steady = [(float(t), 10 * t) for t in range(101)]
    assert chaos_outcome._fast_enough(steady, [], 9.9, 100.0).holds
    assert not chaos_outcome._fast_enough(steady, [], 10.1, 100.0).holds
    stalled = [(t, min(updates, 600)) for t, updates in steady]
    finding = chaos_outcome._fast_enough(stalled, [], 1.0, 100.0)
    assert not finding.holds
    assert "0.0 in the slowest 30 s" in finding.text
    assert chaos_outcome._fast_enough(stalled, [], 9.0, 59.0).holds, "a run that is over may take long to end"
    finding = chaos_outcome._fast_enough(stalled, [(60.0, 100.0)], 9.0, 100.0)
    assert finding.holds, "an outage of the driver is left out"
    assert "at most 40.0 s without one" in finding.text
    resumed = [(t, updates - 400 * (t > 50)) for t, updates in steady]
    assert chaos_outcome._fast_enough(resumed, [], 9.0, 100.0).holds, "updates that were repeated do not count"


@pytest.mark.in_process
def test_progress_never_counts_backwards(tmp_path: Path) -> None:
    """The log loses updates when a run is resumed; what was taken stays counted."""
    training = disturbed(tmp_path)
    samples = [(0.0, 1), (5.0, 300), (6.0, 21), (9.0, 121), (12.0, 50), (14.0, 60)]
    counts = []
    for number in range(1, len(samples) + 1):
        training.samples = samples[:number]
        counts.append(int(re.search(r"(\d+) updates", training.progress(samples[number - 1][0]))[1]))
    assert counts == sorted(counts) == [1, 300, 300, 400, 400, 410]
    assert training.progress(5.0).startswith("5 of 30 s: ")


@pytest.mark.in_process
def test_a_resumed_training_has_the_rest_of_the_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is that of the checkpoint: with the old limit it would train longer by all that it lost."""
    training = disturbed(tmp_path)
    monkeypatch.setattr(training, "_now", lambda: 20.0)
    assert training._resuming() == ["resume", "--seconds", "10.000"]  # without a checkpoint: from the start
    problem = anyk.problems.from_data("synthetic:rows=30,features=3")
    with anyk.train(
        problem, "uncoded", "simulated", workers=2, delays="exp:mean=1", steps=3, out=tmp_path / "run"
    ) as run:
        clock = run.seconds
    assert training._resuming() == ["resume", "--seconds", f"{clock + 10.0:.3f}"]
    monkeypatch.setattr(training, "_now", lambda: 29.5)
    assert float(training._resuming()[-1]) == pytest.approx(clock + 2.0, abs=1e-3)


def disturbed(tmp_path: Path) -> DisturbedTraining:
    faults = FaultPlan(kill="1/s", seconds=30.0)
    return DisturbedTraining(
        ["train"], ["resume"], tmp_path / "run", "processes", faults, tmp_path / "requests", tmp_path, lambda _: None
    )


@pytest.mark.in_process
def test_what_is_left_behind_is_listed(tmp_path: Path) -> None:
    before = chaos_outcome._descriptors()
    training = SimpleNamespace(temporary=tmp_path / "temporary", named={str(tmp_path / "memory")})
    training.temporary.mkdir()
    assert chaos_outcome._nothing_left(before, training, tmp_path).holds  # type: ignore[arg-type]
    for left in (training.temporary / "socket", tmp_path / "memory"):
        left.touch()
    (tmp_path / "checkpoint.safetensors.part").touch()
    with open(tmp_path / "log", "x"):
        finding = chaos_outcome._nothing_left(before, training, tmp_path)  # type: ignore[arg-type]
    assert not finding.holds
    assert all(word in finding.text for word in ("socket", "memory", "checkpoint.safetensors.part", "1 open files"))
