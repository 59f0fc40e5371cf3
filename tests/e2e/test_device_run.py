"""hack/device/run.sh, which shows what a GPU does: here without one. `make bench-smoke` runs all of its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

PARTS_THAT_FAIL_AND_HANG = r"""
import math, sys
from pathlib import Path
from benchmarks.device.runner import RESERVE_SECONDS, Machine, Part, Runner

def part(name, seconds, script):
    return Part(name, seconds, ["sh", "-c", 'say() { echo "{\\"figure\\": \\"$1\\", \\"value\\": $2}"; }; ' + script])

parts = [
    part("fails", 60, "say before 1; exit 3"),
    part("talks", 60, "echo no JSON; say after 1"),
    # Its child has a session of its own, so it is in no group that could be killed with the part.
    part("hangs", math.inf, "setsid sleep 1000 & say child $!; sleep 1000"),
    part("late", math.inf, "say never 1"),
]
machine = Machine("a card", "2.0", "0.1", "abc")
print(Runner("cpu", machine, Path(sys.argv[1]), RESERVE_SECONDS + 20).run(parts), file=sys.stderr)
"""


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_parts_that_fail_or_hang_stop_no_other_part_and_leave_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARTS_THAT_FAIL_AND_HANG, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = lines_of(done.stdout)
    found = [(line["part"], line["figure"], line.get("ended")) for line in lines]
    assert found == [
        ("fails", "before", None),
        ("fails", "part", "failed"),
        ("talks", "after", None),
        ("talks", "part", "well"),
        ("hangs", "child", None),
        ("hangs", "part", "limit"),
        ("late", "part", "no time"),  # less than LEAST_SECONDS are left
    ]
    assert done.stderr.endswith("['fails', 'hangs', 'late']\n")
    assert {(line["device"], line["torch"], line["jax"], line["commit"]) for line in lines} == {("a card", "2.0", "0.1", "abc")}
    assert lines_of((tmp_path / "results.jsonl").read_text()) == lines
    (child,) = [line["value"] for line in lines if line["figure"] == "child"]
    assert not Path(f"/proc/{child}").exists()


def test_the_cheapest_part_runs_without_a_gpu(tmp_path: Path) -> None:
    command = [str(ROOT / "hack/device/run.sh"), "--device", "cpu", "--strict", "--out", str(tmp_path), "syncer-cores"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    logs = "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    lines = lines_of(done.stdout)
    assert {line["figure"] for line in lines} == {"engine", "merges", "loop-lag", "joins", "part"}
    assert all(line["part"] == "syncer-cores" and line["value"] > 0 and line["unit"] for line in lines)
    assert all(line["device"] and line["torch"] and line["jax"] and line["commit"] for line in lines)
