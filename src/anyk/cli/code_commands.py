"""Commands about codes: a comparison of all, one in detail, residuals against stragglers, harmful stragglers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from anyk.base import ByName, values_of
from anyk.cli.fields import as_field, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import json_option, picture_option, plugin_option, workers_option
from anyk.cli.output import say_result, text_width, write_json

KNOWLEDGE = ("code", "overlaps", "nothing")
specs_argument = click.argument("specs", nargs=-1, required=True, metavar="SPEC…")
decoder_option = click.option(
    "--decoder", default="own", metavar="NAME", help="own, least-squares, one-step or algorithmic."
)


@contextlib.contextmanager
def _counting(label: str, number: int) -> Iterator[Callable[[str], None]]:
    """Show the progress over a number of parts; yield a function to call with the name of each that is done."""
    with click.progressbar(length=number, label=label, file=sys.stderr, item_show_func=lambda name: name or "") as bar:
        yield lambda name: bar.update(1, name)


@main.group()
def codes() -> None:
    """Show or compare gradient codes. 'anyk list codes' lists them.

    \b
    anyk codes show SPEC --workers 12           one code: its matrix, its theory
    anyk codes compare SPEC SPEC --workers 30   residual against stragglers
    anyk codes threshold SPEC --workers 30      how many stragglers do harm
    """


def survey_codes(workers: int, stragglers: int | None) -> None:
    """Compare all gradient codes that exist for a number of workers."""
    from anyk.codes import registry
    from anyk.fleet import MissingCode, survey
    from anyk.views import codes_table

    with _counting(f"looking at codes for {workers} workers", len(list(registry))) as tell:
        rows = survey(workers, stragglers=stragglers, tell=tell)
    judged = next((row.stragglers for row in rows if not isinstance(row, MissingCode)), 0)
    head = f"{workers} workers, {judged} of them stragglers; what a spec leaves out is filled in"
    missing = {row.name: row.why for row in rows if isinstance(row, MissingCode)}
    lines = []
    for entry in registry:
        lines.append(f"{entry.usage()}\n    {entry.summary}")
        if entry.name in missing:
            lines.append(f"    not for these numbers: {missing[entry.name]}")
    say_result(*lines, "", head, codes_table(rows))
    write_json(
        [
            {"name": entry.name, "usage": entry.usage(), "summary": entry.summary}
            | ({"error": row.why} if isinstance(row, MissingCode) else _plain(row))
            for entry, row in zip(registry, rows, strict=True)
        ]
    )


_FACTS = ("spec", "load", "partitions", "replication", "tolerates")  # of a code alone


def _plain(row: Any) -> ByName:
    code = row.code
    return {
        **values_of(code, *_FACTS),
        "stragglers": row.stragglers,
        "residual": row.expected,
        "residual_known": row.expected_known,
        **values_of(row, "worst", "worst_known", "gain"),
        "decode_seconds": row.decode,
    }


@codes.command()
@click.argument("spec")
@workers_option(12)
@picture_option("Draw the matrix.")
@json_option
@plugin_option
def show(spec: str, workers: int, picture: str | None) -> None:
    """Show one code: its matrix, who holds what, and how it works."""
    from anyk.codes import code as build
    from anyk.fleet import facts
    from anyk.views import code_facts, holders_text, matrix_text, plot_code, residual_text, theory_text

    code = build(spec, workers=workers)
    summary = facts(code, stragglers=code.tolerates or None)
    words = "\n".join(f"{word:<11}{value}" for word, value in code_facts(code))
    mean, worst = residual_text(summary.expected), residual_text(summary.worst)
    judged = (
        f"with {summary.stragglers} random straggler{'s' * (summary.stragglers != 1)}: residual {mean}, "
        f"noise gain {summary.gain:.3g}; worst residual {'' if summary.worst_known else 'at least '}{worst}"
    )
    matrix = matrix_text(code)
    parts = [words, judged, "", theory_text(code, text_width()), "", "who holds what:", holders_text(code)]
    parts += ["", "encoding matrix B, a row for each reply:", matrix] if matrix else []
    say_result("\n".join(parts))
    if picture is not None:
        plot_code(code, picture)
        say_result(f"picture: {picture}")
    rows = [[list(partitions), list(coefficients)] for partitions, coefficients in code.rows]
    write_json(_plain(summary) | {"workers": workers, "rows": rows})


@options_class
class ComparisonOptions:
    """The options of ``codes compare``."""

    workers: int = as_field(workers_option(30))
    stragglers: int | None = option(type=int, help="Largest number of stragglers; default: half the workers.")
    decoder: str = as_field(decoder_option)
    draws: int = option(default=1, help="Average over this number of draws of random codes, with consecutive seeds.")
    sets: int = option(default=200, help="Random straggler sets for each point, shared out among the draws.")
    seed: int = option(default=0, help="Seed of the straggler sets.")
    picture: str | None = as_field(picture_option("Draw residual against stragglers."))


@codes.command()
@specs_argument
@takes(ComparisonOptions)
@json_option
@plugin_option
def compare(specs: tuple[str, ...], options: ComparisonOptions) -> None:
    """Compare the residuals of codes as the number of stragglers grows, for random and for chosen stragglers.

    One draw of a random code may be a lucky one: with --draws 100 its residual is the mean of 100 draws (root mean
    square), with a standard error. The most harmful stragglers are looked for in each of the first 10 draws; a residual
    with ≥ is a lower bound, found by a search.
    """
    from anyk.fleet import compare_codes, straggler_counts
    from anyk.views import curves_table, plot_codes

    length = len(specs) * len(straggler_counts(options.workers, options.stragglers))
    with _counting("comparing codes", length) as tell:
        curves = compare_codes(
            specs,
            workers=options.workers,
            decoder=options.decoder,
            draws=options.draws,
            sets=options.sets,
            seed=options.seed,
            most=options.stragglers,
            tell=tell,
        )
    say_result(curves_table(curves))
    if options.picture is not None:
        plot_codes(curves, options.picture)
        say_result(f"picture: {options.picture}")
    columns = ("stragglers", "random", "spread", "adversarial", "exact", "expected", "bound")
    write_json(
        [
            {"spec": curve.code.spec, "draws": curve.draws}
            | {
                name: [None if value != value else value for value in column.tolist()]
                for name, column in values_of(curve, *columns).items()
            }
            for curve in curves
        ]
    )


@codes.command()
@specs_argument
@workers_option(30)
@click.option(
    "--error",
    default=0.1,
    help="Error per partition (residual squared) that the stragglers are to cause, up to 1.",
)
@click.option(
    "--knows",
    type=click.Choice(KNOWLEDGE),
    multiple=True,
    default=KNOWLEDGE,
    help="Knowledge of whoever chooses the stragglers; may be repeated.",
)
@decoder_option
@click.option("--sets", default=101, help="Random orders for an adversary who knows nothing.")
@click.option("--seed", default=0, help="Seed of the random orders.")
@json_option
@plugin_option
def threshold(
    specs: tuple[str, ...],
    workers: int,
    error: float,
    knows: tuple[Any, ...],
    decoder: str,
    sets: int,
    seed: int,
) -> None:
    """Find the least number of stragglers that pushes the error of a code to a limit.

    The stragglers are chosen by an adversary who knows the code (its matrix), only its overlaps (the number of
    partitions that any two workers share), or nothing (the median over random orders). A number with ≤ is an upper
    bound, found by a search; one without is exact.
    """
    from anyk.codes import code as build
    from anyk.fleet import adversarial_threshold
    from anyk.views import thresholds_table

    questions = [(code, knowledge) for code in [build(spec, workers=workers) for spec in specs] for knowledge in knows]
    thresholds: dict[str, ByName] = {}
    with _counting("looking for stragglers", len(questions)) as tell:
        for code, knowledge in questions:
            tell(code.spec)
            thresholds.setdefault(code.spec, {})[knowledge] = adversarial_threshold(
                code, error, knows=knowledge, decoder=decoder, sets=sets, seed=seed
            )
    results = [(spec, knowledge, result) for spec, row in thresholds.items() for knowledge, result in row.items()]
    notes = ["≤: found by a search; fewer may do"] * any(result.found == "search" for *_, result in results)
    notes += [f"nothing: median over {sets} random orders of the workers"] * ("nothing" in knows)
    head = f"{workers} workers: stragglers that it takes for an error per partition of {error:g}"
    say_result(head, thresholds_table(thresholds), *notes)
    write_json(
        [
            {
                "spec": spec,
                "workers": workers,
                "error": error,
                "knows": knowledge,
                "stragglers": result.stragglers,
                "found": result.found,
                "lost": list(result.lost),
                "error_reached": result.error,
            }
            for spec, knowledge, result in results
        ]
    )
