"""The configuration of a run folder, ``run.toml``: read back with its types and its digest checked.

The digest is of all else in the file, so that damage and edits are found out; it is no secret, and keeps nobody from
making a folder of his own. What a folder names is another matter (:mod:`anyk.named`). ``race.toml`` and ``auto.toml``
are kept alike. New limits are written into the file when a run is resumed, so the log knows nothing of it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from anyk.errors import BadInput
from anyk.files import read_plain, replacing
from anyk.runs.folder.folders import LOCK
from anyk.runs.folder.promise import Promise

FORMAT = 1
NAME = "run.toml"

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Digests(msgspec.Struct, frozen=True):
    """What a run was made of, so that a later change is noticed.

    ``data``: of the problem's arrays, None where it has none to look at. ``traces``: of measured delays, by file.
    ``files``: SHA-256 of files that strategies name (a matrix), by path. ``code``: SHA-256, by name, of the files and
    modules that the configuration names, of plug-ins, and of what such files import from their own folder.
    ``plugins``: those of them that are plug-ins, by path. ``predictor``: SHA-256 of what it keeps to predict with.
    """

    data: str | None = None
    traces: dict[str, str] = {}
    files: dict[str, str] = {}
    code: dict[str, str] = {}
    plugins: list[str] = []
    predictor: str | None = None


class DataRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a problem that is made again by :func:`anyk.problems.from_recipe`: from a function or from data."""

    problem: str | None = None
    data: str | None = None
    file: str | None = None
    l2: float | None = None
    model: str = "linear"
    split: str | None = None


class Recipe(DataRecipe, frozen=True):
    """The keys of a :class:`DataRecipe`, or ``many``: those of several problems, one for each model."""

    many: Annotated[list[DataRecipe], msgspec.Meta(min_length=1)] | None = None


class Origin(msgspec.Struct, frozen=True):
    """The run from which a run was started: its folder, its strategy and the step that it had reached."""

    run: str
    strategy: str
    step: Annotated[int, msgspec.Meta(ge=0)]


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that the folder of a run has in common with those of several, and their types."""

    format: int
    digest: str  # of everything else in the file
    cluster: str
    workers: Count
    delays: str
    communication: str
    seed: int
    optimizer: str
    lr: str
    anyk: str = ""
    steps: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    target: float | None = None
    problem: Recipe | None = None
    evaluate: str = ""
    callbacks: list[str] = []  # those that the command line named
    digests: Digests


class RunConfig(SharedConfig, frozen=True, kw_only=True):
    """The keys of ``run.toml`` and their types."""

    strategy: str
    partitions: Count
    metric: str
    better: Literal["higher", "lower"]
    auxiliary: list[str] = []
    begin: Origin | None = None
    plan: Promise | None = None  # with which it was begun
    environment: dict[str, str] = {}
    mirror: bool = False  # a copy of a run's log and settings, without its other files


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run folder; raises :class:`~anyk.errors.BadInput` where it is missing or damaged."""
    file = folder / NAME
    if not folder.exists():
        there = sorted(one.name for one in folder.parent.glob("*/")) if folder.parent.is_dir() else []
        near = get_close_matches(folder.name, there, n=1)
        hint = f"; did you mean '{folder.parent / near[0]}'?" if near else ""
        raise BadInput(f"'{folder}' is not a run folder: it does not exist{hint}")
    if not file.is_file():
        runs = sorted(one.parent.name for one in folder.glob(f"*/{NAME}")) if folder.is_dir() else []
        hint = f"; name one of the runs in it, as in {folder / runs[0]}" if runs else ""
        if any(folder.glob("checkpoint*.safetensors")):
            hint = ", though it has checkpoints; restore that file, or begin anew in another folder"
        elif (folder / LOCK).exists():
            hint = ", as a run leaves it that was killed before it began; remove the folder and start the run again"
        raise BadInput(f"'{folder}' is not a run folder: it has no {NAME}{hint}")
    return read_sealed(file, RunConfig, f"the run '{folder}'", FORMAT)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write a run folder's configuration; raises :class:`~anyk.errors.BadInput` where the folder does not take it."""
    write_sealed(folder / NAME, config)


def read_sealed(file: Path, kind: type[msgspec.Struct], of: str, newest: int) -> dict[str, Any]:
    """What :func:`write_sealed` wrote, with the keys of ``kind``; ``of`` names it, ``newest`` is the format known.

    Raises :class:`~anyk.errors.BadInput` where it is damaged, was edited or is of a newer format.
    """
    try:
        config = tomllib.loads(read_plain(file).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"'{file}' is damaged ({error})") from None
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read ({error.strerror})") from None
    if not isinstance(config.get("format"), int):
        raise BadInput(f"'{file}' does not say its format")
    if config["format"] > newest:
        raise BadInput(f"{of} has format {config['format']}, this anyk reads up to {newest}; use a newer anyk")
    try:
        msgspec.convert(config, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"'{file}' is damaged ({error})") from None
    if config["digest"] != _digest(config):
        raise BadInput(
            f"'{file}' is damaged or was edited: its contents do not match their digest; restore the file, or begin "
            "anew in another folder"
        )
    return config


def write_sealed(file: Path, config: Mapping[str, Any]) -> None:
    """Write a configuration with its digest; raises :class:`~anyk.errors.BadInput` where a folder takes none."""
    import tomli_w

    plain = {key: value for key, value in config.items() if value is not None}
    # the digest is of what a reader will find
    digest = _digest(tomllib.loads(tomli_w.dumps(plain)))
    try:
        with replacing(file) as part, part.open("xb") as new:
            new.write(tomli_w.dumps({"digest": digest} | plain | {"digest": digest}).encode())
    except OSError as error:
        raise BadInput(f"the folder '{file.parent}' cannot be written ({error.strerror})") from None


def _digest(config: dict[str, Any]) -> str:
    plain = {key: value for key, value in config.items() if key != "digest"}
    text = msgspec.json.encode(plain, order="deterministic", enc_hook=str)  # dates are the only other type in TOML
    return hashlib.blake2b(text, digest_size=16).hexdigest()
