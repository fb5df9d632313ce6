"""The rows of a user's file, and the settings with which they are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyk.base.arrays import Array
from anyk.problems.base import Tell
from anyk.tables import (
    Encoding,
    Fill,
    Limit,
    Matrix,
    Settings,
)


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The settings with which a file is read."""

    target: str | None
    task: str
    header: bool | None
    allowed: Limit
    progress: Tell | None
    fill: Fill | None
    test: float
    seed: int
    cells: Settings
    drop: tuple[str, ...]
    columns: tuple[str, ...] | None

    def say(self, sentence: str) -> None:
        """Report how something was read."""
        if self.progress is not None:
            self.progress(sentence)


@dataclass(frozen=True, slots=True)
class FileContent:
    """The rows of a file.

    ``y``: numbers or text, of the training rows and then of separate test rows, ``X_test``, if the file has any.
    ``target``: the name of ``y`` in messages.
    """

    X: Matrix
    y: Array
    target: str
    X_test: Matrix | None = None
    encoding: Encoding = field(default_factory=Encoding)
    remarks: tuple[str, ...] = ()  # how the file was read, for the summary
