"""A sample of the drivers that ``scripts/soak crashes`` kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("cluster", "drivers"), [("simulated", 12), ("processes", 4)])
def test_killed_drivers_lose_nothing(cluster: str, drivers: int) -> None:
    """They are killed in processes that are forked, which needs a program without threads."""
    numbers = {"simulated": 0, "processes": 0} | {cluster: drivers}
    arguments = [argument for name, number in numbers.items() for argument in (f"--{name}", str(number))]
    script = Path(__file__).with_name("crash_points.py")
    result = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{cluster}: {drivers} drivers killed" in result.stdout
