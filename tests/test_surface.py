"""Commands, specs and public members are those of tests/surface.txt; ``python tests/surface.py --write`` renews it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow(always=True)
def test_the_public_surface_is_as_it_was_written_down():
    """In a process of its own: other tests register strategies and wait rules of theirs."""
    command = [sys.executable, str(Path(__file__).with_name("surface.py"))]
    compared = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not compared.stdout and not compared.returncode, compared.stdout + compared.stderr
