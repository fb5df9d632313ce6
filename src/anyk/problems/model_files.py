"""Models in files that other programs read: safetensors, with a digest of the whole file in the metadata."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from anyk.base.errors import BadInput, RunFailed, as_bad_input
from anyk.base.regular_files import open_plain, replacing

if TYPE_CHECKING:
    import torch

NAME = "model.safetensors"  # in a run folder
_BLANK = "0" * 32  # in the place of the digest while the digest is computed
_DIGEST = re.compile(rb'"anyk_digest":"([0-9a-f]{32})"')
_LONGEST = 100_000_000  # bytes of a header, as safetensors itself allows


def write_model_file(file: Path, save: Callable[[str, dict[str, str]], object]) -> None:
    """Write a file with ``save(name, metadata)``, which writes safetensors, and add its digest.

    Raises :class:`~anyk.RunFailed` if that fails; an older file is then removed.
    """
    try:
        with replacing(file) as unfinished:
            save(str(unfinished), {"anyk_digest": _BLANK})
            with unfinished.open("rb+") as new:
                digests = _read_digests(new)
                assert digests is not None
                new.seek(digests.offset)
                new.write(digests.computed.encode())
    except Exception as error:  # safetensors raises exception types of its own
        file.unlink(missing_ok=True)
        raise RunFailed(f"the model '{file}' cannot be written ({error})") from None


def check_model_file(file: Path, *, of_run: bool) -> None:
    """Raise :class:`~anyk.BadInput` if the file does not match its digest, or has none although ``of_run``.

    A file of a run folder is not read through a link.
    """
    with as_bad_input(f"'{file}' cannot be read"), open_plain(file, follow=not of_run) as opened:
        digests = _read_digests(opened)
    if digests is None and of_run:
        raise BadInput(f"'{file}' is damaged or was edited: it has no digest; to load it nevertheless, name the file")
    if digests is not None and digests.stated != digests.computed:
        raise BadInput(f"'{file}' is damaged or was edited: its contents do not match their digest; restore the file")


class _Digests(NamedTuple):
    """The digest that a file states, the byte at which it stands, and the digest of the contents."""

    stated: str
    offset: int
    computed: str


def _read_digests(file: IO[bytes]) -> _Digests | None:
    """Return the digests of a file, or None if it states none."""
    file.seek(0)
    length = file.read(8)
    header = file.read(min(int.from_bytes(length, "little"), _LONGEST))
    stated = _DIGEST.search(header)
    if stated is None:
        return None
    digest = hashlib.blake2b(length, digest_size=16)
    digest.update(header[: stated.start(1)] + _BLANK.encode() + header[stated.end(1) :])
    while block := file.read(1 << 20):
        digest.update(block)
    return _Digests(stated[1].decode(), len(length) + stated.start(1), digest.hexdigest())


def load_copy(module: torch.nn.Module, source: object) -> torch.nn.Module:
    """Return a copy of a module with the state in a file, in a run folder, or in a ``state_dict()``.

    Raises :class:`~anyk.BadInput` if it is no state of such a module, or if a file of a run was changed.
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
                f"{what} is not a safetensors file ({reason}); for a file of torch.save, give torch.load(file, "
                "weights_only=True)"
            ) from None
        raise BadInput(f"{what} does not fit the problem's module ({reason})") from None
    if not all(np.isfinite(parameter.detach().double().sum().item()) for parameter in copied.parameters()):
        raise BadInput(f"{what} holds parameters that are not finite")
    return copied
