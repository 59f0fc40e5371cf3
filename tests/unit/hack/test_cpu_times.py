"""Which tests take how much processor time is said by hack/cpu_times.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders.exploration import full

HACK = Path(__file__).parents[3] / "hack"
TESTS = """
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < 0.2: pass"

def test_computes():
    begun = time.process_time()
    while time.process_time() - begun < 0.2:
        pass

def test_starts_what_computes():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_waits():
    time.sleep(0.2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, full(2)])
def test_what_computes_is_listed_and_what_waits_is_not(tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_few.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "cpu_times", "-n", str(processes), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(HACK)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "2 of 3 tests took more than 0.1 s of a core" in done.stdout
    assert {name for _, name in re.findall(r"^ +([\d.]+) test_few\.py::(\w+)$", done.stdout, re.MULTILINE)} == {
        "test_computes",
        "test_starts_what_computes",
    }
    assert all(float(taken) >= 0.15 for taken in re.findall(r"^ +([\d.]+) test_few", done.stdout, re.MULTILINE))
