"""Where the units of a job would be on a fleet that is all its own, as the operator places them."""

from __future__ import annotations

import copy
import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diloco.simulation.fleet import PlacedUnit

from diloco_operator.allotment import Allotment
from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED
from diloco_operator.fleet import Inventory, Shape, project_node
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import ObservedState, OperatorConfig, first_request, parse_job, reconcile

_NOW = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""Any moment: nothing has happened before it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job on the fleet with some maximum of units."""

    units: tuple[PlacedUnit, ...]
    """In the order of their names. A pool of `PlacedUnit` is a shape: two pools of a job may have the same slices."""
    spares: dict[str, int]
    """By shape, the slices for further units."""
    message: str
    """Why there are not more; "": there are as many as the job may have."""


def placed(job: Obj, nodes: Sequence[Obj], most: int) -> Placed:
    """The units that the job has on these nodes, with `spec.learners.max` set to `most`."""
    config = OperatorConfig()
    inventory = Inventory(config.disruption_signals)
    inventory.advance(_NOW.timestamp())
    for node in nodes:
        inventory.update_node(project_node(_ready(node)))
    obj = copy.deepcopy(job)
    obj["metadata"] = {
        "namespace": "default",
        **obj["metadata"],
        "uid": "simulated",
        "generation": 1,
        "creationTimestamp": _NOW.isoformat(),
    }
    learners = obj["spec"]["learners"]
    learners["max"] = most
    learners["min"] = min(learners.get("min", 1), most)
    observed = ObservedState(job=parse_job(obj), fleet=inventory, config=config)
    allotment = Allotment(inventory)
    if (request := first_request(observed, _NOW)) is not None:
        allotment.update(request)
        allotment.refresh()
    plan = reconcile(replace(observed, fleet=allotment.view(observed.job.key)), _NOW)
    spec, status = observed.job.spec, plan.status.status if plan.status is not None else {}
    assert spec is not None, "the job was validated before"
    shapes = {pool.name: shape_of(pool) for pool in spec.pools}
    speeds = {node["metadata"]["name"]: _speed(node) for node in nodes}
    units = []
    for unit in status.get("units", ()):
        if unit["slice"]:
            shape = shapes[unit["pool"]]
            found = inventory.resolve(shape, unit["slice"]) or ()
            slowest = min((speeds[host.node] for slice_ in found for host in slice_.hosts), default=1.0)
            units.append(PlacedUnit(str(shape), max(1, shape.hosts * shape.chips_per_host), slowest))
    used = Counter(unit.pool for unit in units)
    spares = {str(shape): _most(inventory, shape) - used[str(shape)] for shape in shapes.values()}
    why = next((each["message"] for each in status.get("conditions", ()) if each["type"] == "Placed"), "")
    return Placed(tuple(units), spares, why if len(units) < most else "")


def _most(inventory: Inventory, shape: Shape) -> int:
    """Units of this shape for which the fleet has slices."""
    counts = inventory.counts(shape.one)
    return counts.total // shape.chips_per_host if counts.hosts else counts.total // shape.slots


def _ready(node: Obj) -> Obj:
    """A node of a file has no kubelet that could say so."""
    return {**node, "status": {**node.get("status", {}), "conditions": [{"type": "Ready", "status": "True"}]}}


def _speed(node: Obj) -> float:
    return float((node["metadata"].get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED, 1.0))
