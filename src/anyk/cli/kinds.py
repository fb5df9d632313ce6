"""The kinds of things that ``anyk list`` lists."""

from __future__ import annotations

from typing import NamedTuple

_STRATEGIES = (
    "CODE:…,wait=…,scaling=…,cancel=preempt,decoder=own,batch=0,snapshot=0,balance=…\n"
    "    Rounds of any code (anyk list codes).\n"
    "wait: a number of replies, 'decodable' (default), 'all', a residual such as 5%, a deadline such as 0.5s "
    "or 3mad, joined by | or &\nscaling: none, marginal or conditional      cancel: preempt or discard\n"
    "decoder: own, exact, least-squares, one-step or algorithmic      batch: samples of each partition, 0 for "
    "all\n"
    "snapshot: every so many rounds an exact one, whose messages correct the others (repetition codes; 0: "
    "never)\n"
    "balance: auto cuts the data of uncoded and frc by the workers' measured speed; shares=3/1/1/… gives it\n"
    "'anyk strategies show SPEC' explains one."
)


class _Kind(NamedTuple):
    """A list of `anyk list KIND`: the place of its registry, a summary, and a text below the list."""

    module: str
    registry: str
    summary: str
    also: str = ""


KINDS = {
    "strategies": _Kind(
        module="anyk.strategies",
        registry="registry",
        summary="What a step waits for, and how it uses replies.",
        also=_STRATEGIES,
    ),
    "wait-rules": _Kind(
        module="anyk.strategies",
        registry="wait_rules",
        summary="What rounds wait for, as wait=… takes it.",
        also="The short forms are a number, 0.75n, 5%, 0.5s and 3mad; rules are joined by | or &.",
    ),
    "codes": _Kind(
        module="anyk.codes",
        registry="registry",
        summary="Who computes what, so that some replies give the sum; with --workers: compared.",
        also="'anyk list codes --workers 30' compares them, 'anyk codes show SPEC' shows one.",
    ),
    "delays": _Kind("anyk.delays", "registry", "Models of the delays that are injected."),
    "data": _Kind(
        module="anyk.problems",
        registry="sources",
        summary="Data sets.",
        also="--data-file takes a local file in place of a data set's own.",
    ),
    "models": _Kind("anyk.problems", "models", "Models for a data set, as --model takes them."),
    "optimizers": _Kind(
        module="anyk.optimizers",
        registry="registry",
        summary="Optimisers.",
        also="All take their learning rate as lr=…, as in adam:lr=0.01, or from --lr.",
    ),
    "schedules": _Kind("anyk.optimizers", "schedules", "Learning rates that change, as --lr takes them."),
    "clusters": _Kind(
        module="anyk.clusters",
        registry="registry",
        summary="Where workers run.",
        also="'anyk cluster check SPEC --workers 8' measures one.",
    ),
    "compressors": _Kind(
        module="anyk.compression",
        registry="registry",
        summary="Compressors of messages, and what they compose with.",
        also="as in compressed:of=(k-sync:k=5),by=(top-k:share=0.01); how they compose with strategies:\n"
        "linear: exactly with every code; unbiased: on average; contractive: where messages are one worker's own",
    ),
    "callbacks": _Kind(
        module="anyk.callbacks",
        registry="registry",
        summary="Callbacks, as --callback takes them.",
        also="FILE.py:FUNCTION\n    One of yours, made by a function without arguments.",
    ),
    "records": _Kind(
        module="anyk.fleet",
        registry="record_sources",
        summary="What fleet records are read from.",
        also="'anyk record PATH' recognises which of them a file or folder is.",
    ),
    "exporters": _Kind(
        "anyk.views", "exporters", "Formats of runs for other programs, as 'anyk export --to' takes them."
    ),
    "report-figures": _Kind("anyk.views", "report_figures", "Figures of reports, in their order on the page."),
    "graphs": _Kind(
        module="anyk.graphs",
        registry="registry",
        summary="Graphs for decentralised averaging.",
        also="'anyk graphs show SPEC --workers 16' shows one.",
    ),
}
