"""Checkpoints: everything a run needs to go on, in one safetensors file; nothing in it is ever unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Vector

NAME = "checkpoint.safetensors"


def save(folder: Path, state: dict[str, Any], vectors: dict[str, Vector], *, name: str = NAME) -> None:
    """Write a checkpoint, replacing the last one only when the new one is whole.

    Raises :class:`~anyk.errors.RunFailed` when the disk does not take it.
    """
    from safetensors.numpy import save_file

    part = folder / (name + ".part")
    try:
        arrays = {key: np.ascontiguousarray(vector) for key, vector in vectors.items()}
        save_file(arrays, part, metadata={"state": json.dumps(state)})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(folder / name)
    except Exception as error:  # safetensors raises an exception type of its own for lack of space
        raise RunFailed(
            f"the checkpoint in '{folder}' cannot be written ({error}); free some space and resume"
        ) from None


def load(folder: Path, *, name: str = NAME) -> tuple[dict[str, Any], dict[str, Vector]] | None:
    """Read the checkpoint of a run folder back: state and vectors; None when the run ended before its first."""
    from safetensors import safe_open

    path = folder / name
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            state = json.loads((file.metadata() or {})["state"])
            return state, {key: np.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
    except Exception as error:  # whatever a damaged file makes of the reader
        raise BadInput(f"the checkpoint '{path}' is damaged ({error})") from None
