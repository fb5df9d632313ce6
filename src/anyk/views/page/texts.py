"""The sentences of a report: settings, results and conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anyk.base import BadInput, Flags, Floats
from anyk.codes import EXACT
from anyk.fleet import Record, explain, percent
from anyk.runs import OverSeeds, Run, SeedsComparison, Tasks, absences, compare_seeds
from anyk.runs.api import CUT, LATE, LOST, SPARE, Recipe, RunConfig, log_columns
from anyk.views.page.account import Account
from anyk.views.plots import on_virtual_clock
from anyk.views.prose import count_steps, duration
from anyk.views.result_tables import mean_staleness, ratio_to_floor

_CELLS = 20_000  # largest number of times that are explained, because more would take seconds
_WHERE = {
    "processes": "processes on one machine",
    "simulated": "simulated workers (seconds are virtual)",
    "ray": "Ray actors",
    "mpi": "MPI ranks",
    "nodes": "processes on several machines",
}


def subject(config: RunConfig) -> str:
    """Return the model and its data in words, as far as the configuration names them."""
    recipe = config.problem or Recipe()
    if recipe.many is not None:
        data = dict.fromkeys(component.data or "a model" for component in recipe.many)
        return f"{len(recipe.many)} models on {', '.join(data)}"
    names = [name for name in (recipe.model, recipe.data, Path(recipe.problem or "").name) if name]
    return " on ".join(names if recipe.model else ["a model", *names])


def where(config: RunConfig) -> str:
    """Return the number of workers, their cluster and the injected delays in words."""
    name = config.cluster.partition(":")[0]
    delays = config.delays
    delay_text = "no injected delays" if delays == "none" else f"injected delays {delays}"
    return f"{config.workers} {_WHERE.get(name, f'workers of {name}')} and {delay_text}"


def run_verdict(run: Run, tasks: Tasks, spent: Account) -> list[str]:
    """Return three sentences about a run: its settings, its end, and its average step."""
    config = run.config
    settings = f"{config.strategy} trained {subject(config)} with {where(config)}: {count_steps(run.steps - run.begun)}"
    settings += f" in {duration(run.seconds)}."
    return [settings + _presence(run) * bool(len(tasks)), _ending(run), _average_step(run, tasks, spent)]


def _presence(run: Run) -> str:
    """Return a sentence about the number of workers, if it changed."""
    workers, end = run.config.workers.most, run.seconds
    absent = [(absence.start, min(absence.end, end)) for absence in absences(run.log, workers) if absence.start < end]
    if not absent:
        return ""
    starts, ends = np.transpose(absent)
    present = [workers - int(((starts <= time) & (time < ends)).sum()) for time in {0.0, *starts, *ends} - {end}]
    mean = workers - (ends - starts).sum() / end
    return f" Between {min(present)} and {max(present)} workers were present, {mean:.1f} on average."


def _ending(run: Run) -> str:
    """Return a sentence about the newest model, the target and the reason of the end."""
    value = (run.metric or {}).get("value")
    results = [] if run.loss is None else [f"a loss of {run.loss:.4g}"]
    results += [] if value is None else [f"{run.metric_name} {value:.4g}"]
    model = "final model" if run.ledger else "newest model that was evaluated"  # without a ledger the run has not ended
    end = f"The {model} has {' and '.join(results)}" if results else "No model has been evaluated"
    target = run.config.target
    if target is not None and run.time_to_target is not None:
        end += f"; the target of {target:g} was reached after {duration(run.time_to_target)}"
    elif target is not None:
        end += f"; the target of {target:g} was not reached"
    last = (run.notes or [{}])[-1]
    if last.get("kind") in ("failed", "interrupted"):
        end += f"; the run {'failed' if last['kind'] == 'failed' else 'was interrupted'} ({last['text']})"
    return end + "."


def _average_step(run: Run, tasks: Tasks, spent: Account) -> str:
    """Return a sentence about the messages of an average step, and about the use of the run's time."""
    jobs = max(run.jobs, 1)
    used = float(np.nansum(run.history["replies"])) / max(run.steps - run.begun, 1)
    counted = tasks.only((tasks.fate <= LATE) & (tasks.step >= 0))
    senders = len(np.unique(np.stack([counted.slot, counted.step, counted.worker]), axis=1).T) / jobs
    cut, spare = (float((tasks.fate == fate).sum()) / jobs for fate in (CUT, SPARE))
    plural = "message" if f"{used:.3g}" == "1" else "messages"
    sentence = f"On average a step used {used:.3g} {plural}"
    sentence += f" from {senders:.3g} of {run.config.workers.most} workers" if senders else ""
    sentence += f", cut off {cut:.3g} tasks and left {spare:.3g} messages unused" if cut or spare else ""
    ratio = ratio_to_floor(run)
    if ratio is not None:
        longer = "no longer than" if ratio < 1.005 else f"{ratio:.3g} times as long as"
        return f"{sentence}; the run took {longer} its delays alone make it."
    name, most = max(zip(spent._fields, spent, strict=True), key=lambda item: item[1])
    # the driver takes no virtual time
    other_text = "spent until deadlines" if on_virtual_clock(run) else "spent in the driver or until deadlines"
    use = {"waiting": "waiting for delays and orders", "driver": other_text}.get(name, name)
    if not most:
        return f"{sentence}."
    return f"{sentence}; the largest part of the time, {percent(most / spent.total)}, was {use}."


def race_verdict(runs: Sequence[Run]) -> list[str]:
    """Return three sentences about several runs: their settings, the fastest strategy, and a caveat."""
    comparison = compare_seeds(runs)
    first = runs[0]
    seeds = max(len(strategy.runs) for strategy in comparison.strategies)
    count = len(comparison.strategies)
    plural = "strategies" if count > 1 else "strategy"
    sentence = f"{count} {plural} trained {subject(first.config)} with {where(first.config)}"
    sentence += f", each with {seeds} seeds" if seeds > 1 else ""
    different = differing_settings(runs)
    sentence += f"; the runs differ in {', '.join(different)}, so compare them with care." if different else "."
    values = [
        (value, i)
        for i, strategy in enumerate(comparison.strategies)
        if (value := _ranking_value(strategy, comparison)) is not None
    ]
    ranked = [comparison.strategies[i] for _, i in sorted(values)]
    if not ranked:
        reason = "They cannot be compared by speed: no two came equally far."
        if comparison.by == "target":
            reason = "None of them reached the target."
        return [sentence, reason, "Each run's own account is below."]
    best = ranked[0]
    return [sentence, _fastest(best, comparison), _caveat(best, ranked, comparison)]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings, other than strategy and seed, in which runs differ."""
    names = ("workers", "cluster", "delays", "communication", "optimizer", "lr", "problem")
    return [name for name in names if len({repr(getattr(run.config, name)) for run in runs}) > 1]


def _ranking_value(strategy: OverSeeds, comparison: SeedsComparison) -> float | None:
    """Return the value by which strategies are ranked: seconds to the target, seconds a job, or 1 / speed-up."""
    if comparison.by == "target":
        return strategy.spread(lambda run: run.time_to_target).median
    if comparison.by == "job":
        return strategy.spread(lambda run: None if run.asynchronous else run.seconds_a_job).median
    speed = strategy.speed_up and strategy.speed_up.median
    return 1.0 / speed if speed else None


def _fastest(best: OverSeeds, comparison: SeedsComparison) -> str:
    """Return a sentence about the fastest strategy, compared with the reference."""
    relation = f"{comparison.over} was the reference"
    value = _ranking_value(best, comparison)
    if best.strategy == comparison.over:
        relation = "the reference itself"
    elif best.speed_up is not None and best.speed_up.median is not None:
        bound = "more than " if best.at_least else ""
        relation = f"{bound}{best.speed_up.median:.1f} times as fast as {comparison.over}"
    median = "a median of " if len(best.runs) > 1 else ""
    if comparison.by == "target" and value is not None:
        target = best.runs[0].config.target
        return (
            f"{best.strategy} was the fastest to reach {best.runs[0].metric_name} {target:g}, "
            f"in {median}{duration(value)}: {relation}."
        )
    if comparison.by == "job" and value is not None:
        return f"{best.strategy} was the fastest, with {median}{duration(value)} a step of one model: {relation}."
    return f"{best.strategy} was the fastest to reach the lowest loss that the reference reached too: {relation}."


def _caveat(best: OverSeeds, ranked: Sequence[OverSeeds], comparison: SeedsComparison) -> str:
    """Return a sentence about strategies that are not ranked, or about the steps of the fastest strategy."""
    unranked = [strategy.strategy for strategy in comparison.strategies if strategy not in ranked]
    if unranked:
        return f"Not ranked, because most of their runs did not come as far: {', '.join(unranked)}."
    differences = ", ".join(departures(best.runs[0]))
    if not differences:
        return "Its steps were the exact full gradient, so that nothing was traded for the speed."
    other = next((strategy for strategy in ranked if not departures(strategy.runs[0])), None)
    if other is None:
        return f"Its steps were not those of the full gradient: {differences}."
    speed = "" if other.speed_up is None or other.speed_up.median is None else f" ({other.speed_up.median:.1f} times)"
    return (
        f"Its steps were not those of the full gradient ({differences}); the fastest strategy with exact steps was "
        f"{other.strategy}{speed}."
    )


def compare_with_plan(run: Run) -> str:
    """Return sentences that compare a run with its plan's promise; empty without a plan."""
    plan = run.config.plan
    if not plan:
        return ""
    interval, steps_taken = plan.seconds_per_step, max(run.steps - run.begun, 1)
    seconds = run.seconds / steps_taken
    position = "above" if seconds > interval.high else "below" if seconds < interval.low else "within"
    sentences = (
        f"The plan promised {duration(interval.median)} a step ({duration(interval.low)} to {duration(interval.high)}) "
        f"for a run of {plan.horizon:,} steps; this run of {count_steps(steps_taken)} took {duration(seconds)} a step, "
        f"{position} that interval"
    )
    if plan.verdict == "change":
        expected = duration(plan.today.seconds_per_step.median)
        sentences += f". Today's strategy, {plan.today.strategy}, was expected to take {expected}"
    return sentences + "."


def departures(run: Run) -> list[str]:
    """Return how a run's steps differed from the full gradient of the newest model; [] if they were exact."""
    ways = []
    if run.asynchronous:
        ways.append(f"messages were {mean_staleness(run.staleness()) or 0.0:.3g} versions old on average")
    residual = float(np.nanmax(run.history["residual"], initial=0.0))
    if not run.asynchronous and residual > EXACT:
        ways.append(f"residual up to {residual:.2g}")
    works = log_columns(run.log, "works")
    if (works["steps"] > 0).any():
        ways.append("workers took local steps")
    if (works["batch"] > 0).any():
        ways.append("mini-batches")
    if any(works["compress"]):
        ways.append("compressed messages")
    return ways


def explain_run(run: Run, tasks: Tasks) -> tuple[str, list[str]]:
    """Return an introduction and the sentences of :func:`anyk.explain` about a run, or the reason for their absence."""
    workers = run.config.workers.most
    times, censored = rounds(tasks, workers)
    most = max(_CELLS // workers, 2)
    try:
        if len(times) < 2:
            return "This run cannot tell: its workers were never all given tasks at the same time.", []
        record = Record(times[:most], censored[:most])
        if record.cut > 0.5:
            return (
                f"{percent(record.cut)} of the tasks were cut off, and how long they would have taken is not known. "
                "So this run cannot tell what slow workers would cost; a run of 'uncoded' can.",
                [],
            )
        explanation = explain(record)
    except BadInput as error:
        return f"This run cannot tell: {error}.", []
    head = "If every step had waited for all workers"
    head += f" (the first {most:,} of {len(times):,} rounds)" if len(times) > most else ""
    return head + ":", [sentence[:1].upper() + sentence[1:] + "." for sentence in explanation.sentences]


def rounds(tasks: Tasks, workers: int) -> tuple[Floats, Flags]:
    """Return seconds of tasks, shape (rounds, workers), and a mask of the times that are lower bounds.

    A round is a time at which every worker was given a task. This is a fast version of
    :func:`anyk.runs.log.delay_trace.task_seconds`, for pages of 100,000 tasks.
    """
    tasks = tasks.only(tasks.fate != LOST)
    if not len(tasks):
        return np.empty((0, workers)), np.empty((0, workers), bool)
    first = tasks.first
    finite = np.isfinite(tasks.late)
    end = np.maximum.reduceat(tasks.end + np.where(finite & ~tasks.finished, tasks.late, 0.0), first)
    cut = np.logical_or.reduceat(~finite & ~tasks.finished, first)
    start, worker = tasks.start[first], tasks.worker[first]
    starts, row = np.unique(start, return_inverse=True)
    count = np.zeros((len(starts), workers), dtype=np.int64)
    np.add.at(count, (row, worker), 1)
    times, censored = np.zeros(count.shape), np.zeros(count.shape, dtype=bool)
    times[row, worker], censored[row, worker] = end - start, cut
    complete = (count == 1).all(axis=1) & ~censored.all(axis=1)
    return times[complete], censored[complete]
