"""What every benchmark prints: one JSON line with the figure, its limit and where it was measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any


def emit(
    bench: str,
    value: float,
    unit: str,
    limit: float,
    ok: bool,
    runs: int,
    **extra: Any,
) -> bool:
    """Print the line `{"bench", "value", "unit", "limit", "ok", "runs", "commit", ...extra}` and hand `ok` back.

    A value that is not finite is never ok: it means that nothing was measured.
    """
    ok = ok and math.isfinite(value)
    line = {"bench": bench, "value": round(value, 6), "unit": unit, "limit": limit, "ok": ok, "runs": runs, "commit": commit(), **extra}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return ok


def commit() -> str:
    """The commit that was measured, with `-dirty` when tracked files differ from it; "unknown" outside a git checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value such that at least `share` (0..1] of all are at most it."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
