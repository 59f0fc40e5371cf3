"""Which unit of a job gets which slice: `place(job, fleet) -> Placement`, and why others get none. Pure."""

from diloco_operator.placement.place import place
from diloco_operator.placement.request import JobRequest, PlacedUnit, Placement, PoolOutcome, PoolRequest, UnitRequest, UnplacedUnit

__all__ = ["JobRequest", "PlacedUnit", "Placement", "PoolOutcome", "PoolRequest", "UnitRequest", "UnplacedUnit", "place"]
