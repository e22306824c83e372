"""The tour runs and checks itself, with every instruction set that this machine has."""

import os
import subprocess
import sys
from pathlib import Path

import normkit
import pytest

TOUR = Path(__file__).resolve().parents[3] / "examples" / "tour.py"


@pytest.mark.parametrize("target", normkit.targets())
def test_tour(target):
    environment = {**os.environ, "NORMKIT_TARGET": target}
    result = subprocess.run([sys.executable, TOUR], capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"(instruction set {target})" in result.stdout
    assert "unpatched: the first result again" in result.stdout
