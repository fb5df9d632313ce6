"""The report of runs and races: what it says is what their logs say, and text from runs stays text."""

import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import anyk
from anyk.base.errors import MissingPackage
from anyk.cli import main
from anyk.protocol import Lost, Workers
from anyk.runs.folder.config import Recipe
from anyk.runs.log.delay_trace import task_seconds
from anyk.runs.log.fates import CUT, FATES, LATE, LOST, OPEN, SPARE, USED, tasks_of
from anyk.runs.log.schema import Ended, Update
from anyk.views import report
from anyk.views.page.account import account, heat, shares
from anyk.views.page.content import content
from anyk.views.page.texts import departures, race_verdict, rounds, run_verdict
from anyk.views.plots import lower_end

PROBLEM = anyk.problems.from_recipe({"data": "synthetic:rows=240,features=5"})
SCRIPT = "<script>alert('run')</script>"


def trained(
    strategy, workers=6, steps=12, *, models=1, cluster="simulated:partition=0.01", delays="exp:mean=1", **more
):
    fleet = anyk.cluster(cluster, workers=workers, delays=delays, seed=3)
    if models > 1:
        return anyk.train_many([PROBLEM] * models, strategy, fleet, steps=steps, **more)
    return anyk.train(PROBLEM, strategy, fleet, steps=steps, **more)


STRATEGIES = ["frc:load=3", "agc:load=3,wait=2", "async:lr_scale=0.1", "k-async:k=2", "pasgd:tau=3"]


@pytest.fixture(scope="module", params=STRATEGIES)
def run(request):
    with trained(request.param) as run:
        yield run


def test_each_chunk_has_the_fate_that_the_ledger_counted(run):
    fate = tasks_of(run).fate
    count = {name: int((fate == i).sum()) for i, name in enumerate(FATES)}
    ledger = run.ledger
    assert count["used"] == ledger["counted"] and count["used late"] == ledger["late_counted"]
    assert count["not needed"] + count["cut off"] + count["unfinished at the end"] == (
        ledger["cancelled"] + ledger["discarded"]
    )
    assert count["lost"] == ledger["lost"] and sum(count.values()) == ledger["dispatched"]


def test_every_step_has_the_tasks_of_its_receipt(run):
    tasks = tasks_of(run)
    for step in range(1, run.steps + 1):
        receipt = run.receipt(step)
        mine = tasks.only(tasks.step == step)
        used = mine.only(mine.fate <= LATE)
        assert sorted(zip(used.worker, used.task, used.step - 1 - used.version, strict=True)) == sorted(
            (worker, task, stale) for worker, task, _, stale in receipt.used
        )
        if step < run.steps or not run.asynchronous:  # what an asynchronous run leaves is unfinished, not cut off
            cut = mine.only(mine.fate == CUT)
            assert sorted(cut.task) == sorted(one.task for one in receipt.cut_off)
            late = {one.task: one.seconds for one in receipt.cut_off if one.known}
            for task, ran, more in zip(cut.task, cut.seconds, cut.late, strict=True):
                assert np.isnan(more) if task not in late else ran + more == pytest.approx(late[task])


def test_phases_add_up_and_follow_one_another(run):
    tasks = tasks_of(run)
    done = tasks.only(tasks.finished)
    log = {row["task"]: row for row in run.log.table("SELECT * FROM chunks")}
    for task, start, end in zip(done.task, done.start, done.end, strict=True):
        assert start == log[task]["dispatched"] and end == pytest.approx(log[task]["received"])
    assert (tasks.seconds >= 0).all() and set(np.unique(tasks.fate)) <= {USED, LATE, SPARE, CUT, OPEN}


def test_the_account_adds_up_to_the_time_of_the_run(run):
    spent = account(run, tasks_of(run))
    assert spent.total == pytest.approx(run.seconds) and all(seconds == 0.0 or seconds > 1e-9 for seconds in spent)


@pytest.mark.parametrize(("strategy", "least"), [("draco:byzantine=1", 1.0), ("m-sgc:B=1,W=3,lambda=2", 0.8)])
def test_the_account_follows_unused_messages_too(strategy, least):
    """Nothing but injected delays takes time here, save that rounds of m-sgc wait for a deadline."""
    with trained(strategy, cluster="simulated", steps=6) as run:
        spent = account(run, tasks_of(run))
        assert least - 1e-9 <= spent.waiting / run.seconds <= 1 + 1e-9
        assert spent.total == pytest.approx(run.seconds) and spent.computing == spent.sending == 0.0


def test_rounds_are_those_that_traces_have(run):
    round_seconds, censored = rounds(tasks_of(run), 6)
    try:
        seconds, cut, _ = task_seconds(run)
    except anyk.BadInput:
        assert not len(round_seconds)
    else:
        np.testing.assert_allclose(round_seconds, seconds)
        np.testing.assert_array_equal(censored, cut)


def test_of_each_worker_all_tasks_are_counted(run):
    tasks = tasks_of(run)
    fractions = shares(tasks, 6)
    assert [one.tasks for one in fractions] == np.bincount(tasks.worker, minlength=6).tolist()
    assert all(one.fates.sum() == one.tasks for one in fractions)


def test_heat_maps_mean_of_columns_is_the_mean_of_tasks():
    with trained("uncoded", steps=8) as run:
        tasks = tasks_of(run)
        seen = heat(tasks, 6)
        assert seen.by_step and seen.seconds.shape == (6, 8)
        np.testing.assert_allclose(
            seen.seconds[2], tasks.seconds[(tasks.worker == 2) & (tasks.fate != OPEN)], rtol=1e-6
        )
        assert not seen.cut.any()


def test_a_lost_task_lasts_until_its_worker_was_lost():
    with trained("frc:load=3", steps=3) as run:
        begun = run.seconds
        run.log.chunk(Ended(900, 0, 4, 3, 0, begun, *[None] * 8, "lost", "model", None, None, None))
        run.log.event(Lost(begun + 0.25, 4, reason="killed", gone=False))
        run.log.flush()
        tasks = tasks_of(run)
        lost = tasks.only(tasks.fate == LOST)
        assert lost.task.tolist() == [900] and lost.seconds.tolist() == pytest.approx([0.25])
        assert lost.step.tolist() == [-1] and not lost.finished.any()


def test_verdicts_say_what_happened():
    with trained("frc:load=3", steps=20) as run, trained("async:lr_scale=0.1", steps=20) as other:
        tasks = tasks_of(run)
        what, how, lesson = run_verdict(run, tasks, account(run, tasks))
        assert what.startswith("frc:load=3 trained") and "6 simulated workers" in what and "20 steps" in what
        assert f"{run.loss:.4g}" in how and "On average a step used 2 messages from 2 of 6 workers" in lesson
        assert departures(run) == [] and "versions old on average" in departures(other)[0]


@pytest.mark.slow
def test_the_verdict_names_the_fastest_and_what_it_traded():
    with anyk.race(PROBLEM, ["uncoded", "frc:load=3", "agc:load=3,wait=2"], workers=6, cluster="simulated",
                   delays="exp:mean=1", steps=20, seed=3) as race:  # fmt: skip
        report_of = race.report()["runs"]
        fastest = max(report_of, key=lambda one: one["speed_up"])
        _, first, caveat = race_verdict(race.runs)
        assert first.startswith(fastest["strategy"]) and f"{fastest['speed_up']:.1f} times as fast as uncoded" in first
        if fastest["strategy"].startswith("agc"):
            assert "frc:load=3" in caveat and "residual" in caveat


@pytest.mark.slow
def test_text_of_runs_stays_text(tmp_path):
    with trained("frc:load=3", steps=3) as run:
        recipe = Recipe(data="</script><img src=x onerror=alert(1)>")
        run.config = replace(run.config, strategy=SCRIPT, problem=recipe)
        run.log.note(1.0, "strategy", f"$$x$$ {SCRIPT}")
        run.log.flush()
        page = report(run, tmp_path / "run.html").read_text(encoding="utf-8")
    assert "alert('run')</script>" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert(" in page


@pytest.mark.slow
def test_one_file_that_asks_no_host(tmp_path):
    with trained("uncoded", workers=20, steps=50) as run:
        assert run.ledger["dispatched"] > 1000
        page = report(run, tmp_path / "run.html")
    html = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 4_000_000
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)\s*=\s*[\"']?(?!data:)[^\"'>]+", html)
    assert "default-src 'none'" in html


@pytest.mark.slow
def test_a_hundred_thousand_tasks_stay_below_8_mb(tmp_path):
    steps, workers, random = 1000, 100, np.random.default_rng(0)
    took = random.exponential(size=(steps, workers, 3))
    with trained("uncoded", steps=1) as run:
        time = run.seconds
        for step in range(1, steps + 1):
            begun, time = time, time + took[step - 1].sum(axis=1).max()
            for worker, (waited, computed, sent) in enumerate(took[step - 1]):
                number, end = step * workers + worker, begun + waited + computed
                run.log.chunk(Ended(number, 0, worker, step, 0, begun, begun, begun + waited, end, end, end + sent,
                                    None, 1, None, "counted", "model", step + 1, 1.0, 0))  # fmt: skip
            run.log.update(Update("model", step + 1, time, workers, 0.0, 1.0, 0.0, 0, 1.0, 0))
        run.log.flush()
        run.config = replace(run.config, workers=Workers(most=workers))
        assert len(tasks_of(run)) >= 100_000
        assert report(run, tmp_path / "run.html").stat().st_size < 8_000_000


@pytest.mark.slow
def test_several_models_have_receipts_of_each(tmp_path):
    with trained("frc:load=3", models=2, steps=4) as run:
        tasks = tasks_of(run)
        assert len(tasks.slots) == 2 and (tasks.finished == (tasks.fate <= SPARE)).all()
        assert "of model" in report(run, tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_cannot_be_reported_is_one_sentence(tmp_path, monkeypatch):
    with trained("frc:load=3", steps=2) as run:
        with pytest.raises(anyk.BadInput, match="a report is written as .html, got"):
            report(run, tmp_path / "run.png")
        with pytest.raises(anyk.BadInput, match="no run to report on"):
            report([], tmp_path / "run.html")
        with pytest.raises(anyk.BadInput, match=r"cannot be written \(No such file or directory\)"):
            report(run, tmp_path / "none" / "run.html")
        monkeypatch.setitem(sys.modules, "bokeh.document", None)
        with pytest.raises(MissingPackage, match=r"a report needs bokeh, .*report"):
            report(run, tmp_path / "run.html")


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    fleet = anyk.cluster("simulated", workers=3)
    anyk.train(PROBLEM, "uncoded", fleet, steps=2, out=tmp_path / "run").close()
    anyk.race(
        PROBLEM, ["uncoded", "frc:load=3"], workers=3, cluster="simulated", steps=2, out=tmp_path / "race"
    ).close()
    ask = CliRunner()
    page = tmp_path / "page.html"
    said = ask.invoke(main, ["report", str(tmp_path / "run"), str(tmp_path / "race"), "-o", str(page)])
    assert said.exit_code == 0 and said.output.startswith(f"report: {page} (")
    assert page.read_text(encoding="utf-8").count("Timeline of the workers") == 3
    wrong = ask.invoke(main, ["report", str(tmp_path / "none"), "-o", str(page)])
    assert wrong.exit_code == 2 and "is not a run folder" in wrong.output


@pytest.mark.slow
def test_a_page_belongs_into_the_folder_of_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet = anyk.cluster("simulated", workers=3)
    anyk.train(PROBLEM, "uncoded", fleet, steps=2, out="run").close()
    mine = tmp_path / "report.html"
    mine.write_text("mine")
    ask = CliRunner()
    said = ask.invoke(main, ["report", "run"])
    assert said.exit_code == 0 and said.output.startswith("report: run/report.html ("), said.output
    assert "in place of" not in said.output and "in place of" in ask.invoke(main, ["report", "run"]).output
    assert ask.invoke(main, ["verify", "run"]).exit_code == 0
    several = ask.invoke(main, ["report", "run", "run"])
    assert several.exit_code == 2 and "name its file, as in -o both.html" in several.output
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").symlink_to(mine)
    forged = ask.invoke(main, ["report", "run"])
    assert forged.exit_code == 2 and mine.read_text() == "mine", forged.output
    with anyk.Run.open("run") as run, pytest.raises(anyk.BadInput, match="needs the name of its file"):
        report([run, run])
    with trained("uncoded", 3) as run, pytest.raises(anyk.BadInput, match="needs the name of its file"):
        report(run)


def test_waiting_for_the_deadline_is_not_computing():
    """With 10 ms a partition and delays of 20 ms a worker is idle for most of a deadline of 0.5 s that one never meets."""
    law = "hetero:means=0.02/0.02/0.02/9"
    with trained("anytime:deadline=0.5,parts=2", 4, cluster="simulated:partition=0.01,cores=4", delays=law) as run:
        tasks = tasks_of(run)
        spent = account(run, tasks)
        assert 0.0 < spent.computing <= 0.02 * run.steps + 1e-9 < 0.1 * run.seconds
        assert spent.total == pytest.approx(run.seconds) and spent.driver > 0.5 * run.seconds
        used = tasks.only(tasks.fate <= LATE)
        assert (used.idle > 0.3).any() and (used.computing <= 0.02 + 1e-9).all()
        assert float(np.nanmax(heat(tasks.only(tasks.fate <= LATE), 4).seconds)) < 0.3


def test_several_models_are_told_by_task_and_by_worker():
    with trained(
        "m-sgc:B=1,W=3,lambda=4", steps=6, models=4, cluster="simulated", delays="bimodal:fast=0.1,slow=1"
    ) as run:
        tasks = tasks_of(run)
        what, _, lesson = run_verdict(run, tasks, account(run, tasks))
        assert "trained 4 models on synthetic" in what
        count, workers = re.search(r"used ([\d.]+) messages from ([\d.]+) of 6 workers", lesson).groups()
        assert float(workers) <= 6 < float(count)
        first = tasks.first
        longest = (np.maximum.reduceat(tasks.end, first) - tasks.start[first])[
            np.maximum.reduceat(tasks.fate, first) != OPEN
        ].max()
        seen = heat(tasks, 6)
        assert not seen.by_step and float(np.nanmax(seen.seconds)) == pytest.approx(longest)


def test_the_axis_of_a_metric_leaves_out_its_steep_beginning():
    steep = np.concatenate([np.linspace(0.1, 0.88, 5), np.linspace(0.88, 0.93, 40)])
    slow = np.linspace(0.85, 0.93, 20)
    low = lower_end([(np.arange(45.0), steep), (np.arange(20.0), slow)])
    assert 0.8 < low < np.median(slow)
    assert lower_end([(np.arange(20.0), slow)]) is None  # a single line is drawn from its beginning


def test_weights_in_receipts_are_found_by_the_number_of_the_work():
    """Works that differ only in the state of their worker share partitions and coefficients."""
    with trained("uncoded", steps=4, cluster="simulated") as run:
        run.log.rows("INSERT INTO works SELECT id + 100, partitions, coefficients, slot, send, batch, repeat, steps, mix, "
                     "share, 7, compress FROM works")  # fmt: skip
        run.log.rows("UPDATE chunks SET work = work + 100 WHERE step > 2")
        filled = content([run], [])
        kinds = filled["about"]["runs"][0]["works"]
        timeline = filled["figures"]["run0 timeline"]
        (used,) = {
            one.data_source.name: one.data_source for one in timeline.renderers if one.name == "waiting"
        }.values()
        assert len(kinds) == 6 and sorted(set(used.data["work"].tolist())) == list(range(6))
        for worker, work in zip(used.data["worker"], used.data["work"], strict=True):
            assert kinds[work][0] == [worker]


@pytest.mark.slow
def test_absent_workers_are_shown_and_counted(tmp_path):
    outages = [anyk.clusters.Outage(4.5, 2, 12.5, notice=1.0), anyk.clusters.Outage(8.5, 5, 1e9, notice=1.0)]
    cluster = anyk.clusters.Simulated(6, delays="constant:1", outages=outages)
    with anyk.train(PROBLEM, "uncoded", cluster, workers=(3, 6), steps=16) as run:
        assert run.seconds == 16.0
        values = content([run], [])
        verdict = values["runs"][0]["verdict"][0]
        # 8 s without one worker, 7.5 s without another, of which 4 s together
        assert verdict.endswith("Between 4 and 6 workers were present, 5.0 on average.")
        bars = values["figures"]["run0 timeline"].select_one({"name": "absent"}).data_source.data
        assert list(zip(bars["worker"], bars["left"], bars["back"], strict=True)) == [(2, 4.5, 12.5), (5, 8.5, 16.0)]
        fleets = [line.partition(" on:")[0] for _, line in values["about"]["runs"][0]["fleet"]]
        assert fleets == [f"{n} workers from step {step}" for n, step in ((6, 0), (5, 4), (4, 8), (5, 13))]
    with trained("uncoded") as run:
        values = content([run], [])
        assert "present" not in values["runs"][0]["verdict"][0] and not values["runs"][0]["absent"]
