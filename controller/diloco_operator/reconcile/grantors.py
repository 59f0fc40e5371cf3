"""Who grants nodes to delegated units: those whose pods name no node. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Self

from diloco_operator.api import names
from diloco_operator.api.job import Pool, ProvisioningMode, Spec
from diloco_operator.api.reasons import UnitReason
from diloco_operator.kube.client import Obj, Resource


class Grantor(enum.StrEnum):
    """Brings nodes for pods, or lets them go to nodes. The value stands on the pods (`names.ANNOTATION_GRANTOR`)."""

    asked: str
    """Who was asked, in words."""
    gives: str
    """What for."""
    waits: UnitReason
    """The reason of a unit that waits for it."""

    def __new__(cls, value: str, asked: str, gives: str, waits: UnitReason) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.asked, member.gives, member.waits = asked, gives, waits
        return member

    AUTOSCALER = "Autoscaler", "the autoscaler", "nodes", UnitReason.WAITING_FOR_NODES
    PROVISIONING_REQUEST = "ProvisioningRequest", "the autoscaler (by ProvisioningRequest)", "nodes", UnitReason.WAITING_FOR_NODES
    KUEUE = "Kueue", "Kueue", "quota", UnitReason.WAITING_FOR_QUOTA

    @classmethod
    def of_pod(cls, annotation: str) -> Grantor | None:
        """By the annotation of a pod, which anyone may have written; None: the pod is no delegated one."""
        return next((each for each in cls if each.value == annotation), None)


_BY_MODE = {
    ProvisioningMode.AUTOSCALER: Grantor.AUTOSCALER,
    ProvisioningMode.PROVISIONING_REQUEST: Grantor.PROVISIONING_REQUEST,
}


def grantor_of(spec: Spec, pool: Pool) -> Grantor | None:
    """Who brings nodes for units of the pool for which no slice is free; None: no grantor. Kueue gives quota to each unit of a job, whether
    a slice is free or not."""
    return Grantor.KUEUE if spec.queue_name else _BY_MODE.get(pool.provisioning.mode)


def cannot_ask(spec: Spec, pool: Pool, without: Mapping[Resource, str]) -> str:
    """Why no grantor can be asked for nodes of this pool; "": one can, or none is to be. `without`: what cannot be read, and why."""
    if grantor_of(spec, pool) is not Grantor.PROVISIONING_REQUEST:
        return ""
    why = without.get(names.PROVISIONING_REQUESTS) or without.get(names.POD_TEMPLATES)
    remedy = "install an autoscaler that has them, give the operator the right, or set provisioning.mode to Autoscaler"
    return f"{why}; {remedy}" if why else ""


def grantor_tolerations(pool: Pool) -> list[Obj]:
    """Of the taints by which a grantor keeps the nodes that it made for a pool."""
    if pool.provisioning.class_name != names.QUEUED_PROVISIONING:
        return []
    return [{"key": names.QUEUED_TAINT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]
