"""Spares: free slices that a job keeps beside its units, so that a unit that loses its slice need not wait for another. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from diloco_operator.placement import JobRequest
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


def with_spares(context: ReconcileContext, request: JobRequest) -> JobRequest:
    """Add spares to pools in which no unit waits for a slice."""
    if request.places_chosen or context.finishing:
        return request
    pools = []
    for pool in request.pools:
        waiting = min(pool.wanted, pool.max - len(pool.units) - pool.draining_or_completed, request.room)
        pools.append(replace(pool, spares=context.pools[pool.name].spares) if waiting <= 0 and pool.units else pool)
    return replace(request, pools=tuple(pools))


def kept_spares(context: ReconcileContext, request: JobRequest | None, records: Iterable[UnitStatusRecord]) -> Mapping[str, int]:
    """Return pool -> how many spares it has. Pools without spares are left out."""
    wants = {pool.name: pool.spares for pool in request.pools if pool.spares} if request is not None else {}
    if not wants:
        return {}
    fleet = context.observed.fleet
    used: set[str] = set()
    for record in records:
        shape = context.shapes.get(record.pool)
        slices = fleet.resolve(shape, record.slice) or () if shape is not None and record.slice else ()
        used.update(slice_.key for slice_ in slices)
    spares: dict[str, int] = {}
    for pool, wanted in wants.items():
        shape = context.shapes[pool]
        left = sum(slice_.key not in used for slice_ in fleet.free(shape, pool)) // shape.slots
        if kept := min(wanted, left):
            spares[pool] = kept
    return spares
