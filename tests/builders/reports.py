"""What a syncer reports."""

from __future__ import annotations

from typing import Any

from diloco_operator.report import Report, UnitPhase, UnitReport


def a_unit_report(unit: str, attempt: int = 1, phase: UnitPhase = UnitPhase.CONTRIBUTING, **fields: Any) -> UnitReport:
    figures: dict[str, Any] = (
        {"steps": 40, "tokens": 4000, "tokens_per_second": 100.0, "weight": 0.5} if phase is UnitPhase.CONTRIBUTING else {}
    )
    figures["seconds_since_alive"] = fields.get("seconds_since_heard", 0.0)  # a process of which nothing else is heard either
    return UnitReport(unit, attempt, phase, **{**figures, **fields})


def a_report(*units: UnitReport, at: float, **fields: Any) -> Report:
    figures: dict[str, Any] = {
        "t": 10,
        "steps": 100,
        "tokens": 8000,
        "tokens_per_second": 200.0,
        "loss": 2.5,
        "step_seconds": 1.0,
        "seeded": True,
    }
    return Report(received_at=at, units={each.unit: each for each in units}, **{**figures, **fields})
