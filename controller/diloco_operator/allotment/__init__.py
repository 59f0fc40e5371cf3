"""Which job gets which slices: one allotment over all jobs. Pure: the same fleet and the same requests, the same allotment.

See docs/decisions/0207-allotment.md.
"""

from diloco_operator.allotment.allotment import Allotment
from diloco_operator.allotment.request import NOTHING_ALLOTTED, AllotmentRequest, Allotted, HeldUnit, PoolDemand
from diloco_operator.allotment.view import AllottedFleet

__all__ = ["NOTHING_ALLOTTED", "Allotment", "AllotmentRequest", "Allotted", "AllottedFleet", "HeldUnit", "PoolDemand"]
