"""`diloco submit --local` as a person runs it: a script and two pools, and no YAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders.local_jobs import PROGRAM, samples_drawn

pytestmark = pytest.mark.timeout(1200)

DILOCO = Path(sys.executable).parent / "diloco"


def test_a_script_trains_on_simulated_nodes_of_the_kinds_that_it_names(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    command = [str(DILOCO), "submit", str(PROGRAM), "--local", "--pool", "v5p=1", "--pool", "h100=2", "--steps", "40"]
    command += ["--sync-interval", "8", "--fragments", "8", "--env", f"QUADRATIC_TRACE={trace}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 of 40 steps" in done.stdout
    assert samples_drawn(trace), "its process took steps"
    assert {path.name for path in (tmp_path / ".diloco/logs/default").iterdir()} >= {
        "quadratic-learner-syncer",
        "quadratic-learner-v5p-0-a1-0",
        "quadratic-learner-h100-0-a1-0",
        "quadratic-learner-h100-1-a1-0",
    }
    assert "Complete=True" in done.stdout
