"""How fast a unit of each pool would be: as it was measured, else estimated from other hardware, else relative by the peak of the
catalogue. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from diloco_operator.accelerators import UnitShape
from diloco_operator.api.job import load
from diloco_operator.api.spec import Pool
from diloco_operator.api.status import Status, UnitState, UnitStatus
from diloco_operator.kube.client import Obj
from diloco_operator.report import UnitPhase, UnitReport

from diloco_local.preview.reports import Known


class Basis(enum.StrEnum):
    """What a speed stands on."""

    MEASURED = "measured"
    """Units of this job run on this hardware, or did a moment ago."""
    ESTIMATED = "estimated"
    """Units of this job run on other hardware: with the same share of the peak here."""
    PEAK = "peak"
    """Nothing is measured: only `relative` is known."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one unit."""

    basis: Basis
    tokens_per_second: float | None
    """None: not known."""
    relative: float | None
    """Peak of the unit, that of the job's fastest pool being 1; None: the catalogue has no peak of the kind, and there are other pools."""


type Measured = Mapping[UnitShape, float]
"""Tokens/s of a unit of this shape, see `measured_speeds`."""


def speeds_of(job: Obj, measured: Measured) -> dict[str, Speed]:
    """Return the speeds by pool."""
    shapes = {pool.name: shape for pool in load(job).spec.pools if (shape := _shape(pool)) is not None}
    fastest = max((shape.peak_tflops for shape in shapes.values()), default=0.0)
    used = [measured[shape] / shape.peak_tflops for shape in dict.fromkeys(shapes.values()) if shape in measured and shape.peak_tflops]
    found = {}
    for name, shape in shapes.items():
        peak = shape.peak_tflops
        relative = peak / fastest if peak else 1.0 if len(shapes) == 1 else None
        if shape in measured:
            found[name] = Speed(Basis.MEASURED, measured[shape], relative)
        elif used and peak:
            found[name] = Speed(Basis.ESTIMATED, fmean(used) * peak, relative)
        else:
            found[name] = Speed(Basis.PEAK, None, relative)
    return found


def measured_speeds(job: Obj) -> Measured:
    """Return the speeds as the job's status has them: the record of each pool, or else the mean of its units that train. Of several pools
    of one shape the first counts. Raises `InvalidJob`."""
    status = Status.model_validate(job.get("status") or {})
    recorded = {pool.name: pool.tokens_per_second for pool in status.pools if pool.tokens_per_second}
    found: dict[UnitShape, float] = {}
    for pool in load(job).spec.pools:
        now = [unit.tokens_per_second for unit in status.units if unit.pool == pool.name and _trains(unit)]
        speed = recorded.get(pool.name) or (fmean(now) if now else 0.0)
        shape = _shape(pool)
        if shape is not None and speed:
            found.setdefault(shape, speed)
    return found


def _trains(unit: UnitStatus) -> bool:
    return unit.state is UnitState.TRAINING and unit.tokens_per_second > 0


def _shape(pool: Pool) -> UnitShape | None:
    """Return the shape of the pool's units; None: of a kind that is in the operator's catalogue file alone."""
    try:
        return pool.shape
    except ValueError:
        return None


def shares_of(speeds: Sequence[Speed]) -> list[float | None]:
    """Return the share of each of these units in the tokens of the job; None where it is not known."""
    values = [speed.tokens_per_second for speed in speeds]
    if any(value is None for value in values):
        values = [speed.relative for speed in speeds]
    known = [value for value in values if value is not None]
    total = sum(known)
    return [value / total for value in known] if total and len(known) == len(values) else [None] * len(speeds)


def known_of(job: Obj) -> Known:
    """Return what the syncer of a job that runs already would go on to report."""
    status = Status.model_validate(job.get("status") or {})
    units = {
        unit.name: UnitReport(
            unit.name, unit.attempt, UnitPhase.CONTRIBUTING, steps=unit.steps, tokens=unit.tokens, weight=unit.weight,
            tokens_per_second=unit.tokens_per_second,
        )
        for unit in status.units
    }  # fmt: skip
    return Known(status.progress.step, status.progress.steps, status.progress.tokens, units)
