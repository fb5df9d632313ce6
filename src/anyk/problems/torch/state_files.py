"""States of PyTorch modules in files that other programs read: safetensors, with the names of ``state_dict()``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.errors import BadInput
from anyk.problems.model_files import NAME, check_model_file, write_model_file

if TYPE_CHECKING:
    import torch


def write_state(module: torch.nn.Module, file: Path) -> None:
    """Write a module's parameters and buffers; shared memory is written once, as ``safetensors.torch`` does."""
    from safetensors.torch import save_model

    write_model_file(file, lambda name, metadata: save_model(module, name, metadata={"format": "pt"} | metadata))


def loaded(module: torch.nn.Module, source: Any) -> torch.nn.Module:
    """Return a copy of a module with the state in a file, in a run folder, or in a ``state_dict()``.

    Raises :class:`~anyk.errors.BadInput` if it is no state of such a module, or if a file of a run was changed.
    """
    from safetensors.torch import load_model

    copied = copy.deepcopy(module)
    if isinstance(source, Mapping):
        what = "the state"
    elif isinstance(source, (str, Path)):
        file = Path(source)
        of_run = file.is_dir()
        file = file / NAME if of_run else file
        what = f"'{file}'"
        if not file.exists():
            raise BadInput(f"there is no {what}; give a run folder, a safetensors file, a run or a state_dict()")
        check_model_file(file, of_run=of_run)
    else:
        raise BadInput(
            f"a state is a run, its folder, a safetensors file or a state_dict(), got {type(source).__name__}"
        )
    try:
        if isinstance(source, Mapping):
            copied.load_state_dict(source)
        else:
            load_model(copied, file)
    except Exception as error:
        reason = " ".join(str(error).split())
        if "deserializing header" in reason:
            raise BadInput(
                f"{what} is not a safetensors file ({reason}); of a file of torch.save give torch.load(file, "
                "weights_only=True)"
            ) from None
        raise BadInput(f"{what} does not fit the problem's module ({reason})") from None
    if not all(np.isfinite(parameter.detach().double().sum().item()) for parameter in copied.parameters()):
        raise BadInput(f"{what} holds parameters that are not finite")
    return copied
