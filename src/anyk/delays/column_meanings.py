"""Meanings of the columns of a table of times, from their names: rounds, workers, seconds, clocks and measurements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anyk.base.errors import BadInput, suggest

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SPELLINGS = {
    1.0: "s sec secs second seconds",
    1e-3: "ms msec msecs milli millis millisecond milliseconds",
    1e-6: "us µs μs usec usecs micro micros microsecond microseconds",
    1e-9: "ns nsec nsecs nano nanos nanosecond nanoseconds",
    60.0: "minutes mins",
    3600.0: "hours hrs",
}
_SCALES = {word: scale for scale, words in _SPELLINGS.items() for word in words.split()}


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


_NUMBERING = _words("id ids idx index name number num no nr uuid guid ip addr address key label")
_ROUND = _words(
    "round rounds step steps iteration iterations iter iters it version epoch epochs batch minibatch tick superstep t "
    "update"
)
_ROUND_QUALIFIERS = _words("global comm communication train training trainer server current cur fl sync optimizer opt")
_WORKER = _words(
    "worker workers rank node machine host client executor gpu device pod server instance process proc replica agent "
    "peer actor learner site participant party container vm trainer member cpu core tpu accelerator slot pid cid "
    "silo shard partition driver master head chief leader coordinator ps"
)
_WORKER_QUALIFIERS = _words("global local world dp data parallel mpi ray torch spark k8s kubernetes compute")
_DURATION = _words("duration durations dur latency delay runtime took elapsed time times walltime")
_ACTIVITY = _words(
    "step iter iteration round batch epoch train training compute computation computing fit local task job work "
    "process processing run running execution exec response reply service worker client rank node gpu host per taken "
    "spent used metrics perf timing timings completion turnaround rtt update executor machine device in"
)
_UNSURE = {"time", "times", "elapsed", "value", "values", "elapsed time", "time elapsed", "wall time", "walltime"}
_CLOCK = _words(
    "start started begin began end ended finish finished stop stopped launch submit submission stamp timestamp ts date "
    "datetime clock wall wallclock unix utc created received sent arrival cumulative cum since"
)
_MEASUREMENT = _words(
    "loss losses acc accuracy auc f1 precision recall metric score error err lr rate learning grad gradient norm "
    "weight weights token tokens sample samples example examples row rows image images record records size bytes mb gb "
    "mem memory util utilization utilisation usage load power temp temperature throughput tput speed bandwidth tps qps "
    "fps flops tflops mfu max maximum min minimum mean average avg median std stdev var variance total sum count "
    "counts quantile percentile perplexity ppl bleu reward return entropy kl momentum decay scale seed version forward "
    "backward fwd bwd optim optimizer optimiser comm communication allreduce reduce broadcast wait waiting idle io "
    "loading loader dataloader data preprocessing checkpoint eval evaluation validation val test layer stage phase "
    "slowest fastest straggler stragglers slowdown speedup ratio percent pct overhead"
)
_PERCENTILE = re.compile(r"(?:p|q|pct|top|perc)[\W_]?\d{1,2}(?:[._]\d+)?")


def words_in(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    >>> words_in("stepTime (ms)"), words_in("GPU_Id")
    (['step', 'time', 'ms'], ['gpu', 'id'])
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.strip())
    return [word for word in re.split(r"[^0-9a-zµμ]+", spaced.lower()) if word]


def unit_in(name: str) -> tuple[list[str], float | None]:
    """Return the words of a column's name without the unit of time at its end, and that unit in seconds, or None.

    >>> unit_in("duration_ms"), unit_in("Worker 3 (s)"), unit_in("workers")
    ((['duration'], 0.001), (['worker', '3'], 1.0), (['workers'], None))
    """
    words = words_in(name)
    if not words or words[-1] not in _SCALES:
        return words, None
    without_unit = words[:-2] if words[-2:-1] == ["in"] else words[:-1]
    return without_unit, _SCALES[words[-1]]


def _without_numbering(words: Sequence[str]) -> list[str]:
    """Return words without an ending as in worker_id or hostname."""
    remaining = list(words)
    while len(remaining) > 1 and remaining[-1] in _NUMBERING:
        remaining.pop()
    if remaining:
        match = re.fullmatch(r"(.{3,}?)(?:id|idx|name|number|num)s?", remaining[-1])
        if match and match.group(1) in _WORKER | _ROUND:
            remaining[-1] = match.group(1)
    return remaining


def names_rounds(name: str) -> bool:
    """Return whether a column's name is that of the numbers of rounds."""
    words = _without_numbering(words_in(name))
    return bool(words) and words[-1] in _ROUND and set(words[:-1]) <= _ROUND_QUALIFIERS


def names_workers(name: str) -> bool:
    """Return whether a column's name is that of the names of workers."""
    words = _without_numbering(words_in(name))
    return any(word in _WORKER for word in words) and set(words) <= _WORKER | _WORKER_QUALIFIERS


def names_a_clock(name: str) -> bool:
    """Return whether a column's name is that of moments, which are not durations."""
    return bool(set(words_in(name)) & _CLOCK)


def seconds_rank(name: str) -> int:
    """Return how surely a column's name is that of durations: 1 surely, 2 probably, 3 perhaps, 0 not at all.

    >>> [seconds_rank(name) for name in ("seconds", "iter_time_ms", "elapsed", "start_time", "loss")]
    [1, 2, 3, 0, 0]
    """
    words, scale = unit_in(name)
    if not words:
        return 1 if scale is not None else 0
    if " ".join(words) in _UNSURE:
        return 2 if scale is not None and words == ["time"] else 3
    if set(words) & _CLOCK or not set(words) <= _DURATION | _ACTIVITY:
        return 0
    if scale is None and not set(words) & _DURATION:
        return 0
    return 1 if {"duration", "dur"} & set(words) else 2


def measured_word(name: str, shared: Iterable[str] = ()) -> str | None:
    """Return the word that shows that a column measures something other than a worker's seconds, or None.

    ``shared``: words that all columns of the table have, as in time_rank0 and time_rank1.
    """
    if _PERCENTILE.fullmatch(name.strip().lower()):
        return name.strip()
    for word in words_in(name):
        plain = word.rstrip("0123456789")
        measured = _MEASUREMENT | _CLOCK | _DURATION | (_ROUND - {"t", "it"})
        if plain in measured and not (word in shared and plain in _DURATION | _ACTIVITY):
            return word
    return None


def families(names: Sequence[str]) -> list[bool]:
    """Return for each name of a column whether it looks like one of several workers.

    >>> families(["node-a", "node-b", "max"]), families(["alice", "bob", "carol"]), families(["10.0.0.1", "10.0.0.2"])
    ([True, True, False], [False, False, False], [True, True])
    """
    shapes = [re.sub(r"\d+", "#", name.lower()) for name in names]

    def numbered(shape: str) -> bool:
        return "#" in shape and (shapes.count(shape) > 1 or not _WORKER.isdisjoint(re.findall(r"[a-z]+", shape)))

    def of_workers(name: str, shape: str) -> bool:
        if numbered(shape) or len(name) == 1 or name.isdigit():
            return True
        return any(_related(name, other) for other in names) or (names_workers(name) and len(names) > 1)

    return [of_workers(name, shape) for name, shape in zip(names, shapes, strict=True)]


def _related(name: str, other: str) -> bool:
    """Return whether two names share a beginning or an end of whole words, as node-a and node-b do."""
    one, two = (re.split(r"[^0-9A-Za-z]+", whole_name.lower()) for whole_name in (name, other))
    return len(one) > 1 and len(two) > 1 and one != two and (one[:-1] == two[:-1] or one[1:] == two[1:])


@dataclass(frozen=True, slots=True)
class Named:
    """Columns that the user names; None is to be recognised.

    ``worker``: the column of the workers' names or, if it lists several without ``seconds``, the columns of the
    workers' seconds.
    """

    round: str | None = None
    worker: str | None = None
    seconds: str | None = None

    def __bool__(self) -> bool:
        return self != Named()

    def places(self, names: Sequence[str], requested: str | None, option: str) -> list[int]:
        """Return the places of the columns that the user named; raise BadInput for one that does not exist."""
        if requested is None:
            return []
        places = []
        for name in [requested] if requested in names else [piece.strip() for piece in requested.split(",")]:
            exact = [i for i, candidate in enumerate(names) if candidate == name]
            matching = exact or [i for i, candidate in enumerate(names) if candidate.strip().lower() == name.lower()]
            if len(matching) != 1:
                count = "is not there" if not matching else f"is there {len(matching)} times"
                raise BadInput(f"the column '{name}' given as {option} {count}{suggest(name, names, _all(names))}")
            places += matching
        return places


def _all(names: Sequence[str]) -> str:
    return "the columns: " + ", ".join(f"'{name}'" for name in names[:12]) + ", …" * (len(names) > 12)


@dataclass(frozen=True, slots=True)
class Roles:
    """The places of the columns that hold, or may hold, the rounds, the workers and the seconds."""

    round: list[int]
    worker: list[int]
    seconds: list[int]
