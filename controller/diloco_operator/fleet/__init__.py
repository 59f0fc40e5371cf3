"""Nodes → slices: what hardware there is, which of it can be used now, and who holds it. No I/O; the operator feeds it nodes."""

from diloco_operator.fleet.health import DisruptionSigns
from diloco_operator.fleet.inventory import Inventory
from diloco_operator.fleet.kinds import shape_of
from diloco_operator.fleet.node import Host, NodeView, Taint, Toleration, project_node
from diloco_operator.fleet.slices import Capacity, Census, Fleet, Shape, Slice

__all__ = [
    "Capacity",
    "Census",
    "DisruptionSigns",
    "Fleet",
    "Host",
    "Inventory",
    "NodeView",
    "Shape",
    "Slice",
    "Taint",
    "Toleration",
    "project_node",
    "shape_of",
]
