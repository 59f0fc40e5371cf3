"""PURE: who gets which slice. `place(request) -> Placement`; another solver of the same signature can take its place."""

from diloco_operator.placement.greedy import place
from diloco_operator.placement.request import (
    Assignment,
    JobWant,
    Placement,
    PlacementRequest,
    PoolOutcome,
    PoolWant,
    Solver,
    UnitWant,
    Unplaced,
)

__all__ = [
    "Assignment",
    "JobWant",
    "Placement",
    "PlacementRequest",
    "PoolOutcome",
    "PoolWant",
    "Solver",
    "UnitWant",
    "Unplaced",
    "place",
]
