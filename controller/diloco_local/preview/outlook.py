"""What jobs have and lack, from their status: which unit runs where and why there, and which minimum has no hardware. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.consequences import Follows
from diloco_operator.api.job import load
from diloco_operator.api.names import MANAGER
from diloco_operator.api.reasons import follows, lack_of
from diloco_operator.api.spec import Spec
from diloco_operator.api.status import ConditionStatus, PoolStatus, Status, UnitState, UnitStatus
from diloco_operator.kube.client import Obj

from diloco_local.preview.speeds import Basis, Measured, Speed, shares_of, speeds_of

_RUNNING = frozenset({UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING})
type SparesByPool = Mapping[str, Sequence[str]]
"""Pool -> the names of the slices that are kept free for it, if they are known."""
_UNKNOWN = Speed(Basis.PEAK, None, None)


class Verdict(enum.StrEnum):
    """Whether a job has what it must have."""

    FITS = "Fits"
    """Each of its minimums has hardware, and the job trains."""
    WAITS = "Waits"
    """The job's minimum, or a pool's, lacks hardware."""
    STALLED = "DoesNotTrain"
    """Each minimum has hardware, but the job does not train. The message says why."""
    IDLE = "Idle"
    """The job asks for nothing: it is suspended, over, or another controller's."""
    REFUSED = "Refused"
    """The operator does not accept the job."""


@dataclass(frozen=True, slots=True)
class PassedPool:
    """A pool that the job prefers to the one that a unit got."""

    pool: str
    reason: str
    """Why this pool has no more units, as in status.pools[].reason."""


@dataclass(frozen=True, slots=True)
class UnitOutlook:
    """A unit that has hardware."""

    name: str
    pool: str
    slice: str
    choice: int
    """The place of the unit's pool in the job's order of preference, from 1."""
    passed: tuple[PassedPool, ...]
    """The pools that come before the unit's pool in that order."""
    speed: Speed
    share: float | None
    """The unit's share of the job's tokens, 0 to 1. None if it is not known."""


@dataclass(frozen=True, slots=True)
class WaitingUnit:
    """A unit that the job asks for and that has no hardware."""

    name: str
    pool: str
    state: str
    reason: str
    message: str
    not_before: float | None
    """When the operator tries again, seconds since the epoch. None if it does so as soon as there is hardware."""


@dataclass(frozen=True, slots=True)
class SparesOutlook:
    """Slices that a pool keeps free beside its units."""

    asked: int = 0
    kept: int = 0
    slices: tuple[str, ...] = ()
    """The kept slices, named as in status.units[].slice. Not known for a cluster as it is now."""


@dataclass(frozen=True, slots=True)
class PoolOutlook:
    name: str
    hardware: str
    min: int
    max: int
    placed: int
    waits: bool
    """The pool would have more units if there were more hardware."""
    reason: str
    message: str
    remedies: tuple[str, ...]
    spares: SparesOutlook
    cluster: str = ""
    """The other cluster that it is in, "" for this one."""
    assigned: int = 0
    """Units that the job gives to a pool in another cluster. Whether they fit there is not known here."""


@dataclass(frozen=True, slots=True)
class JobOutlook:
    namespace: str
    name: str
    verdict: Verdict
    state: str
    reason: str
    message: str
    """Why the job is idle, refused or stalled. "" for the other verdicts."""
    placed: int
    min: int
    max: int
    short: tuple[str, ...]
    """Pools whose own minimum has no hardware."""
    tokens_per_second: float | None
    """Sum over all units that have hardware. None if one of their speeds is not known."""
    relative: float | None
    """Sum of these units' `Speed.relative`. None if one of them is not known."""
    units: tuple[UnitOutlook, ...]
    waiting: tuple[WaitingUnit, ...]
    pools: tuple[PoolOutlook, ...]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def outlook(job: Obj, measured: Measured, spares: SparesByPool) -> JobOutlook:
    """The outlook of a job. `measured` and `spares` are this job's. Raises `InvalidJob`."""
    spec, status = load(job).spec, Status.model_validate(job.get("status") or {})
    running = [unit for unit in status.units if unit.slice and unit.state in _RUNNING]
    pools = _pools(spec, status, running, spares)
    speeds = speeds_of(job, measured)
    units = _units(running, pools, speeds)
    waiting = [
        WaitingUnit(unit.name, unit.pool, unit.state.value, unit.reason, unit.message, unit.not_before)
        for unit in status.units
        if _waits(unit)
    ]
    short = tuple(pool.name for pool in pools if pool.placed < pool.min and not pool.cluster)
    elsewhere = sum(pool.assigned for pool in pools)
    verdict, message = _verdict(job, spec, status, len(units) + elsewhere, short)
    if verdict is Verdict.STALLED and elsewhere and len(units) < spec.training.quorum:
        verdict, message = Verdict.FITS, ""  # no program runs elsewhere in a preview, so the job trains with its own units alone
    return JobOutlook(
        namespace=job["metadata"].get("namespace", "default"),
        name=job["metadata"]["name"],
        verdict=verdict,
        state=status.state.value if status.state is not None else "",
        reason=status.reason,
        message=message,
        placed=len(units),
        min=spec.learners.min,
        max=spec.learners.max,
        short=short,
        tokens_per_second=_sum([unit.speed.tokens_per_second for unit in units]),
        relative=_sum([unit.speed.relative for unit in units]),
        units=units,
        waiting=tuple(waiting),
        pools=pools,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum. None if one value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _pools(spec: Spec, status: Status, running: Iterable[UnitStatus], spares: SparesByPool) -> tuple[PoolOutlook, ...]:
    reported = {pool.name: pool for pool in status.pools}
    names = [unit.pool for unit in running]
    outlooks = []
    for pool in spec.pools:
        pool_status = reported.get(pool.name, PoolStatus(name=pool.name))
        hardware = " ".join(part for part in (pool.accelerator, pool.topology or "") if part)
        outlooks.append(
            PoolOutlook(
                pool.name, hardware, pool.learners.min, pool.learners.max, names.count(pool.name), lack_of(pool_status.reason).of_slices,
                pool_status.reason, pool_status.message, pool_status.remedies or (),
                SparesOutlook(pool.spares, pool_status.spares or 0, tuple(spares.get(pool.name, ()))),
                pool.cluster, pool_status.assigned or 0,
            )
        )  # fmt: skip
    return tuple(outlooks)


def _units(running: Iterable[UnitStatus], pools: Sequence[PoolOutlook], speeds: Mapping[str, Speed]) -> tuple[UnitOutlook, ...]:
    order = {pool.name: index for index, pool in enumerate(pools)}
    chosen = [unit for unit in running if unit.pool in order]
    shares = shares_of([speeds.get(unit.pool, _UNKNOWN) for unit in chosen])
    return tuple(
        UnitOutlook(
            unit.name,
            unit.pool,
            unit.slice,
            order[unit.pool] + 1,
            tuple(PassedPool(pool.name, pool.reason) for pool in pools[: order[unit.pool]]),
            speeds.get(unit.pool, _UNKNOWN),
            share,
        )
        for unit, share in zip(chosen, shares, strict=True)
    )


def _waits(unit: UnitStatus) -> bool:
    runs = unit.slice and unit.state in _RUNNING
    return not runs and not follows(unit.reason, Follows.NOT_WANTED) and unit.state not in (UnitState.COMPLETED, UnitState.DRAINING)


def _verdict(job: Obj, spec: Spec, status: Status, placed: int, short: Sequence[str]) -> tuple[Verdict, str]:
    """The verdict and the message."""
    if spec.managed_by != MANAGER:
        return Verdict.IDLE, f"spec.managedBy is {spec.managed_by}: this operator leaves it alone"
    if any(each.type in TERMINAL and each.status is ConditionStatus.TRUE for each in status.conditions):
        return Verdict.IDLE, "it is over, and asks for no hardware"
    if spec.suspend:
        return Verdict.IDLE, "spec.suspend is set: it asks for no hardware"
    for condition in status.conditions:
        if condition.type == ConditionType.ACCEPTED and condition.status is ConditionStatus.FALSE:
            return Verdict.REFUSED, condition.message
    if placed < spec.learners.min or short:
        return Verdict.WAITS, ""
    if any(each.type == ConditionType.TRAINING and each.status is ConditionStatus.TRUE for each in status.conditions):
        return Verdict.FITS, ""
    return Verdict.STALLED, next((each.message for each in status.conditions if each.reason == status.reason), "")
