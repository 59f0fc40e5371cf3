"""How fast a unit of each pool would be: as measured, else estimated from other hardware, else relative to other pools by the catalogue's
peak. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from diloco_operator.accelerators import UnitShape
from diloco_operator.allotment.values import PoolThroughput, estimate
from diloco_operator.api.job import load
from diloco_operator.api.spec import Pool
from diloco_operator.api.status import Status, UnitState, UnitStatus
from diloco_operator.kube.client import Obj
from diloco_operator.report import UnitPhase, UnitReport

from diloco_local.preview.reports import Known


class Basis(enum.StrEnum):
    """What a speed is derived from."""

    MEASURED = "measured"
    """Units of this job run on this hardware, or did a moment ago."""
    ESTIMATED = "estimated"
    """Units of this job run on other hardware, of the same kind or else of others. The estimate takes the same share of the peak."""
    PEAK = "peak"
    """Nothing is measured. Only `relative` is known."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one unit."""

    basis: Basis
    tokens_per_second: float | None
    """None if it is not known."""
    relative: float | None
    """The unit's peak over that of the job's fastest pool. None if the catalogue has no peak for the kind and there are other pools."""


type Measured = Mapping[UnitShape, float]
"""Shape of a unit -> its tokens/s, see `measured_speeds`."""


def speeds_of(job: Obj, measured: Measured) -> dict[str, Speed]:
    """Pool -> the speed of one of its units. Pools of a kind that the catalogue lacks are missing."""
    shapes = {pool.name: shape for pool in load(job).spec.pools if (shape := _shape(pool)) is not None}
    fastest = max((shape.peak_tflops for shape in shapes.values()), default=0.0)
    units = {shape: PoolThroughput(shape.accelerator, shape.peak_tflops, measured.get(shape)) for shape in shapes.values()}
    speeds = {}
    for name, shape in shapes.items():
        peak = shape.peak_tflops
        relative: float | None = None
        if peak:
            relative = peak / fastest
        elif len(shapes) == 1:
            relative = 1.0
        if shape in measured:
            speeds[name] = Speed(Basis.MEASURED, measured[shape], relative)
        elif (expected := estimate(units[shape], units.values())) is not None:
            speeds[name] = Speed(Basis.ESTIMATED, expected, relative)
        else:
            speeds[name] = Speed(Basis.PEAK, None, relative)
    return speeds


def measured_speeds(job: Obj) -> Measured:
    """The speeds from the job's status: what it records for each pool, else the mean of the pool's units that train. If several pools have
    one shape, the first counts. Raises `InvalidJob`."""
    status = Status.model_validate(job.get("status") or {})
    recorded = {pool.name: pool.tokens_per_second for pool in status.pools if pool.tokens_per_second}
    speeds: dict[UnitShape, float] = {}
    for pool in load(job).spec.pools:
        unit_speeds = [unit.tokens_per_second for unit in status.units if unit.pool == pool.name and _trains(unit)]
        speed = recorded.get(pool.name) or (fmean(unit_speeds) if unit_speeds else 0.0)
        shape = _shape(pool)
        if shape is not None and speed:
            speeds.setdefault(shape, speed)
    return speeds


def _trains(unit: UnitStatus) -> bool:
    return unit.state is UnitState.TRAINING and unit.tokens_per_second > 0


def _shape(pool: Pool) -> UnitShape | None:
    """The shape of the pool's units. None if only the operator's own catalogue file has the kind."""
    try:
        return pool.shape
    except ValueError:
        return None


def shares_of(speeds: Sequence[Speed]) -> list[float | None]:
    """The share of each of these units in the job's tokens. All are None if one speed is not known."""
    values = [speed.tokens_per_second for speed in speeds]
    if any(value is None for value in values):
        values = [speed.relative for speed in speeds]
    known = [value for value in values if value is not None]
    total = sum(known)
    if not total or len(known) < len(values):
        return [None] * len(speeds)
    return [value / total for value in known]


def known_of(job: Obj) -> Known:
    """What the syncer of a running job would continue to report."""
    status = Status.model_validate(job.get("status") or {})
    units = {
        unit.name: UnitReport(
            unit.name, unit.attempt, UnitPhase.CONTRIBUTING, steps=unit.steps, tokens=unit.tokens, weight=unit.weight,
            tokens_per_second=unit.tokens_per_second,
        )
        for unit in status.units
    }  # fmt: skip
    return Known(status.progress.step, status.progress.steps, status.progress.tokens, units)
