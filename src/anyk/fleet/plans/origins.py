"""The place of the record that a plan was made from, and how it is found again."""

from __future__ import annotations

from pathlib import Path

from anyk.delays import DelayModel
from anyk.delays import parse as parse_law
from anyk.errors import BadInput
from anyk.fleet.plans.measured import drawn
from anyk.fleet.records import Record, read
from anyk.runs import Run
from anyk.runs.folder.promise import Source


def origin(source: str | Path | Run | Record | DelayModel, unit: str | None) -> dict[str, str | None]:
    """The place at which a record can be found again, as far as there is one."""
    if isinstance(source, DelayModel):
        return {"law": source.spec}
    path = source.path if isinstance(source, Run) else None if isinstance(source, Record) else source
    return {} if path is None else {"path": str(Path(path).expanduser().absolute()), "unit": unit}


def found_again(source: Source, workers: int, instead: str | Path | Record | None = None) -> Record:
    """The record that a plan was made from; raises :class:`~anyk.errors.BadInput` where it is gone or another one.

    ``instead``: where it is now.
    """
    if instead is not None:
        record = read(instead, unit=source.unit)
    elif source.law is not None:
        record = drawn(parse_law(source.law), workers, source.seed)
    elif source.path is None:
        raise BadInput("the plan was made from a record in memory; give that record")
    elif not Path(source.path).exists():
        raise BadInput(f"the record '{source.path}' that the plan was made from is gone; give the file where it is now")
    else:
        record = read(source.path, unit=source.unit)
    if record.digest != source.digest:
        where = "the record given" if instead is not None else f"'{source.path or source.law}'"
        raise BadInput(f"{where} is not the record that the plan was made from: its times have another digest")
    return record
