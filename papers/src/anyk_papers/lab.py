"""The lab of an item: loops over cases and seeds, stored results, data sets, and training."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import BadInput, Floats
from anyk.callbacks import Callback
from anyk.clusters import cluster as build_cluster
from anyk.delays import DelayModel
from anyk.optimizers import GD, Optimizer
from anyk.problems import from_data
from anyk.problems.base import Problem
from anyk.runs import Run, train
from anyk.runs.api import check_plain
from anyk_papers.item_table import Case, Row, Table, crossing

Results = dict[str, Any]  # numbers by name, and under "curves" pairs of x and y by name
Measure = Callable[[Any, Case, int], Results]  # called with the lab, a case and a seed
Progress = Callable[[str, int, int], None]

_FILES = {
    "amazon": ("amazon_employee_access_train.csv.gz", "Kaggle's Amazon Employee Access Challenge, train.csv"),
    "kc-housing": ("kc_house_data.csv.gz", "the King County house sales data, kc_house_data.csv"),
    "covertype": ("covtype.data.gz", "the UCI repository's Covertype data, covtype.data.gz"),
    "mnist": ("t10k-images-idx3-ubyte.gz", "the MNIST test images, t10k-images-idx3-ubyte.gz"),
}


@dataclass
class Lab:
    """The settings under which an item is run.

    ``quick``: a smaller size, for a first look; ``seeds``: the number of seeds 0, 1, …; ``cluster``: simulated or
    processes; ``keep``: a folder that stores results by their settings; ``data_folder``: the folder with data sets.
    """

    item: str
    seeds: int = 3
    quick: bool = False
    cluster: str = "simulated"
    keep: Path | None = None
    data_folder: Path | None = None
    progress: Progress = lambda sentence, done, total: None
    _problems: dict[str, Problem] = field(default_factory=dict, repr=False)

    # ------------------------------------------------------------------------------------------- results

    def measure(self, how: Measure, cases: Iterable[Case], *, seeds: int | None = None) -> Table:
        """Return a row per case, with ``how(lab, case, seed)`` of each seed; stored results are reused."""
        case_list = list(cases)
        count = self.seeds if seeds is None else seeds
        rows, done = [], 0
        for case in case_list:
            row = Row(dict(case))
            for seed in range(count):
                self.progress(", ".join(str(value) for value in case.values()), done, len(case_list) * count)
                done += 1
                numbers = self._load_or_measure(how, case, seed)
                for name, curve in numbers.pop("curves", {}).items():
                    x, y = (np.asarray(values, dtype=np.float64) for values in curve)
                    row.curves.setdefault(name, []).append((x, y))
                for name, value in numbers.items():
                    row.numbers.setdefault(name, []).append(float(value))
            rows.append(row)
        self.progress("", done, len(case_list) * count)
        return Table(tuple(rows))

    def _load_or_measure(self, how: Measure, case: Case, seed: int) -> Results:
        settings = {
            "item": self.item,
            "how": how.__name__,
            "case": dict(case),
            "seed": seed,
            "quick": self.quick,
            "cluster": self.cluster,
            "code": _code_digest(),
        }
        file = None
        if self.keep is not None:
            content = json.dumps(settings, sort_keys=True, default=str)
            file = self.keep / f"{hashlib.blake2b(content.encode(), digest_size=10).hexdigest()}.json"
            if file.is_file():
                result: Results = json.loads(file.read_text(encoding="utf-8"))["results"]
                return result
        result = how(self, case, seed)
        if file is not None:
            plain = json.dumps({"settings": settings, "results": result}, default=_to_plain)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".part")
            check_plain(partial)
            partial.write_text(plain, encoding="utf-8")
            partial.replace(file)
            result = json.loads(plain)["results"]
        return result

    # ------------------------------------------------------------------------------------------- training

    def size(self, full: int, quick: int) -> int:
        """Return ``quick`` for a quick look, else ``full``."""
        return quick if self.quick else full

    def check_simulated(self) -> None:
        """Raise :class:`~anyk.BadInput` on other clusters, for items that look at the models of workers."""
        if self.cluster != "simulated":
            raise BadInput(
                f"'{self.item}' looks at the workers' models, which only the simulated cluster shows; leave out "
                f"cluster={self.cluster}"
            )

    def path(self, name: str) -> Path:
        """Return a data file; if it is missing, raise :class:`~anyk.BadInput` with its origin."""
        file, origin = _FILES.get(name, (name, name))
        folder = self.data_folder or Path(os.environ.get("ANYK_DATA", "data"))
        if not (folder / file).exists():
            raise BadInput(
                f"'{self.item}' needs {origin}, as '{file}' in a folder that --data-dir or ANYK_DATA names; "
                f"there is none in '{folder}'"
            )
        return folder / file

    def problem(self, data: str, **options: Any) -> Problem:
        """Return the problem of a data set, loaded once; files are looked up in the data folder."""
        key = f"{data} {sorted(options.items())}"
        if key not in self._problems:
            name = data.partition(":")[0]
            if name in _FILES:
                options = {"file": self.path(name)} | options
            self._problems[key] = from_data(data, progress=None, **options)
        return self._problems[key]

    def train(
        self,
        problem: Problem,
        strategy: str,
        *,
        workers: int,
        delays: str | DelayModel,
        seed: int,
        optimizer: Optimizer | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        communication: str = "none",
        targets: Sequence[float] = (),
        evaluate: str = "",
        callbacks: Sequence[Callback] = (),
        further: Callable[[Run], Mapping[str, float]] = lambda run: {},
    ) -> Results:
        """Train; return seconds a step, final loss and metric, seconds to each target, curves against seconds."""
        fleet = build_cluster(self.cluster, workers=workers, delays=delays, seed=seed, communication=communication)
        run = train(
            problem,
            strategy,
            fleet,
            optimizer=optimizer or GD(),
            steps=steps,
            seconds=seconds,
            evaluate=evaluate,
            callbacks=callbacks,
        )
        try:
            history, metric = run.history, run.metric_name
            evaluated = ~np.isnan(history["loss"])
            times = history["seconds"][evaluated]
            curves: dict[str, tuple[Floats, Floats]] = {"loss": (times, history["loss"][evaluated])}
            numbers: Results = {
                "seconds a step": run.seconds / max(1, run.steps),
                "loss": float(history["loss"][evaluated][-1]),
            }
            if run.metric is not None:
                values = history[metric][evaluated]
                curves[metric] = times, values
                numbers[metric] = float(values[-1])
                better = np.less_equal if problem.better == "lower" else np.greater_equal
                for target in targets:
                    numbers[f"to {target:g}"] = crossing(times, values, target, better=better)
            return numbers | dict(further(run)) | {"curves": curves}
        finally:
            run.close()


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


@cache
def _code_digest() -> str:
    """Return a digest of the code of anyk, of readjax and of this package: results of other code are not reused."""
    digest = hashlib.blake2b(digest_size=10)
    for package in ("anyk", "anyk_papers", "readjax"):
        found = find_spec(package)
        for folder in [] if found is None else found.submodule_search_locations or []:
            for file in sorted(Path(folder).rglob("*.py")):
                digest.update(file.read_bytes())
    return digest.hexdigest()
