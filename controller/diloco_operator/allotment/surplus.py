"""What another job could lose: for the message of a pool that waits for its slices. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diloco_operator.allotment.request import AllotmentRequest, Allotted
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import Holder


def with_surplus(
    holder: Holder, request: AllotmentRequest, allotted: Allotted, locate: Callable[[str], Location | None], *, resource: str = ""
) -> Holder:
    """Add to a holder the slices that its units leave, and those that it could lose without falling below a minimum. `request`, `allotted`:
    of the holder. `locate`: where the slice with a node is; None: it is none of those that `holder` counts. `resource`: it counts these
    devices; "": slices."""
    staying = {location for node in request.occupied if (location := locate(node)) is not None}
    spare: list[tuple[int, int, bool]] = []
    counted = accelerators = 0
    for pool in request.pools:
        units = [unit for unit in pool.units if unit.name not in allotted.revoked]
        here = 0
        for unit in units:
            locations = {location for node in unit.nodes if (location := locate(node)) is not None}
            here += bool(locations)
            staying |= locations
        shape, most = pool.requirements.shape, len(units) + pool.lasting
        slots = shape.hosts * shape.chips_per_host if resource else shape.slots
        accelerators += here * slots
        counted += 0 if pool.scavenged else most
        spare.append((slots, here if pool.scavenged else min(here, max(0, most - pool.min)), pool.scavenged))
    left, surplus = max(0, counted - request.min), 0
    for slots, units_here, scavenged in reversed(spare):
        count = units_here if scavenged else min(units_here, left)
        left -= 0 if scavenged else count
        surplus += count * slots
    lasting = sum(dict(part.devices).get(resource, 0) for (node, _), part in request.shared.items() if locate(node) is not None)
    leaving = max(0, holder.slices - (accelerators + lasting if resource else len(staying)))
    return replace(holder, leaving=leaving, surplus=surplus, priority=request.priority)
