"""The throughput of one unit in each pool of a job: the record in `status.pools[]`, updated by the syncer's report. Pure.

The record is an average over about ten minutes of training, of all units and attempts. It stays while the pool has no unit. A report counts
for the time since status was written last, so it does not matter how often a reconcile reads it, or whether the operator is a new one.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.allotment.flow.problem import MEAN
from diloco_operator.allotment.values import PoolThroughput, exact_values, settled_value
from diloco_operator.api.spec import Pool
from diloco_operator.api.status import MOST_TOKENS_PER_SECOND
from diloco_operator.fleet.slices import Shape
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.report import Report, UnitPhase, UnitReport

AVERAGED = 600.0
"""Seconds of training that the average remembers."""
COUNTS_AFTER = 120.0
"""Seconds of training after which the average replaces the prior: a unit that has just started compiles, loads and fills its caches."""
_LONGEST = 60.0
"""Seconds for which one report counts at most."""
POOL_FIGURES = ("tokensPerSecond", "measuredSeconds")
"""Fields of status.pools[] that change with every report."""


class PoolRecord(NamedTuple):
    """Fields as in `api.status.PoolStatus`."""

    tokens_per_second: float = 0.0
    """Tokens per second of one unit while it trains, 0 if never measured."""
    measured_seconds: float = 0.0
    """At most `AVERAGED`."""
    value: int = MEAN
    """In thousandths."""

    @property
    def measured(self) -> float | None:
        """Tokens/s; None before `COUNTS_AFTER` seconds were measured."""
        return self.tokens_per_second if self.measured_seconds >= COUNTS_AFTER and self.tokens_per_second > 0 else None

    @property
    def averaged(self) -> bool:
        """The average covers its full time."""
        return self.measured_seconds >= AVERAGED


def read_pools(status: Mapping[str, Any]) -> dict[str, PoolRecord]:
    """Pool -> its record in status."""
    return {
        raw["name"]: PoolRecord(
            min(raw.get("tokensPerSecond") or 0.0, MOST_TOKENS_PER_SECOND),
            min(raw.get("measuredSeconds") or 0.0, AVERAGED),
            round(MEAN * raw["value"]) if raw.get("value") else MEAN,
        )
        for raw in status.get("pools") or ()
    }


def write_pool(record: PoolRecord) -> dict[str, Any]:
    """The record as fields of `status.pools[]`. Figures that were never measured are absent, and so is the value of an average pool."""
    entry: dict[str, Any] = {}
    if record.measured_seconds:
        entry |= {"tokensPerSecond": record.tokens_per_second, "measuredSeconds": record.measured_seconds}
    if record.value != MEAN:
        entry["value"] = record.value / MEAN
    return entry


def measure_pools(
    pools: Iterable[Pool],
    shapes: Mapping[str, Shape],
    units: Mapping[str, UnitStatusRecord],
    report: Report | None,
    status: Mapping[str, Any],
    now: float,
) -> dict[str, PoolRecord]:
    """Update the records of these pools. `report`: the syncer's, None if it is old."""
    pools = tuple(pools)
    before = read_pools(status)
    written = (status.get("progress") or {}).get("updatedAt")
    elapsed = min(_LONGEST, max(0.0, now - parse_timestamp(written))) if written else 0.0
    rates = _rates(units, report) if report is not None and elapsed else {}
    records = {pool.name: _averaged(before.get(pool.name, PoolRecord()), rates.get(pool.name, ()), elapsed) for pool in pools}
    throughputs = {pool.name: _throughput(shapes[pool.name], records[pool.name], accepted=pool.learners.max > 0) for pool in pools}
    exact = exact_values(throughputs)
    return {name: record._replace(value=settled_value(exact[name], record.value)) for name, record in records.items()}


def _throughput(shape: Shape, record: PoolRecord, *, accepted: bool) -> PoolThroughput:
    peak = shape.hosts * shape.chips_per_host * CATALOGUE[shape.accelerator].peak_tflops
    return PoolThroughput(shape.accelerator, peak, record.measured, accepted)


def _rates(units: Mapping[str, UnitStatusRecord], report: Report) -> dict[str, list[float]]:
    """Pool -> tokens/s of each unit that trains."""
    rates: dict[str, list[float]] = {}
    for name, record in units.items():
        reported = report.units.get(name)
        if reported is not None and reported.attempt == record.attempt and record.running and _trains(reported):
            rates.setdefault(record.pool, []).append(min(reported.tokens_per_second, MOST_TOKENS_PER_SECOND))
    return rates


def _trains(unit: UnitReport) -> bool:
    """Whether the unit trains. While it pauses, or rests because others are missing, its rate says nothing about its hardware."""
    return unit.phase is UnitPhase.CONTRIBUTING and unit.tokens_per_second > 0 and not unit.pause and not unit.resting_seconds


def _averaged(record: PoolRecord, rates: Iterable[float], elapsed: float) -> PoolRecord:
    """The mean of all that was measured; after `AVERAGED` seconds a moving average. The median of the units counts, because one slow host
    says nothing about the kind of hardware."""
    rates = list(rates)
    if not rates:
        return record
    seconds = min(AVERAGED, record.measured_seconds + elapsed)
    change = statistics.median(rates) - record.tokens_per_second
    average = record.tokens_per_second + change * min(1.0, elapsed / seconds)
    return record._replace(tokens_per_second=_rounded(average), measured_seconds=round(seconds, 3))


def _rounded(figure: float) -> float:
    """Round to six digits. Fewer would swallow the small steps of a slow average."""
    return round(figure, 5 - math.floor(math.log10(figure))) if figure > 0 else 0.0
