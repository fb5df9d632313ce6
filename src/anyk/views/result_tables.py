"""Results as tables: runs, coefficients and staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anyk.base import BadInput, as_bad_input, needing
from anyk.problems import Coefficients
from anyk.runs import OverSeeds, Run, SeedsComparison, compare, compare_seeds, grouped, mean_over, spread
from anyk.runs.api import ASSUMED, DIFFERENT, LIMIT, SHOWN_FROM, ClusterSpeed, finite_values
from anyk.views.columns import Columns, shortened
from anyk.views.style import COLOURS, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FREE = 0.05  # computing counts as free if it takes a smaller share of a task's delay
_WIDEST = 16  # largest number of characters of the reference's spec in a title


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for a table; a dash if it is missing or not a number."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """Return seconds for a table."""
    return "–" if value is None else f"{value:.3f}" if value < 10 else f"{value:.2f}"


def ratio_to_floor(run: Run) -> float | None:
    """Return a run's seconds over its floor; None if the floor is too small for a meaningful ratio."""
    floor = run.floor_seconds
    steps = run.steps - run.begun
    if not floor or not steps or floor / steps < SHOWN_FROM:
        return None
    return run.seconds / floor


class _Column(NamedTuple):
    """A column of numbers: functions that return a run's value and its cell, and the number that replaces None."""

    title: str
    value: Callable[[Run], float | None]
    cell: Callable[[Any], str]
    missing: float = math.inf


def _metric(name: str, run: Run) -> float | None:
    return {**run.metrics, run.metric_name: (run.metric or {}).get("value")}.get(name)


def _columns(runs: Sequence[Run], *, single: bool) -> list[_Column]:
    """Return the columns that the runs need; ``single``: each strategy ran with one seed."""
    many_models = any(run.models_trained > 1 for run in runs)
    target = next((run.config.target for run in runs if run.config.target is not None), None)
    ratio = _Column("ratio", ratio_to_floor, lambda ratio: "–" if ratio is None else f"{ratio:.3f}")
    several = [_Column("models", attrgetter("models_trained"), str), _Column("jobs", attrgetter("jobs"), str)]
    columns = [
        _Column("steps", attrgetter("steps"), "{:.12g}".format),
        *several * (many_models and single),
        _Column("seconds", attrgetter("seconds"), seconds),
        *[_Column("seconds\na job", attrgetter("seconds_a_job"), seconds)] * many_models,
        *[_Column("floor\ns", attrgetter("floor_seconds"), seconds), ratio] * single,
        _Column("loss", attrgetter("loss"), number),
        *_metric_columns(runs),
    ]
    if single and any(_lost_target(run) for run in runs):
        columns.append(_Column("best", attrgetter("best"), number))
    if target is not None:
        columns.append(_Column(f"s to\n{target:g}", attrgetter("time_to_target"), seconds))
    return columns


def _metric_columns(runs: Sequence[Run]) -> list[_Column]:
    """Return a column for each metric of the runs, their own before the further ones."""
    worst = -math.inf if runs[0].config.better == "higher" else math.inf
    metrics = {run.metric_name: (run.metric_name, worst) for run in runs if run.metric} or {"metric": ("metric", worst)}
    for name, title in (("accuracy", "accuracy"), ("r2", "R²")):
        if any(name in run.metrics for run in runs):
            metrics.setdefault(name, (title, -math.inf))
    return [
        _Column(title=title, value=partial(_metric, name), cell=number, missing=missing)
        for name, (title, missing) in metrics.items()
    ]


def race_table(runs: Sequence[Run]) -> Columns:
    """Return a row for each strategy; with several, also its speed-up (:func:`anyk.runs.compare`).

    With several seeds, each strategy has three rows: median, least and largest.
    """
    if max(map(len, grouped(runs))) > 1:
        return _seeds_table(compare_seeds(runs))
    columns = _columns(runs, single=True)
    titles = ["strategy", *(column.title for column in columns)]
    rows = [[run.config.strategy, *(column.cell(column.value(run)) for column in columns)] for run in runs]
    if len(runs) > 1:
        over, by, speed_ups = compare(runs)
        titles += ["at\nloss"] * (by == "loss")
        job = "\na job" * (by == "job")
        titles += [f"speed-up{job}\nvs {shortened(over, _WIDEST)}"]
        for row, speed_up in zip(rows, speed_ups, strict=True):
            row += [number(speed_up.at)] * (by == "loss")
            row += [_speed_up_text(speed_up.times, at_least=speed_up.at_least)]
    return Columns(titles, rows)


def _seeds_table(comparison: SeedsComparison) -> Columns:
    """Return three rows for each strategy: the median over the seeds, the least and the largest."""
    columns = _columns([run for strategy in comparison.strategies for run in strategy.runs], single=False)
    titles = ["strategy,\nmedian", "seeds", *(column.title for column in columns)]
    reached = comparison.strategies[0].reached is not None
    compared = len(comparison.strategies) > 1
    titles += ["reached"] * reached + [f"speed-up\nvs {shortened(comparison.over, _WIDEST)}"] * compared
    rows = []
    for strategy in comparison.strategies:
        seeds = len(strategy.runs)
        cells: list[tuple[str, ...]] = [(str(seeds), "", "")]
        for column in columns:
            values = spread(map(column.value, strategy.runs), missing=column.missing)
            cells.append(tuple(map(column.cell, values)))
        cells += [(f"{strategy.reached} of {seeds}", "", "")] * reached
        if compared:
            speed_up_text = partial(_speed_up_text, at_least=strategy.at_least)
            cells.append(tuple(map(speed_up_text, strategy.speed_up or (None, None, None))))
        rows += [list(row) for row in zip((strategy.strategy, "  least", "  largest"), *cells, strict=True)]
    return Columns(titles, rows, dim=[i for i in range(len(rows)) if i % 3])


def _mean_texts(strategy: OverSeeds, plus_minus: str = "±") -> dict[str, str]:
    """Return the mean of each value over the seeds as text, with half of its interval; a dash without a mean."""
    texts = {}
    for name, values in strategy.values().items():
        mean, low, high = mean_over(values)
        half = "" if low is None or high is None else f" {plus_minus} {(high - low) / 2.0:.2g}"
        texts[name] = "–" if mean is None else f"{mean:.4g}{half}"
    return texts


def _mean_titles(strategies: Sequence[OverSeeds], over: str) -> dict[str, str]:
    """Return the titles of the values that some strategy has."""
    run = strategies[0].runs[0]
    titles = {"steps": "steps", "seconds": "seconds", "loss": "loss", "metric": run.metric_name}
    if run.config.target is not None:
        titles["time_to_target"] = f"s to {run.config.target:g}"
    if len(strategies) > 1:
        titles["speed_up"] = f"speed-up vs {shortened(over, _WIDEST)}"
    occurring = {name for strategy in strategies for name, values in strategy.values().items() if set(values) != {None}}
    return {name: title for name, title in titles.items() if name in occurring}


MEAN_NOTE = "means over the seeds, with 95 % confidence intervals by Student's t; none where a seed has no value"


def mean_table(runs: Sequence[Run]) -> Columns:
    """Return a row for each strategy of a race with several seeds: means and 95 % confidence intervals (Student's t).

    A value that some seed does not have, such as the seconds to a target that it missed, has no mean.
    """
    over, _, strategies, _ = compare_seeds(runs)
    titles = _mean_titles(strategies, over)
    rows = []
    for strategy in strategies:
        texts = _mean_texts(strategy)
        rows.append([strategy.strategy, str(len(strategy.runs)), *(texts[name] for name in titles)])
    return Columns(["strategy,\nmean ± 95 %", "seeds", *titles.values()], rows)


TABLE_ENDINGS = (".tex", ".csv")


def check_table_packages(path: str | Path) -> None:
    """Raise BadInput if a race's table cannot be written in the format of its file name, or a package is missing."""
    ending = Path(path).suffix.lower()
    if ending not in TABLE_ENDINGS:
        raise BadInput(f"a table is written as {' or '.join(TABLE_ENDINGS)}, got '{path}'")
    with needing("pandas", "data", "a table as a file"):
        import pandas  # noqa: F401
    if ending == ".tex":
        with needing("Jinja2", "report", "a table for LaTeX"):
            import jinja2  # noqa: F401


def save_race_table(runs: Sequence[Run], path: str | Path) -> None:
    """Write a row for each strategy into a file for LaTeX (.tex, with booktabs) or other programs (.csv).

    ``.tex``: means and 95 % confidence intervals over the seeds (Student's t), as in :func:`mean_table`. ``.csv``: of
    each value ``_mean``, ``_low`` and ``_high`` (ends of the interval), ``_median``, ``_least`` and ``_most``.

    Raises :class:`~anyk.BadInput` for other endings and files that cannot be written, and
    :class:`~anyk.base.errors.MissingPackage` without pandas and, for LaTeX, Jinja2.
    """
    check_table_packages(path)
    import pandas

    over, _, strategies, _ = compare_seeds(runs)
    titles = _mean_titles(strategies, over)
    with as_bad_input(f"the table '{path}' cannot be written"):
        if Path(path).suffix.lower() == ".csv":
            pandas.DataFrame([_csv_row(strategy, titles) for strategy in strategies]).to_csv(path, index=False)
            return
        rows = []
        for strategy in strategies:
            texts = _mean_texts(strategy, r"$\pm$")
            rows.append([strategy.strategy, len(strategy.runs), *(texts[name].replace("–", "--") for name in titles)])
        frame = pandas.DataFrame(rows, columns=["strategy", "seeds", *titles.values()])
        styled = frame.style.format(escape="latex", subset=["strategy"]).format_index(escape="latex", axis=1)
        table = styled.hide(axis="index").to_latex(hrules=True, column_format="l" + "r" * (len(titles) + 1))
        Path(path).write_text(f"% {MEAN_NOTE}; needs \\usepackage{{booktabs}}\n{table}", encoding="utf-8")


def _csv_row(strategy: OverSeeds, titles: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of a strategy by column."""
    row: dict[str, Any] = {"strategy": strategy.strategy, "seeds": len(strategy.runs), "reached": strategy.reached}
    result = strategy.result()
    for name in titles:
        column = strategy.runs[0].metric_name if name == "metric" else name
        for statistic in ("mean", "low", "high", "median", "least", "most"):
            row[f"{column}_{statistic}"] = (result[name] or {}).get(statistic)
    return row


def _speed_up_text(value: float | None, at_least: bool = False) -> str:
    return "–" if value is None else f"{'> ' * at_least}{value:.1f}x"


def race_notes(runs: Sequence[Run]) -> list[str]:
    """Return notes for below a race's table: on missed targets, losses at the end, and load that costs nothing."""
    groups = grouped(runs)
    many_seeds = any(len(group) > 1 for group in groups)
    lines = ["medians over the seeds; below them the least and the largest value"] * many_seeds
    lines += [note for group in groups if (note := _missed_target(group)) is not None]
    lines += [
        f"{run.config.strategy}: {note['text']}" for run in runs for note in run.notes if note["kind"] == DIFFERENT
    ]
    lines += dict.fromkeys(note["text"] for run in runs for note in run.notes if note["kind"] == ASSUMED)
    if len({run.models_trained for run in runs}) > 1:
        most = max(run.models_trained for run in runs)
        lines.append(f"a job is a step of one model; --models {most} gives all strategies as many models")
    return lines + _loss_notes(runs) + load_notes(runs)


def _missed_target(group: Sequence[Run]) -> str | None:
    """Return a note on the seeds of a strategy that did not reach its target, or None.

    A single run that ended before its last step has none.
    """
    run, target = group[0], group[0].config.target
    missed = [other for other in group if other.time_to_target is None]
    if target is None or not missed:
        return None
    if len(group) > 1:
        seeds = ", ".join(str(other.config.seed) for other in missed)
        return (
            f"{run.config.strategy} reached {target:g} with {len(group) - len(missed)} of {len(group)} seeds, "
            f"not with {seeds}; these seeds count as slower than all others"
        )
    steps = run.config.steps
    if steps is None or run.steps < steps:
        return None
    by_default = steps == run.begun + LIMIT and run.config.seconds is None
    note = f"{run.config.strategy} did not reach {target:g} in {steps:,} steps"
    return f"{note}, the default limit" if by_default else note


def _loss_notes(runs: Sequence[Run]) -> list[str]:
    """Return notes on the accuracy of a constant model, and on losses that still fall or have risen."""
    lines = []
    majority = next((run.metrics["majority"] for run in runs if "majority" in run.metrics), None)
    if majority is not None:
        lines.append(f"for comparison, the most frequent class alone has accuracy {number(majority)}")
    falling, rising = ([run for run in runs if at_end(run)] for at_end in (falls_fast, _has_risen))
    if falling:
        lines.append(
            f"{_name_losses(falling, runs)} was still falling fast at the end; more steps, or another learning "
            f"rate than {falling[0].config.lr}, would probably lower it further"
        )
    if rising:
        lines.append(
            f"{_name_losses(rising, runs)} ended above that of the first model; lower the learning rate (now "
            f"{rising[0].config.lr})"
        )
    return lines


def _name_losses(affected: Sequence[Run], runs: Sequence[Run]) -> str:
    """Return the subject of a line about losses, with the strategies unless all runs are affected."""
    specs = dict.fromkeys(run.config.strategy for run in affected)
    return "the loss" if len(affected) == len(runs) else f"the loss of {', '.join(specs)}"


def falls_fast(run: Run) -> bool:
    """Return whether the loss was still falling fast at the end; False if the run reached its target.

    The medians of the third and the last quarter of the steps differ by more than a twentieth of the whole fall, or by
    more than a tenth of the last loss and, because of losses that approach 0, a thousandth of the whole fall or of the
    loss of a constant model, whichever is less: a target far from 0 has a first loss of any size.
    """
    steps, losses = finite_values(run, against="step")
    if run.time_to_target is not None or steps.size < 4:
        return False
    share = (steps - steps[0]) / (steps[-1] - steps[0])
    third, last = losses[(share >= 0.5) & (share < 0.75)], losses[share >= 0.75]
    if not third.size:
        return False
    fall, whole_fall, remaining = np.median(third) - np.median(last), losses[0] - losses[-1], abs(losses[-1])
    scale = min(whole_fall, _constant_loss(run.metrics))
    return bool(whole_fall > 0.0 and (fall > whole_fall / 20 or fall > max(remaining / 10, scale / 1000)))


def _constant_loss(metrics: Mapping[str, float]) -> float:
    """Return the least loss of a model that tells rows not apart, as far as metrics of held-out rows show it."""
    if "mse" in metrics and metrics.get("r2", 1.0) < 1.0:
        return 0.5 * metrics["mse"] / (1.0 - metrics["r2"])
    if "auc" in metrics and metrics.get("majority", 1.0) < 1.0:
        share = metrics["majority"]
        return -share * math.log(share) - (1.0 - share) * math.log(1.0 - share)
    return math.inf


def _has_risen(run: Run) -> bool:
    _, losses = finite_values(run)
    failed = any(note["kind"] == "failed" for note in run.notes[-1:])  # the reason is printed anyway
    return bool(not failed and losses.size > 1 and losses[-1] > losses[0])


def load_notes(runs: Sequence[Run]) -> list[str]:
    """Return a note if runs differ in load, and load costs nothing or little compared with the delays."""
    costs = [run.cost for run in runs]
    if not costs or max(cost.load for cost in costs) == min(cost.load for cost in costs):
        return []
    computing = max(cost.computing for cost in costs)
    waiting = max(cost.waiting for cost in costs)
    if any(cost.by_load for cost in costs) or computing > FREE * waiting or not waiting:
        return []
    loads = f"{min(cost.load for cost in costs):.3g} to {max(cost.load for cost in costs):.3g} of the data per worker"
    if not computing:
        return [
            f"load costs nothing here ({loads}): computing takes no time, and delays do not depend on load; to charge "
            "for it, use --cluster simulated:partition=SECONDS or delays with per=load (of a trace: slope=SECONDS)"
        ]
    return [
        f"load costs next to nothing here ({loads}): computing takes {1e3 * computing:.2g} ms of a task, the injected "
        f"delay {1e3 * waiting:.3g} ms"
    ]


def _lost_target(run: Run) -> bool:
    """Return whether the final model misses the target that an earlier version reached."""
    value = (run.metric or {}).get("value")
    if run.time_to_target is None or value is None:
        return False
    target = run.config.target
    return bool(value < target if run.config.better == "higher" else value > target)


def speed_table(speed: ClusterSpeed) -> Columns:
    """Return the speed of a cluster's messages, a row for each message size."""
    rows = []
    for of_size in speed.speeds:
        rate = speed.bandwidth(of_size)
        rows.append(
            [
                f"{of_size.size / 1e6:g} MB",
                f"{1e3 * of_size.trip:.2f}",
                "–" if rate is None else f"{rate / 1e6:,.0f}",
                f"{1e3 * of_size.step:.2f}",
                f"{1e3 * of_size.floor:.2f}",
                f"{of_size.ratio:.2f}",
            ]
        )
    return Columns(["message", "round trip ms", "MB/s", "step ms", "floor ms", "step / floor"], rows)


_ROWS = 100  # largest number of coefficients in a table


def coefficients_table(coefficients: Coefficients) -> tuple[Columns, str]:
    """Return a table of intercept and coefficients, and a sentence about omitted columns; empty if there are none.

    >>> table, _ = coefficients_table(Coefficients(("size",), np.array([[2.0]]), np.array([0.5]), ("price",)))
    >>> table.rows
    [['intercept', '0.5'], ['size', '2']]
    """
    rows_shown, note = np.arange(len(coefficients.names)), ""
    if len(rows_shown) > _ROWS:
        rows_shown = np.sort(np.argsort(-np.abs(coefficients.weights).max(axis=1), kind="stable")[:_ROWS])
        note = f"the {_ROWS} largest of {len(coefficients.names):,} columns; --json - writes all"
    rows = [["intercept", *_texts(coefficients.intercepts)]]
    rows += [[coefficients.names[i], *_texts(coefficients.weights[i])] for i in rows_shown.tolist()]
    return Columns(["column", *coefficients.outputs], rows), note


def coefficients_report(coefficients: Coefficients) -> dict[str, Any]:
    """Return all coefficients as plain data, in the shape that ``--json`` writes."""
    return {
        "outputs": list(coefficients.outputs),
        "intercepts": coefficients.intercepts.tolist(),
        "coefficients": [
            {"column": name, "values": row}
            for name, row in zip(coefficients.names, coefficients.weights.tolist(), strict=True)
        ],
    }


def _texts(values: Any) -> list[str]:
    return [f"{value:.6g}" for value in values.tolist()]


_STALENESS_ROWS = 20  # if more values occur, each row covers several


def staleness_table(counts: Mapping[int, int]) -> Columns:
    """Return messages by staleness (:meth:`Run.staleness`), with their share and the cumulative share.

    >>> staleness_table({0: 30, 1: 10}).rows
    [['0', '30', '75.0 %', '75.0 %'], ['1', '10', '25.0 %', '100.0 %']]
    """
    total, cumulative = sum(counts.values()), 0
    width = max(counts, default=0) // _STALENESS_ROWS + 1
    rows = []
    for low in range(0, max(counts, default=-1) + 1, width):
        count = sum(counts.get(value, 0) for value in range(low, low + width))
        cumulative += count
        name = str(low) if width == 1 else f"{low} to {low + width - 1}"
        rows.append([name, str(count), f"{100 * count / total:.1f} %", f"{100 * cumulative / total:.1f} %"])
    return Columns(["staleness", "messages", "share", "up to here"], rows)


def mean_staleness(counts: Mapping[int, int]) -> float | None:
    """Return the mean staleness of the messages used; None without messages.

    >>> mean_staleness({0: 30, 1: 10})
    0.25
    """
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else None


def plot_staleness(run: Run, path: str | Path | None = None) -> Figure:
    """Plot the share of messages by staleness, with the geometric distribution of the same mean.

    With n workers whose delays are exponential, asynchronous SGD follows it, with mean n - 1:
    ``(1/n) (1 - 1/n)^s``, as the next reply comes from each worker with equal probability. ``path``: the file for
    the picture. Raises :class:`~anyk.base.errors.MissingPackage` without matplotlib.
    """
    counts = run.staleness()
    mean = mean_staleness(counts)
    if mean is None:
        raise BadInput("the run used no messages yet; there is no staleness to plot")
    with picture(path, (7.0, 4.2)) as (figure, axes):
        values = np.arange(max(counts) + 1)
        shares = np.array([counts.get(value, 0) for value in values.tolist()]) / sum(counts.values())
        axes.bar(values, shares, width=0.9, color=COLOURS[0], alpha=0.8, label="messages used")
        p = 1.0 / (1.0 + mean)
        axes.plot(
            values,
            p * (1.0 - p) ** values,
            color=COLOURS[1],
            lw=1.5,
            label=f"geometric distribution with mean {mean:.3g}",
        )
        axes.set(xlabel="staleness (versions)", ylabel="share of the messages")
        axes.set_title(f"{run.config.strategy}: mean staleness {mean:.3g}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    return figure
