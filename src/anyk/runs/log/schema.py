"""The tables of a run log and the types of their rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import msgspec

from anyk.protocol import Event

Version = tuple[str, int]  # a slot and the number of its version

TABLES = {
    "events": "seq INTEGER PRIMARY KEY, time REAL, kind TEXT, worker INTEGER, task INTEGER, chunk INTEGER, info TEXT",
    "works": "id INTEGER PRIMARY KEY, partitions TEXT, coefficients TEXT, slot TEXT, send TEXT, batch INTEGER, "
    "repeat INTEGER, steps INTEGER, mix TEXT, share REAL, state INTEGER, "
    "compress TEXT",
    "chunks": "task INTEGER, chunk INTEGER, worker INTEGER, version INTEGER, work INTEGER, dispatched REAL, "
    "started REAL, computing REAL, computed REAL, sent REAL, received REAL, cancelled REAL, done INTEGER, due REAL, "
    "ending TEXT, slot TEXT, step INTEGER, weight REAL, digest INTEGER, seq INTEGER",
    "updates": "slot TEXT, version INTEGER, time REAL, replies INTEGER, residual REAL, gain REAL, staleness REAL, "
    "stalest INTEGER, scale REAL, digest INTEGER, seq INTEGER",
    "partitions": "id INTEGER PRIMARY KEY, samples INTEGER",
    "evaluations": "slot TEXT, version INTEGER, time REAL, loss REAL, metric REAL",
    "notes": "time REAL, kind TEXT, text TEXT, seq INTEGER",
    "summary": "name TEXT, value TEXT, seq INTEGER",
    "checkpoints": "seq INTEGER, digest TEXT",
    "carried": "slot TEXT, version INTEGER, info TEXT, seq INTEGER",
    "slices": "slot TEXT, version INTEGER, task INTEGER, chunk INTEGER, workers TEXT, seq INTEGER",
    "reuses": "slot TEXT, version INTEGER, task INTEGER, chunk INTEGER, weight REAL, seq INTEGER",
}
SEALS = "id INTEGER PRIMARY KEY, upto TEXT, seal TEXT"
SCHEMA = {name: f"CREATE TABLE {name} ({columns})" for name, columns in {**TABLES, "seals": SEALS}.items()}
INSERT = {
    name: f"INSERT INTO {name} VALUES ({','.join('?' * (columns.count(',') + 1))})" for name, columns in TABLES.items()
}
_MAY_LACK = {  # columns whose values may be missing; numbers that are not finite are stored as such
    "events": {"worker", "task", "chunk", "info"},
    "chunks": {
        "started",
        "computing",
        "computed",
        "sent",
        "received",
        "cancelled",
        "done",
        "due",
        "step",
        "weight",
        "digest",
    },
    "updates": {"residual", "gain", "staleness", "scale"},
    "evaluations": {"loss", "metric"},
}
_TIMES = {"time", "dispatched", "started", "computing", "computed", "sent", "received", "cancelled", "due"}
_JSON = {"partitions", "coefficients", "mix", "info", "value"}


def _wrong_values(table: str, name: str, kind: str) -> str:
    """Return the condition, in SQL, of values that a column of a type (``kind``) never has."""
    number = f"typeof({name}) != 'integer' OR {name} NOT BETWEEN"
    wrong = {
        "INTEGER": f"{number} -1 AND {1_000_000 if name == 'worker' else 1 << 53}",
        "REAL": f"typeof({name}) NOT IN ('real', 'integer')",
        "TEXT": f"typeof({name}) != 'text'",
    }[kind]
    if name == "digest" and kind == "INTEGER":
        wrong = f"typeof({name}) != 'integer'"
    elif (table, name) == ("events", "kind"):
        wrong += f" OR kind NOT IN ({', '.join(map(repr, [START, *KINDS]))})"
    elif name in _TIMES:
        wrong += f" OR abs({name}) > 1e300"
    elif name == "weight":  # of a message, or of each block
        single = f"({wrong} OR abs({name}) > 1e30)"
        wrong = f"{single} AND coalesce(typeof({name}) != 'text' OR json_type({name}) != 'array', 1)"
    elif name in _JSON:
        wrong += f" OR NOT json_valid(replace(replace({name}, 'NaN', '0'), 'Infinity', '0'))"
    if name in ("partitions", "coefficients"):
        numbers = "'integer'" if name == "partitions" else "'integer', 'real'"
        other = f"SELECT 1 FROM json_each({name}) WHERE type NOT IN ({numbers})"
        wrong += f" OR json_type({name}) != 'array' OR EXISTS ({other})"
    return wrong


def wrong_rows(table: str) -> str:
    """Return the condition, in SQL, of rows of a table that no run writes, by types and ranges of their values."""
    conditions = []
    for column in TABLES[table].split(", "):
        name, kind = column.split()[:2]
        wrong = _wrong_values(table, name, kind)
        lacks = f"{name} IS NULL"
        conditions.append(f"NOT ({lacks}) AND ({wrong})" if name in _MAY_LACK.get(table, ()) else f"{lacks} OR {wrong}")
    if table == "events":
        for least, name in enumerate(("worker", "task", "chunk"), 1):
            kinds = [kind for kind, event in KINDS.items() if IDS[event] >= least]
            conditions.append(f"{name} IS NULL AND kind IN ({', '.join(map(repr, kinds))})")
    return " OR ".join(f"({condition})" for condition in conditions)


ASSUMED = "data"  # the kind of a note on how a problem's data were understood
DIFFERENT = "different messages"  # the kind of a note on workers that sent different messages of the same work
RESET = "workers reset"  # the kind of a note that workers' states were lost when the run was resumed
START = "Start"  # the first event of a run, with the workers that are present
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
# the number of fields among worker, task and chunk that events of a kind have
IDS = {kind: len({"worker", "task", "chunk"}.intersection(kind._fields)) for kind in KINDS.values()}


class Summary(msgspec.Struct):
    """The values of a summary, by name, with their types."""

    floor_seconds: float | None = None
    loss: float | None = None
    metric: dict[str, str | float | None] | None = None
    metrics: dict[str, float | None] = {}
    time_to_target: float | None = None
    ledger: dict[str, int] = {}
    stopped: str | None = None
    models: dict[str, str] = {}
    messages: dict[str, int] = {}


class Ended(NamedTuple):
    """A chunk that has ended; ``weight`` is JSON if there is a weight for each block. Times are in seconds."""

    task: int
    chunk: int
    worker: int
    version: int
    work: int
    dispatched: float
    started: float | None
    computing: float | None
    computed: float | None
    sent: float | None
    received: float | None
    cancelled: float | None
    done: int | None
    due: float | None
    ending: str
    slot: str
    step: int | None
    weight: float | str | None
    digest: int | None


class Update(NamedTuple):
    """A new version of a slot."""

    slot: str
    version: int
    time: float
    replies: int
    residual: float
    gain: float
    staleness: float
    stalest: int
    scale: float
    digest: int


class Reuse(NamedTuple):
    """A message that was counted in an earlier version and is used again for this one."""

    slot: str
    version: int
    task: int
    chunk: int
    weight: float | str


class Evaluation(NamedTuple):
    """Loss and metric of a version; ``time``: when the version was made, in seconds on the run's clock."""

    slot: str
    version: int
    time: float
    loss: float | None
    metric: float | None

    @property
    def value(self) -> float | None:
        """The value for targets and schedules: the metric, or the loss if there is no metric."""
        return self.loss if self.metric is None else self.metric


@dataclass(slots=True)
class Totals:
    """The totals of all updates and evaluations up to the rows ``updates`` and ``evaluations``.

    ``newest``: the newest version of each slot that has an update. ``evaluated``: the slots with an evaluation.
    """

    updates: int = 0
    evaluations: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    evaluated: set[str] = field(default_factory=set)
    time: float = 0.0
    stalest: int = 0
