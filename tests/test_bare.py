"""Every command and package of anyk with no extra, and with each extra alone."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bare

SCRIPT = Path(bare.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *bare.EXTRAS])
def test_every_command_runs_or_names_the_missing_extra(extra):
    done = subprocess.run([sys.executable, SCRIPT, "--only", extra], capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr
    missing = {needed for needed in bare.COMMANDS.values() if needed not in ("", extra)}
    assert all(f"run: pip install '.[{needed}]'" in done.stderr for needed in missing)
    assert "Traceback" not in done.stderr


def test_every_extra_is_tried():
    with open(bare.ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(bare.EXTRAS) == extras.keys() - {"all", "docs", "test"}
