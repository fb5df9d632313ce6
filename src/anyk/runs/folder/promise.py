"""The promise of a plan, stored in a ``plan.toml`` and in the folder of the run that uses it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from anyk.base.checks import AtLeastOne, Nonnegative, Positive, PositiveShare, typed
from anyk.base.errors import BadInput, as_bad_input, printable
from anyk.base.plain import ByName
from anyk.base.regular_files import read_plain
from anyk.base.specs import Spec
from anyk.protocol import Workers

VERSION = 1
_ROUNDING = 1e-6


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A median with the 5 % and 95 % ends of a prediction interval."""

    median: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether a value lies in the interval, up to rounding."""
        return self.low - _ROUNDING * abs(self.low) <= value <= self.high + _ROUNDING * abs(self.high)


class Today(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The strategy that was in use when the plan was made."""

    strategy: str
    seconds_per_step: Estimate
    arrival: Estimate | None = None


def as_spec(kind: type[Spec], text: str) -> Spec:
    """Return a text of a file as a spec, the only kind of value that TOML has not."""
    return kind(text)


class RecordOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that a plan was made from.

    ``digest`` of its times; ``path``, where it was read, with the ``unit`` and the columns that were given, or ``law``,
    the delay model that it was drawn of, with the ``seed`` (neither: it was made in Python). ``load``: the share of the
    data that each worker computed in it; ``block``: rounds that are drawn together.
    """

    digest: str
    load: Nonnegative
    block: AtLeastOne
    censored: Nonnegative
    path: str | None = None
    unit: str | None = None
    round: str | None = None
    worker: str | None = None
    seconds: str | None = None
    law: str | None = None
    seed: int = 0


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strategy to run and its promised time: made by a plan (``plan.promise``), run by :func:`anyk.train`.

    ``seconds_per_step`` and ``gain`` (1 - these over today's) are for a run of ``horizon`` steps on ``workers``.
    ``slopes``: seconds that each worker computes on the whole data, beside the fixed part of a task.
    ``learning_rate``: None where the plan found none. With a ``target`` the promise is the ``steps_to_target`` and the
    seconds until then (``arrival``), with the plan's ``optimizer`` (None: the usual one), and ``gain`` is of these.

    >>> import anyk
    >>> record = anyk.fleet.Record([[4, 1, 1], [1, 4, 1], [1, 1, 4]] * 4)  # each round another worker stalls
    >>> promise = anyk.plan(record, slope=0.0, resamples=50).promise
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> run = anyk.train(problem, promise, "simulated", delays="constant:1")
    >>> run.config.strategy, run.steps, promise.seconds_per_step.median
    ('cyclic:stragglers=1', 12, 1.0)
    """

    version: int = VERSION
    strategy: Spec
    workers: Workers
    learning_rate: Positive | None = None
    horizon: AtLeastOne
    verdict: Literal["change", "nothing"]
    evidence: Literal["enough", "thin", "none"]
    why: str
    slopes: tuple[Nonnegative, ...]
    max_load: PositiveShare = 1.0
    memory: PositiveShare = 1.0
    assumptions: tuple[str, ...] = ()
    seconds_per_step: Estimate
    gain: Estimate
    today: Today
    record: RecordOrigin
    target: float | None = None
    optimizer: str | None = None
    steps_to_target: Positive | None = None
    arrival: Estimate | None = None

    def plain(self) -> ByName:
        """Return the values that are not None as plain data, in the form of TOML."""
        return dict(without_none(msgspec.to_builtins(self, enc_hook=str)))

    def save(self, path: str | Path) -> None:
        """Write the promise as TOML; raise :class:`~anyk.BadInput` for another suffix or if writing fails."""
        import tomli_w

        target = Path(path)
        if target.suffix != ".toml":
            raise BadInput(f"a plan is written as .toml, got '{path}'")
        with as_bad_input(f"the plan '{path}' cannot be written"):
            target.write_text(printable(tomli_w.dumps(self.plain(), multiline_strings=False)), encoding="utf-8")

    @classmethod
    @typed
    def load(cls, path: str | Path, *, trust: bool = False) -> Promise:
        """Return the promise that :meth:`save` wrote.

        Raises :class:`~anyk.BadInput` for a file that is missing or broken, of another version, or that has a
        key too few, too many or of the wrong type; and, without ``trust``, where it names an optimiser of a package
        other than ``torch.optim`` and optax, as the file may be anybody's.
        """
        with as_bad_input(f"the plan '{path}' cannot be read", OSError, ValueError):  # a name may hold a NUL
            file_content = read_plain(path, follow=True)
        sentence = f"'{path}' is not a plan: it is broken; write it again: anyk plan … -o"
        with as_bad_input(sentence, ValueError, RecursionError):
            content = tomllib.loads(file_content.decode())
        promise = cls.of_plain(content, f"'{path}'")
        if not trust:
            promise.check_code(f"the plan '{path}'")
        return promise

    def check_code(self, of: str) -> None:
        """Raise :class:`~anyk.BadInput` if training with the promise would run code that it names."""
        remedy, instead = "name it again with --optimizer", "name the strategy with --strategy in place of --plan"
        for spec, way in ((self.optimizer or "", remedy), (self.strategy, instead)):
            for _, name in torch_named(spec):
                raise BadInput(
                    f"{of} names code to run, the optimizer '{name}', which may belong to somebody else; if it is "
                    f"yours, {way} (in Python: Promise.load(…, trust=True))"
                )

    @classmethod
    def of_plain(cls, values: ByName, of: str) -> Promise:
        """Return a promise from the result of :meth:`plain`; ``of`` names its place in errors."""
        version = values.get("version")
        if isinstance(version, int) and version != VERSION:
            raise BadInput(f"{of} is a plan of version {version}, this anyk reads version {VERSION}; plan again")
        try:
            promise = msgspec.convert(values, cls, dec_hook=as_spec)
        except msgspec.ValidationError as error:
            raise BadInput(f"{of} is not a plan: {_in_words(str(error))}") from None
        today = promise.today
        spans = [
            *(("seconds_per_step", promise.seconds_per_step), ("gain", promise.gain), ("arrival", promise.arrival)),
            *(("seconds_per_step of today", today.seconds_per_step), ("arrival of today", today.arrival)),
        ]
        for name, span in spans:
            if span is not None and not (math.isfinite(span.median) and span.low <= span.median <= span.high):
                raise BadInput(f"{of} is not a plan: the {name} must be low, median and high in this order, got {span}")
        return promise


def torch_named(spec: str) -> list[tuple[str, str]]:
    """Return the modules besides ``torch.optim`` whose classes a spec names, each with the qualified name.

    >>> torch_named("slowmo:of=(torch:mine.Sgd,schedule=torch.optim.lr_scheduler.LinearLR)")
    [('mine', 'mine.Sgd')]
    """
    names = [(name.rpartition(".")[0], name) for name in _classes_of_torch(spec)]
    return [(module, name) for module, name in names if module and not f"{module}.".startswith("torch.optim.")]


def _classes_of_torch(spec: str) -> Iterator[str]:
    """Yield the names of optimisers and schedules in the keys of each ``torch`` within a spec."""
    try:
        parsed = Spec(spec)
    except BadInput:  # nothing is built from it
        return
    if parsed.name == "torch":
        yield parsed.keys.get("method", parsed.keys.get("", ""))
        yield parsed.keys.get("schedule", "").partition(":")[0].strip()
    for value in parsed.keys.values():
        if ":" in value:
            yield from _classes_of_torch(value)


def without_none(value: Any) -> Any:
    """Return plain values without keys whose value is None, which TOML cannot store."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return value


def _in_words(error: str) -> str:
    """Return an error of msgspec as part of a sentence that names the key."""
    what, _, path = error.partition(" - at `$")
    in_key = f" in '{path.strip('.`')}'" if path else ""
    words = what.replace("Object contains unknown field", "unknown key")
    words = words.replace("Object missing required field", "no key").replace("`", "'")
    return f"{words}{in_key}"
