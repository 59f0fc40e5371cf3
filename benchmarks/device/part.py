"""What each part of `hack/device/run.sh` gets, and how it says what it found."""

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
"""What hack/device/pack.sh makes, and what runs leave there."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a part is told."""

    device: str
    """cuda, or cpu: then everything is small, and its figures mean nothing."""
    seconds: float
    """When they are over, it is killed with all that it has started."""
    out: Path
    """Folder for files that stay."""
    began: float = field(default_factory=time.monotonic)

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.began)


def say(figure: str, value: float, unit: str, **details: object) -> None:
    """Print a result as one JSON line. The runner adds part, machine, versions and commit."""
    number = value if math.isfinite(value) else None
    sys.stdout.write(json.dumps({"figure": figure, "value": number, "unit": unit, **details}) + "\n")
    sys.stdout.flush()


def log(text: str) -> None:
    """Write a line to the part's log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run(part: Callable[[Given], None], arguments: list[str] | None = None) -> None:
    """Run a part as the program that it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    part(Given(given.device, given.seconds, given.out))
