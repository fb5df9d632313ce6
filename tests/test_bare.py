"""Every command and package of anyk with no extra, with each extra alone, and with each distribution beside it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bare

SCRIPT = Path(bare.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("extras", ["", *bare.EXTRAS, "./papers", "jax,./decompile"])
def test_every_command_runs_or_names_the_missing_extra(extras):
    done = subprocess.run([sys.executable, SCRIPT, "--only", extras], capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr
    for needed in bare.COMMANDS.values():
        missing = [what for what in needed.split() if what not in extras.split(",")]
        ways = [what if what in bare.ANNEXES else f"'.[{what}]'" for what in missing]
        assert not ways or any(f"run: pip install {way}" in done.stderr for way in ways)
    assert "Traceback" not in done.stderr


def test_every_extra_is_tried():
    with open(bare.ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(bare.EXTRAS) == extras.keys() - {"all", "docs", "test"}
