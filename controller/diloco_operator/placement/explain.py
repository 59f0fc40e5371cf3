"""Why a pool has not more units, for people: every slice that was passed over gets its reason."""

from __future__ import annotations

import itertools

from diloco_operator.api import conditions
from diloco_operator.fleet.slices import Fleet
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.placement.request import JobRequest, PoolOutcome, PoolRequest

_LOOK_AT = 1000
"""Free slices that are looked at to count those that do not fit; an explanation must not cost more than the placement."""


def pool_outcome(
    job: JobRequest, pool: PoolRequest, fleet: Fleet, requirements: SliceRequirements, placed: int, *, job_room: int, own: int
) -> PoolOutcome:
    """`own`: slices of this shape that the job itself has."""
    if placed + pool.reserved >= pool.max:
        text = f"pool {pool.name} has all of the {_units(pool.max)} that it may have"
        return PoolOutcome(job.key, pool.name, placed, conditions.POOL_FULL, text)
    if job_room <= 0:
        text = f"the job has the {_units(job.max)} of learners.max; pool {pool.name} has {placed}"
        return PoolOutcome(job.key, pool.name, placed, conditions.POOL_JOB_AT_MAXIMUM, text)
    missing = len(pool.units) - placed
    if missing <= 0:
        return PoolOutcome(job.key, pool.name, placed, "", "")
    wanted = min(missing, pool.max - pool.reserved - placed, job_room)
    start = f"pool {pool.name} wants {wanted} more {'slice' if wanted == 1 else 'slices'} of {pool.shape}"
    counts = fleet.counts(pool.shape)
    if counts.total == 0:
        text = f"{start}; the fleet has no such nodes"
        return PoolOutcome(job.key, pool.name, placed, conditions.POOL_NO_MATCHING_NODES, text)
    parts: list[str] = []
    if own:
        parts.append(f"{own} of this job")
    if counts.reserved > own:
        parts.append(f"{counts.reserved - own} held by other jobs or by pods that are still ending")
    if counts.unusable_count:
        more = counts.unusable_count - len(counts.unusable)
        parts.append(f"{counts.unusable_count} unusable: " + ", ".join(counts.unusable) + (f" and {more} more" if more else ""))
    unfit = sum(not requirements.fits(slice_) for slice_ in itertools.islice(fleet.free(pool.shape), _LOOK_AT))
    if unfit:
        parts.append(f"{unfit} free but not fitting: {_demands(pool)}")
    return PoolOutcome(job.key, pool.name, placed, conditions.POOL_NO_FREE_SLICE, f"{start}; the fleet has {counts.total}" + _list(parts))


def unplaced_reason(outcome: PoolOutcome) -> str:
    """The reason of a unit without a slice, from that of its pool."""
    if outcome.reason in (conditions.POOL_FULL, conditions.POOL_JOB_AT_MAXIMUM):
        return conditions.UNIT_SCALED_DOWN
    return conditions.UNIT_NO_CAPACITY


def _demands(pool: PoolRequest) -> str:
    found = [f"capacity {pool.capacity}"] if pool.capacity else []
    found += [f"label {key}={value}" for key, value in sorted(pool.node_selector.items())]
    found += ["the node affinity of its template"] if pool.affinity is not None else []
    return "the pool asks for " + (", ".join(found) if found else "no taints that its template does not tolerate")


def _units(count: int) -> str:
    return f"{count} unit" if count == 1 else f"{count} units"


def _list(parts: list[str]) -> str:
    return (": " + "; ".join(parts)) if parts else ""
