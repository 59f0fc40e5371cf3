"""Nodes that a preview adds to a fleet. They are like a node of the same kind in the fleet, else as the catalogue says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.accelerators import Accelerator, Family, NodeLabels, chip_count, has_accelerator_label, identify
from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED, NODE_HOSTNAME, NODE_POOL
from diloco_operator.fleet.devices import offered_devices
from diloco_operator.kube.client import Obj

_OF_CONDITIONS = "node.kubernetes.io/"
"""Prefix of taints for the condition of a node, such as not ready or cordoned."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Slices or hosts to add."""

    kind: Accelerator
    count: int
    """Slices of a TPU, hosts of any other kind."""
    topology: str
    """"" for hosts."""
    per_host: int
    """Accelerators of a host. 0 means the number that the fleet's hosts of this kind have, or that the kind's largest hosts have."""
    name: str
    """The pool or kind as the user calls it."""


def new_nodes(addition: Addition, nodes: Sequence[Obj], taken: Collection[str]) -> list[Obj]:
    """The nodes of the addition. The first node of the same kind in `nodes`, the fleet, is their model. `taken`: names in use."""
    model, entry = _model(addition.kind, nodes)
    per_host = addition.per_host or _devices(model, addition.kind) or (addition.kind.host_sizes[-1] if addition.kind.host_sizes else 0)
    hosts = max(1, chip_count(addition.topology) // per_host) if addition.topology else 1
    labels, taints, capacity = _template_of(model, addition.kind)
    if entry is not None:
        labels_of_kind = entry.on_node(topology=addition.topology, per_host=per_host)
        # The model may have another topology or another number of accelerators: only these labels do not come from it.
        varies = (entry.dialect.topology, entry.dialect.count)
        labels |= {key: value for key, value in labels_of_kind.items() if model is None or key in varies}
    if addition.kind.resource:
        capacity[addition.kind.resource] = str(per_host)
    speed = ((model or {}).get("metadata", {}).get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED)
    kept = {"annotations": {ANNOTATION_RELATIVE_SPEED: speed}} if speed else {}
    added = []
    for name, node_pool in _names(addition, hosts, taken):
        node_labels = {**labels, NODE_HOSTNAME: name, NODE_POOL: node_pool}
        status = {"capacity": dict(capacity), "allocatable": dict(capacity)}
        spec = {"taints": taints} if taints else {}
        added.append(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": node_labels, **kept}, "spec": spec, "status": status}
        )
    return added


def _names(addition: Addition, hosts: int, taken: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield name and node pool of every host. Each slice is a node pool of its own."""
    index = 0
    for _ in range(addition.count):
        while any(name in taken for name in _of_slice(addition, index, hosts)):
            index += 1
        pool = f"added-{addition.name}-{index}" if addition.topology else f"added-{addition.name}"
        yield from ((name, pool) for name in _of_slice(addition, index, hosts))
        index += 1


def _of_slice(addition: Addition, index: int, hosts: int) -> list[str]:
    base = f"added-{addition.name}-{index}"
    return [base] if hosts == 1 else [f"{base}-{host}" for host in range(hosts)]


def _model(kind: Accelerator, nodes: Sequence[Obj]) -> tuple[Obj | None, NodeLabels | None]:
    """The first node of the kind, and the catalogue's entry with the labels that identify it. Without such a node, None and the first entry
    of the kind."""
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        identity = identify(labels)
        if identity is not None and identity[0] is kind:
            return node, identity[1]
        if identity is None and kind.family is Family.CPU and not has_accelerator_label(labels):
            return node, None
    return None, kind.labels[0] if kind.labels else None


def _devices(model: Obj | None, kind: Accelerator) -> int:
    capacity = (model or {}).get("status", {}).get("capacity") or {}
    return dict(offered_devices(capacity, {})).get(kind.resource, 0)


def _template_of(model: Obj | None, kind: Accelerator) -> tuple[dict[str, str], list[Any], dict[str, str]]:
    """Labels, taints and capacity of new nodes: the model's, without what only that node has."""
    if model is None:
        return {}, [{"key": key, "value": "present", "effect": "NoSchedule"} for key in kind.taints[:1]], {}
    labels = {key: value for key, value in (model["metadata"].get("labels") or {}).items() if key not in (NODE_HOSTNAME, NODE_POOL)}
    taints = [taint for taint in model.get("spec", {}).get("taints") or () if not taint["key"].startswith(_OF_CONDITIONS)]
    capacity = {key: str(value) for key, value in (model.get("status", {}).get("capacity") or {}).items()}
    return labels, taints, capacity
