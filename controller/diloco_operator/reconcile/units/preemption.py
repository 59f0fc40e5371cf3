"""Units of Scavenged pools leave for units of other jobs that found no slice. Pure.

`operator.preemption` decides over all jobs how many slices a job gives back; this module decides which units leave.

See docs/decisions/0032-capacity-queue-and-preemption.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diloco_operator.api.job import Capacity, Pool, UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

_PREEMPTION_ORDER = (UnitState.PENDING, UnitState.BACKING_OFF, UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING)
_MESSAGE = "its pool is Scavenged, and another job has work for the slice"


def is_reclaimed(context: ReconcileContext, pool: Pool) -> bool:
    """Whether no unit of this pool may start now, because other jobs need its slices."""
    shape = context.shapes[pool.name].one
    return pool.capacity is Capacity.SCAVENGED and any(requirements.shape.one == shape for requirements in context.observed.reclaims)


def preempt(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """The units, of which as many drain as the demand of other jobs needs: those that contribute least first, then the last of the pool."""
    found = dict(records)
    if not any(context.observed.reclaims.values()):
        return found
    before = dict(_scavenged_units(context, context.before))
    for requirements, wanted in context.observed.reclaims.items():
        mine = {name: slices for name, slices in _scavenged_units(context, found) if all(fits(requirements, slice_) for slice_ in slices)}
        left = wanted - sum(len(slices) for name, slices in mine.items() if found[name].state is UnitState.DRAINING)
        # Units that have left since the demand was computed have met part of it already.
        left -= sum(
            len(slices) for name, slices in before.items() if name not in mine and all(fits(requirements, slice_) for slice_ in slices)
        )
        able = [found[name] for name in mine if found[name].state in _PREEMPTION_ORDER]
        for record in sorted(able, key=lambda r: (_PREEMPTION_ORDER.index(r.state), r.pool, -r.number)):
            if left <= 0:
                break
            left -= len(mine[record.name])
            gone = record._replace(reason=UnitReason.GAVE_WAY, message=_MESSAGE, since=context.now)
            found[record.name] = gone._replace(state=UnitState.DRAINING) if record.running else gone._replace(slice="")
    return found


def fits(requirements: SliceRequirements, slice_: Slice) -> bool:
    """Whether a unit with these requirements could run on the slice, or on it and others."""
    return bool(kinds_for(requirements.shape, [slice_.kind])) and requirements.fits(slice_)


def reclaimable(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> tuple[Slice, ...]:
    """Slices that Scavenged pools are on."""
    return tuple(slice_ for _, slices in _scavenged_units(context, records) for slice_ in slices)


def _scavenged_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Iterator[tuple[str, tuple[Slice, ...]]]:
    """Units of Scavenged pools that have slices, and these."""
    for record in records.values():
        pool = context.pools.get(record.pool)
        if pool is not None and pool.capacity is Capacity.SCAVENGED and record.slice:
            yield record.name, context.observed.fleet.resolve(context.shapes[pool.name], record.slice) or ()
