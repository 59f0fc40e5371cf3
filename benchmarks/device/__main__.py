"""`hack/device/run.sh [--device cpu|cuda] [--minutes 9] [--out DIR] [--strict] [PART...]`: what a machine with a GPU shows.

One JSON line for each result. A part that fails or takes too long stops no other; the line of its figure "part" says how it ended.
"""

from __future__ import annotations

import argparse
import math
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.device.part import PACK
from benchmarks.device.runner import Machine, Part, Runner
from benchmarks.figure import measured_commit

LIMITS = {"smoke": 75.0, "adapters": 90.0, "step-tax-gpu": 150.0, "syncer-cores": 60.0, "learning": math.inf}
"""Seconds of each part on a machine with a GPU, in the order in which they run."""
SLOWER = 8.0
"""On CPUs the limits are this many times longer. There they only end what hangs, since the machine may be busy."""


def the_part(name: str, device: str) -> Part:
    limit = LIMITS[name] if device == "cuda" else LIMITS[name] * SLOWER
    return Part(name, limit, [sys.executable, "-m", f"benchmarks.device.{name.replace('-', '_')}"])


def machine_of(device: str) -> Machine:
    """The fields for each line. Imports no framework: each part has the device for itself."""
    return Machine(_processor() if device == "cpu" else _card(), _version("torch"), _version("jax"), _commit())


def _card() -> str:
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown GPU"
    return answer.stdout.strip().splitlines()[0]


def _processor() -> str:
    named = (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(named, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    """The measured commit. If the files came without git, the commit that the pack was made from."""
    commit, packed = measured_commit(), PACK / "commit"
    return packed.read_text().strip() if commit == "unknown" and packed.exists() else commit


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/device/run.sh", description="Show what a GPU does with this project, as JSON lines.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(LIMITS)}; default: all, in this order")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu runs all of the code, in a small size")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole run")
    parser.add_argument("--out", type=Path, default=PACK / "out", help="folder for the results and the end of each log")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a part did not end well, after all have run")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.parts if name not in LIMITS]:
        parser.error(f"no part is named {', '.join(unknown)}; choose from {', '.join(LIMITS)}")
    chosen = [the_part(name, given.device) for name in LIMITS if not given.parts or name in given.parts]
    failed = Runner(given.device, machine_of(given.device), given.out.absolute(), 60 * given.minutes).run(chosen)
    if failed:
        sys.stderr.write(f"did not end well: {', '.join(failed)}; their logs are in {given.out}\n")
    return int(given.strict and bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
