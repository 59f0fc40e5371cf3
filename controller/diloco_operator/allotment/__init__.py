"""Which job gets which slices: one allotment over all jobs. Pure: it depends on the fleet and the requests alone.

See docs/decisions/0207-allotment.md.
"""

from diloco_operator.allotment.allotment import Allotment
from diloco_operator.allotment.allotted import NOTHING_ALLOTTED, Allotted
from diloco_operator.allotment.view import AllottedFleet

__all__ = ["NOTHING_ALLOTTED", "Allotment", "Allotted", "AllottedFleet"]
