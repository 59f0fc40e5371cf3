"""Units of Scavenged pools give way to other jobs' units that found no slice. Pure.

How many slices a job is to give back is worked out over all jobs (`operator.lending`); which units leave is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diloco_operator.api import conditions
from diloco_operator.api.job import Capacity, Pool, UnitState
from diloco_operator.fleet.kinds import Kind, kinds_for
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.matching import WantClass
from diloco_operator.reconcile.context import World
from diloco_operator.reconcile.observe.unit_status import UnitRecord

_GOES_FIRST = (UnitState.PENDING, UnitState.BACKING_OFF, UnitState.STARTING, UnitState.JOINING, UnitState.TRAINING)
_MESSAGE = "its pool is Scavenged, and another job has work for the slice"


def claimed(world: World, pool: Pool) -> bool:
    """Whether no unit of this pool may start now: others want what it would take."""
    shape = world.shapes[pool.name].one
    return pool.capacity is Capacity.SCAVENGED and any(want.shape.one == shape for want in world.snapshot.claims)


def give_way(world: World, records: Mapping[str, UnitRecord]) -> dict[str, UnitRecord]:
    """The units after as many of them as are claimed drain: whoever contributes least first, then the last of the pool."""
    found = dict(records)
    if not any(world.snapshot.claims.values()):
        return found
    before = dict(_scavengers(world, world.before))
    for want, wanted in world.snapshot.claims.items():
        mine = {name: parts for name, parts in _scavengers(world, found) if all(fits(want, part) for part in parts)}
        left = wanted - sum(len(parts) for name, parts in mine.items() if found[name].state is UnitState.DRAINING)
        # Who has left since the claim was worked out has met it, although nobody knows yet.
        left -= sum(len(parts) for name, parts in before.items() if name not in mine and all(fits(want, part) for part in parts))
        able = [found[name] for name in mine if found[name].state in _GOES_FIRST]
        for record in sorted(able, key=lambda r: (_GOES_FIRST.index(r.state), r.pool, -r.number)):
            if left <= 0:
                break
            left -= len(mine[record.name])
            gone = record._replace(reason=conditions.UNIT_GAVE_WAY, message=_MESSAGE, since=world.now)
            found[record.name] = gone._replace(state=UnitState.DRAINING) if record.running else gone._replace(slice="")
    return found


def fits(want: WantClass, part: Slice) -> bool:
    """Whether a unit of this want could run on the slice, or on it and others."""
    kind = Kind(part.accelerator, part.topology, part.chips_per_host)
    return bool(kinds_for(want.shape, [kind])) and want.fits(part)


def lends(world: World, records: Mapping[str, UnitRecord]) -> tuple[Slice, ...]:
    """Slices that Scavenged pools are on."""
    return tuple(part for _, parts in _scavengers(world, records) for part in parts)


def _scavengers(world: World, records: Mapping[str, UnitRecord]) -> Iterator[tuple[str, tuple[Slice, ...]]]:
    """Units of Scavenged pools that have slices, and these."""
    for record in records.values():
        pool = world.pools.get(record.pool)
        if pool is not None and pool.capacity is Capacity.SCAVENGED and record.slice:
            yield record.name, world.snapshot.fleet.resolve(world.shapes[pool.name], record.slice) or ()
