"""The settings of a run folder, ``run.toml``, with their types and a digest.

The digest covers everything else in the file and reveals damage and edits. It is not a signature: anyone can write a
folder with a valid digest, so code that a folder names is not run just for that (:mod:`anyk.base.named`). ``race.toml``
and ``auto.toml`` are stored in the same way. When a run is resumed with new limits, they replace those in the file.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from anyk.base.checks import AtLeastZero, Positive
from anyk.base.errors import BadInput, as_bad_input, printable
from anyk.base.plain import ByName
from anyk.base.regular_files import read_plain, replacing
from anyk.base.specs import Spec
from anyk.problems.base import Problem
from anyk.protocol import Workers
from anyk.runs.folder.folders import LOCK
from anyk.runs.folder.promise import Promise, as_spec, without_none
from anyk.runs.limits import Limits

FORMAT = 1
_LONGEST = 1 << 22  # bytes of a file of settings
_DEEP = re.compile(rb"""^[ \t\[]*(?:[ \t]*(?:"[^"\n]*"|'[^'\n]*'|[^=\n"'.,]*)[ \t]*\.){9}""", re.MULTILINE)  # a.b.c. …
NAME = "run.toml"

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Digests(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests of the data, files and code that a run uses, to notice later changes.

    ``data``: digest of the problem's arrays, None without arrays. ``traces``: digests of measured delays, by file.
    ``files``: SHA-256 of files that strategies name, such as a matrix, by path. ``code``: SHA-256, by name, of the
    files and modules that the configuration names, of plug-ins, and of what these import from their own folder.
    ``plugins``: paths of the plug-ins. ``installed``: installed distributions whose plug-ins the run uses, as "name
    version", with SHA-256 of their code. ``predictor``: SHA-256 of the file with which the model predicts.
    ``l2``: the problem's. ``gradient``: numbers that represent the gradient of a few samples of a problem without a
    recipe (:func:`~anyk.problems.watch.gradient_mark`).
    """

    data: str | None = None
    traces: dict[str, str] = {}
    files: dict[str, str] = {}
    code: dict[str, str] = {}
    plugins: list[str] = []
    installed: dict[str, str] = {}
    predictor: str | None = None
    l2: float | None = None
    gradient: list[float] = []


class DataRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys from which :func:`anyk.problems.from_recipe` rebuilds a problem: a function, or data."""

    problem: str | None = None
    data: str | None = None
    file: str | None = None
    l2: float | None = None
    model: str | None = None
    split: str | None = None

    def plain(self) -> ByName:
        """Return the keys that have values, for TOML and JSON."""
        return dict(msgspec.to_builtins(self))


class Recipe(DataRecipe, frozen=True):
    """The keys of a :class:`DataRecipe`, or ``many``: the recipes of several problems, one for each model."""

    many: Annotated[list[DataRecipe], msgspec.Meta(min_length=1)] | None = None

    @property
    def each(self) -> Sequence[DataRecipe]:
        """The recipes of all problems, also if there is only one."""
        return self.many or [self]


class Origin(msgspec.Struct, frozen=True):
    """The run from which a run was started: its folder, its strategy and the step that it had reached."""

    run: str
    strategy: str
    step: AtLeastZero


class SharedConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings that the folder of a run has in common with a folder of several runs."""

    format: int
    anyk: str = ""
    cluster: str
    workers: Workers
    delays: str
    communication: str
    seed: int
    optimizer: str
    lr: str
    steps: Count | None = None
    seconds: Positive | None = None
    target: float | None = None
    problem: Recipe | None = None
    evaluate: str = ""
    callbacks: list[str] = []  # the specs that the command line named
    digests: Digests = Digests()

    @property
    def limits(self) -> Limits:
        """The limits of the run, or of each run."""
        return Limits(steps=self.steps, seconds=self.seconds, target=self.target)

    @property
    def strategies(self) -> Collection[Spec]:
        """The specs of the strategies that the folder names."""
        return ()

    def plain(self) -> ByName:
        """Return the settings that differ from their defaults, as TOML stores them."""
        return dict(without_none(msgspec.to_builtins(self, enc_hook=str)))


class RunConfig(SharedConfig, frozen=True, kw_only=True):
    """The settings of a run, as its ``run.toml`` stores them: resolved, as plain values."""

    strategy: Spec
    partitions: Count
    metric: str
    better: Literal["higher", "lower"]
    auxiliary: list[str] = []
    begin: Origin | None = None
    plan: Promise | None = None  # the plan that chose the strategy
    environment: dict[str, str] = {}
    mirror: bool = False  # whether the folder is a copy of a run's log and settings, without its other files

    @property
    def strategies(self) -> Collection[Spec]:
        """The spec of the run's strategy."""
        return (self.strategy,)


Config = TypeVar("Config", bound=SharedConfig)


def recipe_of(problem: Problem) -> Recipe | None:
    """Return the recipe of a problem, or None if it was made in Python."""
    recipe = problem.recipe()
    with as_bad_input(
        f"recipe() of {type(problem).__name__} has keys from which no problem can be made", msgspec.ValidationError
    ):
        return msgspec.convert(recipe, Recipe) if recipe else None


def read_config(folder: Path) -> RunConfig:
    """Return the settings of a run folder; raises :class:`~anyk.BadInput` if they are missing or damaged."""
    file = folder / NAME
    if not folder.exists():
        others = sorted(path.name for path in folder.parent.glob("*/")) if folder.parent.is_dir() else []
        similar = get_close_matches(folder.name, others, n=1)
        hint = f"; did you mean '{folder.parent / similar[0]}'?" if similar else ""
        raise BadInput(f"'{folder}' is not a run folder: it does not exist{hint}")
    if not file.is_file():
        runs = sorted(config.parent.name for config in folder.glob(f"*/{NAME}")) if folder.is_dir() else []
        hint = f"; name one of the runs in it, as in {folder / runs[0]}" if runs else ""
        if any(folder.glob("checkpoint*.safetensors")):
            hint = ", though it has checkpoints; restore that file, or start again in another folder"
        elif (folder / LOCK).exists():
            hint = ", because its run was killed before it began; start the run again, which may be in this folder"
        raise BadInput(f"'{folder}' is not a run folder: it has no {NAME}{hint}")
    return read_sealed(file, RunConfig, f"the run '{folder}'")


def read_sealed(file: Path, kind: type[Config], of: str) -> Config:
    """Return the settings that :func:`write_sealed` wrote; ``of``: the folder in words, for messages.

    Raises :class:`~anyk.BadInput` if the file is damaged, was edited or is of a newer format.
    """
    with as_bad_input(f"'{file}' cannot be read"):
        content = read_plain(file)
    if len(content) > _LONGEST or _DEEP.search(content):  # TOML of a stranger's making can take hours to read
        raise BadInput(f"'{file}' is not one that anyk writes: it is too long, or has keys of too many parts")
    with as_bad_input(f"'{file}' is damaged", ValueError, RecursionError):  # ValueError: also for a huge integer
        plain = tomllib.loads(content.decode())
    version = plain.get("format")
    if not isinstance(version, int):
        raise BadInput(f"'{file}' does not state its format")
    if version > FORMAT:
        raise BadInput(f"{of} has format {version}, this anyk reads up to {FORMAT}; use a newer anyk")
    with as_bad_input(f"'{file}' is damaged", msgspec.ValidationError):
        config = msgspec.convert(plain, kind, dec_hook=as_spec)
    if plain.get("digest") != _digest(plain):
        raise BadInput(
            f"'{file}' is damaged or was edited: its contents do not match their digest; restore the file, or start "
            "again in another folder"
        )
    return config


def write_sealed(file: Path, config: SharedConfig) -> None:
    """Write a configuration with its digest; raises :class:`~anyk.BadInput` if the folder cannot be written."""
    write_plain(file, config.plain())


def write_plain(file: Path, plain: ByName) -> None:
    """Write plain settings with their digest, in the first line; a ``digest`` among the settings is replaced."""
    import tomli_w

    texts = tomli_w.dumps(plain)
    if printable(texts) != texts:
        wrong = next(line for line in texts.splitlines() if printable(line) != line)
        raise BadInput(f"the settings cannot be stored: {printable(wrong)[:200]} is not UTF-8; rename the file")
    digest = _digest(tomllib.loads(texts))  # of the values as they will be read
    sentence = f"the folder '{file.parent}' cannot be written"
    with as_bad_input(sentence), replacing(file) as temporary, temporary.open("xb") as stream:
        stream.write(tomli_w.dumps({"digest": digest} | plain | {"digest": digest}).encode())


def _digest(config: ByName) -> str:
    plain = {key: value for key, value in config.items() if key != "digest"}
    encoded = msgspec.json.encode(plain, order="deterministic", enc_hook=str)  # dates are the only other type in TOML
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
