"""The folder of a race, with ``race.toml`` and a run folder for each strategy and seed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from anyk.base.errors import BadInput
from anyk.base.specs import Spec
from anyk.runs.folder.config import Count, SharedConfig, read_sealed

NAME = "race.toml"

_Folder = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9=-][A-Za-z0-9.=-]*$")]


class RaceEntry(NamedTuple):
    """A run of a race: its strategy's spec, its seed, its folder's name and its title."""

    strategy: Spec
    seed: int
    folder: str
    title: str


class RaceConfig(SharedConfig, frozen=True, kw_only=True):
    """The settings of a race, as ``race.toml`` stores them.

    ``runs``: the folder's name of each strategy. ``seeds``: the number of seeds, from ``seed`` on.
    """

    models: Count
    runs: dict[Spec, _Folder]
    seeds: Count

    @property
    def strategies(self) -> Collection[Spec]:
        """The specs of all strategies."""
        return self.runs

    @property
    def entries(self) -> list[RaceEntry]:
        """All runs of the race, seed by seed, so that strategies can be compared after an interruption."""
        return [
            RaceEntry(
                strategy=spec,
                seed=seed,
                folder=name if seed == self.seed else f"{name}_seed={seed}",
                title=titled(spec, seed, self.seeds),
            )
            for seed in range(self.seed, self.seed + self.seeds)
            for spec, name in self.runs.items()  # no strategy's folder has a "_" in its name
        ]


def titled(spec: str, seed: int, seeds: int) -> str:
    """Return the title of a run: its strategy and, if a race has several seeds, its seed."""
    return f"{spec}, seed {seed}" if seeds > 1 else spec


def is_race(path: str | Path) -> bool:
    """Return whether a folder is a race's, or contains run folders without being one."""
    folder = Path(path)
    return (folder / NAME).is_file() or (not (folder / "run.toml").exists() and bool(run_folders(folder)))


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders in a folder."""
    return sorted(path for path in folder.iterdir() if (path / "run.toml").is_file()) if folder.is_dir() else []


def read_race(folder: Path) -> RaceConfig:
    """Return the settings of a race; raise :class:`~anyk.BadInput` if they are missing or damaged."""
    file = folder / NAME
    if not file.is_file():
        runs = run_folders(folder)
        hint = f"; resume its runs one by one: anyk resume {runs[-1]}" if runs else ""
        raise BadInput(f"'{folder}' is not the folder of a race: it has no {NAME}{hint}")
    return read_sealed(file, RaceConfig, f"the race '{folder}'")


def name_folders(strategies: Sequence[Spec], existing: Mapping[Spec, str]) -> dict[Spec, str]:
    """Return the folder's name of each strategy; ``existing``: the names of the folders in the race, by strategy."""
    names: dict[Spec, str] = {}
    for spec in strategies:
        if spec in names or spec in existing:
            raise BadInput(f"'{spec}' is in the race {'twice' if spec in names else 'already'}")
        name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec).strip("-.") or "run"
        used_names = {*names.values(), *existing.values()}
        names[spec] = name if name not in used_names else f"{name}-{len(used_names)}"
    return names
