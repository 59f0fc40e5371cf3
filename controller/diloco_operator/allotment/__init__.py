"""Which job gets which slices: one allotment over all jobs. Pure: the same fleet and the same requests, the same allotment.

See docs/decisions/0207-allotment.md.
"""

from diloco_operator.allotment.allotment import Allotment
from diloco_operator.allotment.allotted import NOTHING_ALLOTTED, Allotted
from diloco_operator.allotment.view import AllottedFleet

__all__ = ["NOTHING_ALLOTTED", "Allotment", "Allotted", "AllottedFleet"]
