"""What each part of `hack/device/run.sh` gets, and how it prints its results."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import ROOT

PACK: Final = ROOT / ".device"
"""The folder that hack/device/pack.sh makes, and in which runs leave files."""


@dataclass(frozen=True, slots=True)
class PartOptions:
    """Arguments of a part."""

    device: str
    """cuda, or cpu. On cpu everything is small, and the figures mean nothing."""
    seconds: float
    """After this time the part is killed with all that it has started."""
    out: Path
    """Folder for files that stay."""
    began: float = field(default_factory=time.monotonic)

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.monotonic() - self.began)


def print_result(figure: str, value: float, unit: str, **details: object) -> None:
    """Print a result as one JSON line. The runner adds part, machine, versions and commit."""
    number = value if math.isfinite(value) else None
    sys.stdout.write(json.dumps({"figure": figure, "value": number, "unit": unit, **details}) + "\n")
    sys.stdout.flush()


def log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run(part: Callable[[PartOptions], None], arguments: list[str] | None = None) -> None:
    """Read the command line, and run a part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    part(PartOptions(given.device, given.seconds, given.out))
