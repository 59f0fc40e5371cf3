"""The part of a node that fleet, placement and reconcile need. It is projected once from the raw JSON, and kept instead of that."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diloco_operator.accelerators.labels import NVIDIA_FEATURE_DISCOVERY
from diloco_operator.fleet.devices import Devices, offered_devices
from diloco_operator.fleet.resources import Resources, allocatable
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, MalformedField, fields, moment, needed_string, objects, string, strings, text


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str
    """NoSchedule, PreferNoSchedule or NoExecute."""

    def __str__(self) -> str:
        """Return the taint as kubectl writes it: `key=value:effect`, or `key:effect` if there is no value."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod's spec. An empty key with Exists tolerates everything."""

    key: str
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of a slice."""

    node: str
    """Name of the Node object, to which pods are pinned."""


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    uid: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    """Cordoned."""
    ready: bool
    ready_unknown: bool
    """The node is not ready because its kubelet does not report. It may still run pods."""
    ready_since: float | None
    """When the Ready condition last changed, as the condition says, in seconds since the epoch. None if it does not say."""
    ready_message: str
    devices: Devices
    """Its extended resources. An amount is 0 while the device plugin is down."""
    allocatable: Resources
    """What all its pods together may request."""
    deleting: bool
    created: float | None
    """Seconds since the epoch."""
    announced_end: float | None
    """The earliest end that its annotations announce, in seconds since the epoch. None if they announce none."""
    host: Host
    product: str = ""
    """If only DRA offers its accelerators, the product of most of them, as GPU feature discovery writes it. "" otherwise.
    `device_pools.with_claimable` sets it."""

    @property
    def kind_labels(self) -> Mapping[str, str]:
        """Labels that tell the kind of its accelerators: its own, and the product by DRA if its own do not have that label."""
        return {NVIDIA_FEATURE_DISCOVERY.key: self.product, **self.labels} if self.product else self.labels


def project_node(obj: Obj, ends: Sequence[str] = ()) -> NodeView:
    """Project a raw Node object. A node without a Ready condition is not ready. Raises `MalformedField`.

    Args:
        ends: keys of annotations whose value is the time when the node ends. A value that is no time is ignored.
    """
    meta, spec, status = fields(obj, "metadata"), fields(obj, "spec"), fields(obj, "status")
    name = sys.intern(needed_string(meta, "name", "metadata"))
    conditions = objects(status, "conditions", "status")
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    devices = offered_devices(fields(status, "capacity", "status"), fields(status, "allocatable", "status"))
    return NodeView(
        name=name,
        uid=string(meta, "uid", "metadata"),
        labels=strings(meta, "labels", "metadata"),
        taints=tuple(_taint(taint) for taint in objects(spec, "taints", "spec")),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready is not None and ready.get("status") == "True",
        ready_unknown=ready is not None and ready.get("status") == "Unknown",
        ready_since=moment(ready, "lastTransitionTime", "status.conditions[]") if ready is not None else None,
        ready_message=text(ready, "message", "status.conditions[]") if ready is not None else "the node has no Ready condition",
        devices=devices,
        allocatable=allocatable(status, devices),
        deleting=bool(meta.get("deletionTimestamp")),
        created=moment(meta, "creationTimestamp", "metadata"),
        announced_end=_announced_end(fields(meta, "annotations", "metadata"), ends),
        host=Host(name),
    )


def _announced_end(annotations: Fields, keys: Sequence[str]) -> float | None:
    ends = []
    for key in keys:
        try:
            ends.append(moment(annotations, key, "metadata.annotations"))
        except MalformedField:
            continue  # a bad annotation does not make the node bad
    return min((end for end in ends if end is not None), default=None)


def _taint(raw: Fields) -> Taint:
    at = "spec.taints[]"
    return Taint(needed_string(raw, "key", at), string(raw, "value", at), string(raw, "effect", at))


def natural_sort_key(name: str) -> tuple[object, ...]:
    """Return a key that sorts host-2 before host-10, as hosts are numbered in their slice."""
    parts: list[object] = []
    digits = ""
    for char in name:
        if char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, char))
    if digits:
        parts.append((0, int(digits)))
    return tuple(parts)
