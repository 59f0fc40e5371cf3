"""What every benchmark measures: figures, each printed as one JSON line with its limit and the commit that was measured."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks import ROOT


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and its limit."""

    name: str
    value: float
    unit: str
    limit: float
    within: bool
    """Whether the value keeps the limit."""
    runs: int
    details: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the line."""

    @property
    def ok(self) -> bool:
        """Whether the value is within the limit. A value that is not finite never is: nothing was measured."""
        return self.within and math.isfinite(self.value)

    def line(self, *, smoke: bool, commit: str) -> str:
        """The JSON line. A smoke run judges nothing: its line has `"smoke": true` in place of `ok`."""
        judgement = {"smoke": True} if smoke else {"ok": self.ok}
        fields = {
            "figure": self.name,
            "value": _number(self.value),
            "unit": self.unit,
            "limit": self.limit,
            **judgement,
            "runs": self.runs,
            "commit": commit,
            **self.details,
        }
        return json.dumps({name: _number(value) for name, value in fields.items()}, allow_nan=False)


def _number(value: object) -> object:
    """The value for JSON, rounded. JSON has no NaN and no infinity, so these become None."""
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None


def measured_commit() -> str:
    """The commit, with `-dirty` if tracked files differ from it. "unknown" outside a git checkout."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value such that at least the share (0..1] of all values is not above it. NaN without
    values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio_figure(name: str, ratios: list[float], limit: float) -> Figure:
    """The median of the ratios of several runs, which must be at most `limit`."""
    value = median(ratios)
    return Figure(name, value, "ratio", limit, value <= limit, len(ratios), {"ratios": rounded(ratios, 4)})


def rounded(values: list[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]
