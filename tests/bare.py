"""Run every command of anyk, and import every package of it, with only some of the optional packages importable.

``python tests/bare.py [--only EXTRA,...]`` hides every installed package that neither anyk itself nor the extras
require, so that an environment with everything behaves like a bare one. What is a distribution of its own in anyk's
source, ./decompile and ./papers, is hidden unless it is among the extras. ``--installed`` hides nothing, for an
environment that has just these extras. A command that needs a missing package must say which extra brings it. The last
line is a JSON list of the failures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import signal
import sys
import tempfile
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("plot", "data", "report", "tensorboard", "mlflow", "metrics", "torch", "jax", "ray", "mpi", "nodes")
SIMULATED = "--cluster simulated --workers 6 --delays exp:mean=0.2 --quiet"
CLASSIFIER = "\n".join(["a,b,label", *(f"{i % 7},{i % 5},{int(i % 7 > 3)}" for i in range(40))])
FUNCTION = "import jax.numpy as jnp\n\ndef f(x):\n    return jnp.sum(x * x)\n"
ANNEXES = {"./decompile": "readjax", "./papers": "anyk_papers"}
# each command, and the extras and annexes that it needs; in this order, as later ones read what earlier ones wrote
COMMANDS = {
    f"train {SIMULATED} --steps 4 --strategy frc:load=3 --out run": "",
    f"train {SIMULATED} --steps 4 --data file --data-file table.csv --out own": "",
    f"race {SIMULATED} --steps 2 --strategy uncoded --strategy frc:load=3 --out race": "",
    f"race {SIMULATED} --steps 2 --strategy uncoded --picture race.png --out drawn": "plot",
    f"train {SIMULATED} --steps 2 --callback tensorboard:folder=events --out logged": "tensorboard",
    f"train {SIMULATED} --steps 2 --cluster ray --out raylets": "ray",
    f"train {SIMULATED} --steps 2 --strategy auto --out auto": "",
    "show run --step 2": "", "show run --staleness": "", "show race": "", "show race --picture race.pdf": "plot",
    "resume run --steps 6": "", "replay run": "", "verify run": "", "drain run": "",
    "report run -o run.html": "report", "watch run --port 0": "report",
    "export run --to perfetto": "", "export run --to parquet": "data", "export run --to csv": "",
    "explain run": "", "plan run -o plan.toml": "", f"train {SIMULATED} --plan plan.toml --out planned": "", "check planned": "",
    "record run -o fleet.npz": "", "trace record run --out times.npz": "", "trace show times.npz": "",
    "coefficients own": "", "predict own rows.csv": "",
    "list codes --workers 6": "", "codes show frc:load=3 --workers 6": "", "codes compare frc:load=3 --workers 6": "",
    "codes show frc:load=3 --workers 6 --picture code.png": "plot",
    "codes threshold frc:load=3 --workers 6 --error 0.1": "", "list strategies": "",
    "strategies show k-async:k=2 --workers 6 --delays exp:mean=1": "", "strategies check k-async:k=2 --schedules 5": "",
    "list": "", "list callbacks": "", "list optimizers": "", "graphs show ring --workers 6": "",
    "scale uncoded --model 1e6 --network 1Gb/s --nodes 4": "",
    "scale uncoded --model 1e6 --network 1Gb/s --nodes 4 --picture scale.png": "plot",
    "cluster check processes --workers 2 --steps 1": "", "reproduce": "./papers", "reproduce tandon-bound --quick": "./papers",
    "decompile function.py:f --args f32[3]": "jax ./decompile",
}  # fmt: skip
# they take longest and read or write nothing that an extra is for: with an extra they would do what they do without
WITHOUT_EXTRAS = (
    "graphs show",
    "list codes",
    "codes threshold",
    "cluster check",
    "strategies check",
)
if "--installed" in sys.argv:  # it takes too long to be tried with each extra
    COMMANDS[
        "chaos --strategy frc:stragglers=1 --stop 3/s --seconds 3 --workers 3 --least 0 --data synthetic:rows=100,features=3"
    ] = ""


class Finder(PathFinder):
    """Finds modules as Python does, except those of some packages."""

    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.hidden and name in ANNEXES.values():  # it may be in a folder of the source
            return None
        if name in cls.hidden:  # what a package brings inside itself stays, as Ray's own psutil does
            path = [place for place in sys.path if Path(place).name != "site-packages"]
        return super().find_spec(name, path, target)


def required(distribution: str, extra: str = "") -> set[str]:
    """Names of the distributions that an installation brings, itself included."""
    from packaging.requirements import Requirement

    done, todo = set(), [(distribution, extra)]
    while todo:
        name, extra = todo.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, texts):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in {extra, ""}):
                todo += [(requirement.name, asked) for asked in {"", *requirement.extras}]
    return {name for name, _ in done}


def hide_all_but(extras: list[str]) -> None:
    """Hide every package that an installation of anyk with these extras alone would not bring."""
    kept = {"pip", "setuptools"}.union(*(required("anyk", extra) for extra in ["", *extras]))
    names = {
        name
        for name, distributions in packages_distributions().items()
        if not kept & {re.sub(r"[-_.]+", "-", one).lower() for one in distributions}
    }
    for name in names & {module.partition(".")[0] for module in sys.modules}:
        for module in [one for one in sys.modules if one.partition(".")[0] == name]:
            del sys.modules[module]
    Finder.hidden = frozenset(names | {ANNEXES[annex] for annex in ANNEXES.keys() - set(extras)})
    sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]


def failures(extras: list[str]) -> list[str]:
    """Return what fails where only these extras are installed."""
    import click

    import anyk
    from anyk.cli import main

    found = []
    for module in pkgutil.walk_packages(anyk.__path__, "anyk."):
        if (module.name.count(".") == 1 and not module.name.endswith("__main__")) or module.ispkg:
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                found.append(f"import {module.name}: {error}")
    for line, needed in COMMANDS.items():
        if extras and line.startswith(WITHOUT_EXTRAS):
            continue
        words, said = line.split(), ""
        if words[0] == "watch":
            signal.setitimer(signal.ITIMER_REAL, 2.0)
        try:
            with open("output", "w") as output:
                saved, sys.stdout = sys.stdout, output
                try:
                    status = main(words, standalone_mode=False) or 0
                finally:
                    sys.stdout = saved
        except SystemExit as error:
            status = error.code or 0
        except KeyboardInterrupt:
            status = 130
        except click.exceptions.ClickException as error:
            status, said = 2, error.format_message()
        except BaseException as error:
            found.append(f"anyk {line}: {type(error).__name__}: {error}")
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        expected = 2 if set(needed.split()) - set(extras) else 0
        if status != expected:
            found.append(f"anyk {line}: exit status {status}, expected {expected} {said}")
    tried = {line.split()[0] for line in COMMANDS}
    found += [f"anyk {name} is not tried" for name in main.commands.keys() - tried - {"chaos"}]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="EXTRA,...")
    parser.add_argument("--installed", action="store_true")
    given = parser.parse_args()
    extras = [extra for extra in given.only.split(",") if extra]
    if not given.installed:
        hide_all_but(extras)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # interrupts are ignored in the background of a shell
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    os.chdir(tempfile.mkdtemp())
    Path("table.csv").write_text(CLASSIFIER)
    Path("rows.csv").write_text("a,b\n1,2\n")
    Path("function.py").write_text(FUNCTION)
    found = failures(extras)
    print(json.dumps(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
