"""The folder of a race: ``race.toml``, and in it a run folder for each strategy and seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from anyk.errors import BadInput
from anyk.runs.folder.config import Count, SharedConfig, read_sealed

NAME = "race.toml"
FORMAT = 1

_Folder = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9=-][A-Za-z0-9.=-]*$")]


class RaceConfig(SharedConfig, frozen=True, kw_only=True):
    """The keys of ``race.toml`` and their types; ``runs``: the folder of each strategy, a name in the race's folder.

    ``seeds``: how many there are, from ``seed`` on; :func:`entries` names the folders of those behind the first.
    """

    models: Count
    runs: dict[str, _Folder]
    seeds: Count = 1


class Entry(NamedTuple):
    """A run of a race: its strategy's spec, its seed, its folder's name, and what it is called among the others."""

    strategy: str
    seed: int
    folder: str
    title: str


def entries(config: Mapping[str, Any]) -> Iterator[Entry]:
    """All runs of a race, seed by seed: after an interruption there are strategies to compare.

    >>> [entry.folder for entry in entries({"runs": {"frc:load=3": "frc-load=3"}, "seed": 4, "seeds": 2})]
    ['frc-load=3', 'frc-load=3_seed=5']
    """
    first, seeds = config["seed"], seeds_of(config)
    for seed in range(first, first + seeds):
        for spec, name in config["runs"].items():  # no strategy's folder has a "_" in its name
            yield Entry(spec, seed, name if seed == first else f"{name}_seed={seed}", titled(spec, seed, seeds))


def seeds_of(config: Mapping[str, Any]) -> int:
    """How many seeds a race has."""
    return int(config.get("seeds", 1))


def titled(spec: str, seed: int, seeds: int) -> str:
    """A run's strategy and, where a race has several seeds, its seed."""
    return f"{spec}, seed {seed}" if seeds > 1 else spec


def is_race(path: str | Path) -> bool:
    """Whether a folder is a race's, or holds run folders without being one."""
    folder = Path(path)
    return (folder / NAME).is_file() or (not (folder / "run.toml").exists() and bool(run_folders(folder)))


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder."""
    return sorted(one for one in folder.iterdir() if (one / "run.toml").is_file()) if folder.is_dir() else []


def read_race(folder: Path) -> dict[str, Any]:
    """The configuration of a race, checked: it may be anybody's."""
    file = folder / NAME
    if not file.is_file():
        runs = run_folders(folder)
        hint = f"; its runs go on one by one: anyk resume {runs[-1]}" if runs else ""
        raise BadInput(f"'{folder}' is not the folder of a race: it has no {NAME}{hint}")
    return read_sealed(file, RaceConfig, f"the race '{folder}'", FORMAT)


def named(strategies: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """The folder of each strategy."""
    names: dict[str, str] = {}
    for spec in strategies:
        if spec in names:
            raise BadInput(f"'{spec}' is in the race twice")
        name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec).strip("-.") or "run"
        taken = {*names.values(), *known.values()}
        names[spec] = name if name not in taken else f"{name}-{len(taken)}"
    return names
