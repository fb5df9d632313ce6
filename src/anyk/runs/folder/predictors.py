"""The part of a run folder that predicts: ``predictor.json``, whose SHA-256 is in the configuration."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from anyk.base.errors import BadInput, as_bad_input
from anyk.base.regular_files import read_plain, replacing
from anyk.problems.base import Problem, abilities_of
from anyk.problems.predicting import Predictor

NAME = "predictor.json"
_NONE = "only linear models and two-layer networks predict here; take other models from run.model"


def predictor_of(problem: Problem) -> Predictor | None:
    """Return the predictor of a problem, or None if it has none."""
    make = abilities_of(problem).predictor
    predictor = None if make is None else make()
    return predictor if isinstance(predictor, Predictor) else None


def save_predictor(problem: Problem, folder: Path) -> str | None:
    """Write the predictor of a problem into a run's folder; return its SHA-256, or None if it has none."""
    predictor = predictor_of(problem)
    if predictor is None:
        return None
    encoded = predictor.encoded()
    sentence = f"the folder '{folder}' cannot be written"
    with as_bad_input(sentence), replacing(folder / NAME) as unfinished, unfinished.open("xb") as new:
        new.write(encoded)
    return hashlib.sha256(encoded).hexdigest()


def load_predictor(folder: Path | None, digest: str | None) -> Predictor:
    """Return the predictor that :func:`save_predictor` wrote, whose SHA-256 is ``digest``.

    Raises :class:`~anyk.BadInput` if there is none, or if it is damaged.
    """
    if folder is None:
        raise BadInput(f"the run's problem has no predictor: {_NONE}")
    if digest is None:
        raise BadInput(f"the run '{folder}' keeps no predictor: {_NONE}")
    file = folder / NAME
    with as_bad_input(f"'{file}' cannot be read"):
        encoded = read_plain(file)
    if hashlib.sha256(encoded).hexdigest() != digest:
        raise BadInput(f"'{file}' is damaged or was edited: its contents do not match their digest; restore the file")
    with as_bad_input(f"'{file}' is damaged", msgspec.DecodeError, ValueError):
        return Predictor.decoded(encoded)
