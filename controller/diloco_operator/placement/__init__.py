"""Which units of a job get which slices, and why others get none: `place(job, fleet) -> Placement`. Pure."""

from diloco_operator.placement.place import place
from diloco_operator.placement.request import HeldUnit, JobRequest, PlacedUnit, Placement, PoolOutcome, PoolRequest, UnplacedUnit

__all__ = ["HeldUnit", "JobRequest", "PlacedUnit", "Placement", "PoolOutcome", "PoolRequest", "UnplacedUnit", "place"]
