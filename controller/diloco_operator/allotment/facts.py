"""What follows from one request alone. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diloco_operator.allotment.request import AllotmentRequest, HeldUnit
from diloco_operator.fleet.slices import is_divisible
from diloco_operator.placement.requirements import SliceRequirements


def requirements_of(request: AllotmentRequest) -> list[SliceRequirements]:
    """List those of its pools, and those that they prefer."""
    return [each for pool in request.pools for each in (pool.requirements, pool.preferred) if each is not None]


def whole_nodes(request: AllotmentRequest) -> frozenset[str]:
    """Find the nodes that it has as a whole."""
    whole = (unit.nodes for pool in request.pools if not pool.requirements.shape.divides for unit in pool.units)
    return (request.occupied - {node for node, _ in request.shared}).union(*whole)


def places(request: AllotmentRequest | None) -> dict[str, tuple[str, ...]]:
    """Map each unit to its nodes."""
    return {unit.name: unit.nodes for pool in request.pools for unit in pool.units} if request is not None else {}


def most_units(request: AllotmentRequest) -> int:
    """Count the units of others that find room at most where those of this job may leave."""
    if not request.may_give:
        return 0
    shapes = ((pool.requirements.shape, len(pool.units)) for pool in request.pools)
    return sum(
        count * (max(1, shape.hosts * shape.chips_per_host) if is_divisible(shape.accelerator) else shape.slots) for shape, count in shapes
    )


def what_decides(request: AllotmentRequest) -> AllotmentRequest:
    """Leave out what decides nothing: which unit leaves first, while none must leave and all have equally many slices, and which cannot
    leave yet, while none may have to."""
    if not request.may_give:
        request = _with_units(request, lambda unit: unit._replace(settling=False))
    if len({pool.requirements.shape.size for pool in request.pools}) > 1:
        return request
    return _with_units(request, lambda unit: unit._replace(loss=0))


def _with_units(request: AllotmentRequest, change: Callable[[HeldUnit], HeldUnit]) -> AllotmentRequest:
    return replace(request, pools=tuple(replace(pool, units=tuple(sorted(map(change, pool.units)))) for pool in request.pools))
