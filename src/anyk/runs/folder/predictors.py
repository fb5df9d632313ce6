"""The part of a run folder that predicts: ``predictor.json``, whose SHA-256 is in the configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from anyk.errors import BadInput
from anyk.files import read_plain, replacing
from anyk.problems.base import Problem
from anyk.problems.predicting import Predictor

NAME = "predictor.json"
_NONE = "only linear models and two-layer networks predict here; take other models from run.model"


def predictor_of(problem: Problem) -> Predictor | None:
    """What a problem has to predict with, if anything."""
    own = getattr(problem, "predictor", None)
    found = None if own is None else own()
    return found if isinstance(found, Predictor) else None


def keep(problem: Problem, folder: Path) -> str | None:
    """Write it into a run's folder; its SHA-256, None where there is nothing to keep."""
    predictor = predictor_of(problem)
    if predictor is None:
        return None
    text = predictor.encoded()
    try:
        with replacing(folder / NAME) as part, part.open("xb") as new:
            new.write(text)
    except OSError as error:
        raise BadInput(f"the folder '{folder}' cannot be written ({error.strerror})") from None
    return hashlib.sha256(text).hexdigest()


def kept(folder: Path, config: Mapping[str, Any]) -> Predictor:
    """What :func:`keep` wrote; :class:`~anyk.errors.BadInput` where there is nothing, or it is damaged."""
    known = config.get("digests", {}).get("predictor")
    if known is None:
        raise BadInput(f"the run '{folder}' keeps no predictor: {_NONE}")
    file = folder / NAME
    try:
        text = read_plain(file)
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read ({error.strerror})") from None
    if hashlib.sha256(text).hexdigest() != known:
        raise BadInput(f"'{file}' is damaged or was edited: its contents do not match their digest; restore the file")
    try:
        return Predictor.decoded(text)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput(f"'{file}' is damaged ({error})") from None


def needed(predictor: Predictor | None) -> Predictor:
    """The predictor of a run in memory; :class:`~anyk.errors.BadInput` without one."""
    if predictor is None:
        raise BadInput(f"the run's problem has no predictor: {_NONE}")
    return predictor
