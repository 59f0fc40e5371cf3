"""PURE: who gets which slice. `place(request) -> Placement`; another solver of the same signature can take its place."""

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
