"""From nodes to slices: which hardware the cluster has, whether it can be used now, and which job has reserved it. Pure."""

from diloco_operator.fleet.capacity import CapacityType
from diloco_operator.fleet.health import DisruptionSignals
from diloco_operator.fleet.inventory import Inventory
from diloco_operator.fleet.node import Host, NodeView, Taint, Toleration, project_node
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import Fleet, Holder, Shape, Slice, SliceCounts, SliceState
from diloco_operator.fleet.use import PodUse

__all__ = [
    "CapacityType",
    "DisruptionSignals",
    "Fleet",
    "Holder",
    "Host",
    "Inventory",
    "NodeView",
    "PodUse",
    "Resources",
    "Shape",
    "Slice",
    "SliceCounts",
    "SliceState",
    "Taint",
    "Toleration",
    "project_node",
    "shape_of",
]
