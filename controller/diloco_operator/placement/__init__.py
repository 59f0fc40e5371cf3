"""Which unit gets which slice: `place(request) -> Placement`. Another solver of the same signature can replace it. Pure."""

from diloco_operator.placement.greedy import place
from diloco_operator.placement.request import (
    JobRequest,
    PlacedUnit,
    Placement,
    PlacementRequest,
    PoolOutcome,
    PoolRequest,
    Solver,
    UnitRequest,
    UnplacedUnit,
)

__all__ = [
    "JobRequest",
    "PlacedUnit",
    "Placement",
    "PlacementRequest",
    "PoolOutcome",
    "PoolRequest",
    "Solver",
    "UnitRequest",
    "UnplacedUnit",
    "place",
]
