"""What a job has and wants, which of its units gets which slice, and why others get none: `place(job, fleet) -> Placement`. Pure."""

from diloco_operator.placement.place import place
from diloco_operator.placement.request import HeldUnit, JobRequest, PlacedUnit, Placement, PoolOutcome, PoolRequest, UnplacedUnit

__all__ = ["HeldUnit", "JobRequest", "PlacedUnit", "Placement", "PoolOutcome", "PoolRequest", "UnplacedUnit", "place"]
