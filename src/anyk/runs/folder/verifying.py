"""Verification of run folders, which reads and compares all contents, and runs nothing.

Nothing is written either; only what a killed process left of an unfinished checkpoint is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anyk.base.checks import typed
from anyk.base.errors import BadInput, Surroundings, UnknownName
from anyk.base.named import names_in_folder, sha256_of
from anyk.delays import communication, parse
from anyk.problems import data_digest, from_recipe
from anyk.runs.engine import warm_start
from anyk.runs.engine.counts import ENDINGS
from anyk.runs.folder import checkpoints, config, predictors
from anyk.runs.folder.digests import file_digest, traces_of
from anyk.runs.folder.folders import tidy
from anyk.runs.log import queries
from anyk.runs.log.runlog import LOST, RunLog
from anyk.runs.races import race_folder

_LOG = "log.sqlite"


class Check(NamedTuple):
    """The result of one check: ``whole`` is None if the check was not possible, and ``text`` gives the reason."""

    name: str
    whole: bool | None
    text: str

    def __str__(self) -> str:
        return f"{self.name:<14} {'?' if self.whole is None else 'ok' if self.whole else 'DAMAGED'}: {self.text}"


@dataclass(frozen=True)
class Verification:
    """The results of :func:`verify` for a run folder."""

    path: Path
    checks: tuple[Check, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return all(check.whole is not False for check in self.checks)

    def __str__(self) -> str:
        end = "whole" if self.whole else "not whole"
        return "\n".join([*map(str, self.checks), f"the run '{self.path}' is {end}"])

    def report(self) -> dict[str, Any]:
        """Return the results as plain data, in the form that ``--json`` writes."""
        return {"run": str(self.path), "whole": self.whole, "checks": [check._asdict() for check in self.checks]}


@typed
def verify(path: str | Path) -> Verification:
    """Check that a run folder is as it was written, and that its data and code are still the same.

    It checks the configuration, the log (SQLite's own check, the seal of every row, gaps between events, the ledger),
    the checkpoints (their digests, and whether the log lists them), the predictor, the models for other programs, code,
    traces and data. Nothing that the folder names is run or fetched, only regular files are read, and the folder may be
    read-only. What a killed process left of an unfinished checkpoint is removed, and nothing else. A mirror has only
    configuration and log. In the folder of a race all runs are checked.
    Raises :class:`~anyk.BadInput` if it is not a run folder, or if it cannot be looked at for want of room,
    memory or permission, which says nothing about the folder.

    >>> import tempfile
    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     anyk.train(problem, "uncoded", anyk.clusters.Simulated(3), steps=2, out=f"{folder}/run").close()
    ...     found = verify(f"{folder}/run")
    >>> found.whole, str(found).splitlines()[0]
    (True, 'configuration  ok: run.toml, format 1')
    """
    folder = Path(path)
    if (folder / race_folder.NAME).is_file():
        return Verification(folder, tuple(_of_race(folder)))
    if not any((folder / name).is_file() for name in (config.NAME, _LOG, checkpoints.NAME)):
        runs = race_folder.run_folders(folder)
        hint = f"; name one of the runs in it, as in {runs[0]}" if runs else ""
        raise BadInput(
            f"'{folder}' is not a run folder: it has neither {config.NAME} nor {_LOG} nor a checkpoint{hint}"
        )
    tidy(folder)
    return Verification(folder, tuple(_checks(folder)))


def _of_race(folder: Path) -> Iterator[Check]:
    """Yield the checks of every run that has begun."""
    try:
        race = race_folder.read_race(folder)
    except Surroundings:
        raise
    except BadInput as error:
        yield Check("race", False, str(error))
        return
    planned = [entry.folder for entry in race.entries]
    started = [name for name in planned if (folder / name).is_dir()]
    yield Check("race", True, f"{race_folder.NAME}, {len(started)} of {len(planned)} runs begun")
    for name in started:
        tidy(folder / name)
        for check in _checks(folder / name):
            yield check._replace(text=f"{name}: {check.text}")


def _checks(folder: Path) -> Iterator[Check]:
    settings: config.RunConfig | None = None
    try:
        settings = config.read_config(folder)
        yield Check("configuration", True, f"{config.NAME}, format {settings.format}")
    except Surroundings:
        raise
    except BadInput as error:
        yield Check("configuration", False, str(error))
    try:
        with RunLog.reading(folder / _LOG, checked=False) as log:
            yield from _of_log(log)
            if settings is None or not settings.mirror:
                yield from _of_checkpoints(folder, log)
                yield from _of_models(folder, log)
    except Surroundings:
        raise
    except BadInput as error:
        yield Check("log", False, str(error))
    if settings is None:
        yield Check("what it used", None, f"not looked at without {config.NAME}")
        return
    if settings.mirror:
        yield Check("mirror", True, "a copy of log and settings; models are in the folder of the run itself")
    else:
        if settings.begin is not None:
            yield _checked("beginning", lambda: f"{warm_start.NAME}, step {warm_start.WarmStart.load(folder).step}")
        if (digest := settings.digests.predictor) is not None:
            load = predictors.load_predictor
            yield _checked("predictor", lambda: f"{predictors.NAME}, {load(folder, digest).features:,} columns")
    yield from _of_digests(folder, settings)


def _of_log(log: RunLog) -> Iterator[Check]:
    defect = log.check_file() or (LOST if log.lost else None)
    yield Check(
        "log", defect is None, f"{_LOG} is an SQLite file with the tables of a run" if defect is None else defect
    )
    if defect is None:
        defect = log.check_seals()
        number = queries.row_count(log)
        yield Check("rows", defect is None, f"all {number:,} are as they were written" if defect is None else defect)
    if defect is None:
        yield _checked("sequence", lambda: _sequence(log))
        yield _checked("ledger", lambda: _books(log))
    else:
        yield Check("sequence, ledger", None, "not looked at in a damaged log")


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except Surroundings:
        raise
    except BadInput as error:
        return Check(name, False, str(error))
    except (KeyError, TypeError, ValueError) as error:  # of values that nobody would write
        return Check(name, False, f"it cannot be read ({type(error).__name__}: {error})")


def _sequence(log: RunLog) -> str:
    """Events are numbered without gaps, but for a number that each checkpoint takes; the last may not be listed yet."""
    listed = queries.checkpoint_numbers(log)
    skipped, before = {seq + 1 for seq in listed}, 0
    last: float = max(listed, default=0)
    for seq in queries.event_numbers(log):
        missing = [number for number in range(before + 1, seq) if number not in skipped]
        if len(missing) == 1 and missing[0] > last:
            last = float("inf")
        elif missing:
            raise BadInput(f"event {missing[0]} is missing; the next there is has number {seq}")
        before = seq
    return f"events 1 to {before}, none is missing"


def _books(log: RunLog) -> str:
    """Return a sentence on the ledger; raise if chunks, sums and updates of the log contradict each other."""
    counts = queries.endings(log)
    if unknown := set(counts) - set(ENDINGS):
        raise BadInput(
            f"chunks ended as {', '.join(map(repr, sorted(map(str, unknown))))}; known are {', '.join(ENDINGS)}"
        )
    if twice := queries.ended_twice(log):
        task, chunk, times = twice
        raise BadInput(f"chunk {chunk} of task {task} ended {times} times")
    if wrong := queries.miscounted(log):
        raise BadInput(
            f"version {wrong.version} of '{wrong.slot}' is of {wrong.replies} messages, and {wrong.counted} were "
            "counted in it"
        )
    ledger = log.summary().get("ledger")
    total = sum(counts.values())
    if ledger is None:
        return f"{total:,} chunks ended, each once; the run has not ended"
    different = [ending for ending in ENDINGS if ledger[ending] != counts.get(ending, 0)]
    if different or ledger["dispatched"] != total:
        raise BadInput(f"the ledger has {ledger['dispatched']} chunks, the log {total}; they differ in {different}")
    return f"{total:,} chunks dispatched and ended, each once"


def _of_checkpoints(folder: Path, log: RunLog) -> Iterator[Check]:
    try:
        written = queries.checkpoint_numbers(log)
        last = max(written, default=None)
        for name, label in ((checkpoints.NAME, "checkpoint"), (checkpoints.OLDER, "the one before")):
            try:
                saved = checkpoints.fitting(folder, log, name)
            except Surroundings:
                raise
            except BadInput as error:
                yield Check(label, False, str(error))
                continue
            if saved is not None and name == checkpoints.NAME and saved.state["seq"] < (last or 0):
                yield Check(label, False, f"{name} is older than the log says")
            elif saved is not None:
                step = min(saved.state["versions"].values())
                yield Check(label, True, f"{name}, step {step}, its digest and the log agree")
            elif len(written) > (name == checkpoints.OLDER):
                yield Check(label, False, f"{name} is gone, though the log says that it was written")
            elif name == checkpoints.NAME:
                yield Check(label, True, "none was written yet")
    except Surroundings:
        raise
    except (BadInput, KeyError, ValueError, TypeError) as error:
        yield Check("checkpoints", None, f"not compared with a damaged log ({error})")


def _of_models(folder: Path, log: RunLog) -> Iterator[Check]:
    """Yield the checks of exported models, whose SHA-256 the log contains once the run has ended."""
    try:
        recorded = dict(log.summary().get("models", {}))
        for slot in sorted({*recorded, *queries.newest_versions(log)}):
            name = Path(f"{slot}.safetensors").name
            digest = file_digest(folder / name, follow=False)
            if slot in recorded:
                lost = f"{name} is gone or cannot be read, though the log says that it was written"
                same = f"{name} is {'as it was written' if digest == recorded[slot] else 'not what was written'}"
                yield Check("model", digest == recorded[slot], lost if digest is None else same)
            elif digest is not None:
                yield Check("model", None, f"{name} is not compared: the log has no digest of it before the run ends")
    except Surroundings:
        raise
    except (BadInput, TypeError, ValueError) as error:
        yield Check("model", None, f"not compared with a damaged log ({error})")


def _of_digests(folder: Path, settings: config.RunConfig) -> Iterator[Check]:
    digests = settings.digests
    for kind, named, digest_of in (("code", digests.code, sha256_of), ("files", digests.files, file_digest)):
        for name, recorded in named.items():
            yield _compared(kind, name, digest_of(name), recorded)
    for label in digests.installed:
        yield Check("code", None, f"'{label}' is not looked at, as nothing is run here; resume and replay compare it")
    try:
        traces = dict(traces_of((parse(settings.delays), communication(settings.communication))))
    except Surroundings:
        raise
    except BadInput as error:
        traces = {}
        if digests.traces:
            yield Check("traces", None, str(error))
    for file, digest in traces.items():
        yield _compared("traces", file, digest, digests.traces.get(file))
    with names_in_folder(folder, {}, trust=False):
        yield _data(settings.problem, digests.data)


def _compared(kind: str, name: str | None, digest: str | None, recorded: str | None) -> Check:
    """Return the check of a file or data set against the digest that was recorded; None if it is not there."""
    intact = None if digest is None else digest == recorded
    words = {None: "not found", True: "as it was", False: "another now"}
    return Check(kind, intact, f"'{name}' is {words[intact]}")


def _data(recipe: config.Recipe | None, recorded: str | None) -> Check:
    if recorded is None:
        return Check("data", None, "no digest was recorded")
    if recipe is None or any(member.problem is not None for member in recipe.each):
        return Check("data", None, "not looked at: code makes the problem, and nothing is run here")
    try:
        digest = str(data_digest(from_recipe(recipe.plain())))
    except Surroundings:
        raise
    except UnknownName as error:
        return Check("data", None, f"not looked at: {error.what} is of a plug-in file, and nothing is run here")
    except BadInput as error:
        return Check("data", None, str(error))
    return _compared("data", recipe.each[0].file or recipe.each[0].data, digest, recorded)
