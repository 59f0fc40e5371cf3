"""Nodes → slices: what hardware there is, which of it can be used now, and who holds it. No I/O; the operator feeds it nodes."""

from diloco_operator.fleet.health import DisruptionSignals
from diloco_operator.fleet.inventory import Inventory
from diloco_operator.fleet.node import Host, NodeView, Taint, Toleration, project_node
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import CapacityType, Fleet, Shape, Slice, SliceCounts

__all__ = [
    "CapacityType",
    "DisruptionSignals",
    "Fleet",
    "Host",
    "Inventory",
    "NodeView",
    "Shape",
    "Slice",
    "SliceCounts",
    "Taint",
    "Toleration",
    "project_node",
    "shape_of",
]
