"""How far a pod is on its way from the API server to a running main container, as scheduler and kubelet report it. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, fields, moment, objects, string, text

_IMAGE_PROBLEMS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons of a waiting container whose image the kubelet could not get."""


@dataclass(frozen=True, slots=True)
class PodStartup:
    """How far a pod is whose main container has not run yet."""

    bound_at: float | None
    """When a scheduler bound it to its node, by the control plane's clock. None if it is not bound."""
    unschedulable_since: float | None
    """When a scheduler first found no node for it, by the control plane's clock. None if no scheduler has said so, or not when."""
    gated: bool
    """It is held back from the schedulers (spec.schedulingGates)."""
    claim_templates: tuple[str, ...]
    """Its ResourceClaimTemplates that have no ResourceClaim for it yet. No scheduler looks at a pod that lacks a claim."""
    nominated: bool
    """A scheduler takes pods of lower priority away from a node to make room for it."""
    network_at: float | None
    """When its volumes and network were ready (condition PodReadyToStartContainers), by the node's clock. None if they are not."""
    seen: bool
    """Its kubelet has reported its containers."""
    image_problem: str
    """Why an image cannot be pulled now, such as `ErrImagePull: …`, "" if no problem is known."""
    init_runs: str
    """Name of the init container that runs now, sidecars left out. "" if none runs."""
    init_ran: bool
    """An init container runs or has run, so the kubelet has pulled images."""


def project_startup(obj: Obj) -> PodStartup:
    """Project the raw Pod object. Raises `MalformedField`."""
    in_condition, in_container = "status.conditions[]", "status.containerStatuses[]"
    meta, spec, status = fields(obj, "metadata"), fields(obj, "spec"), fields(obj, "status")
    conditions = {string(each, "type", in_condition): each for each in objects(status, "conditions", "status")}
    scheduled, network = conditions.get("PodScheduled", {}), conditions.get("PodReadyToStartContainers", {})
    bound = bool(spec.get("nodeName"))
    bound_at = moment(scheduled, "lastTransitionTime", in_condition) if scheduled.get("status") == "True" else None
    if not bound:
        bound_at = None
    elif bound_at is None:
        bound_at = moment(meta, "creationTimestamp", "metadata") or 0.0
    unschedulable_since = moment(scheduled, "lastTransitionTime", in_condition) if scheduled.get("status") == "False" else None
    init_containers = objects(spec, "initContainers", "spec")
    sidecars = {string(each, "name", "spec.initContainers[]") for each in init_containers if each.get("restartPolicy") == "Always"}
    init_statuses = [_Container.of(each) for each in objects(status, "initContainerStatuses", "status")]
    containers = [*init_statuses, *(_Container.of(each) for each in objects(status, "containerStatuses", "status"))]
    problem = next((each.waiting for each in containers if text(each.waiting, "reason", in_container) in _IMAGE_PROBLEMS), {})
    started = [each for each in init_statuses if each.runs or each.ended]
    return PodStartup(
        bound_at=bound_at,
        unschedulable_since=None if bound else unschedulable_since,
        gated=scheduled.get("reason") == "SchedulingGated",
        claim_templates=_templates_without_claim(spec, status),
        nominated=bool(status.get("nominatedNodeName")),
        network_at=moment(network, "lastTransitionTime", in_condition) if network.get("status") == "True" else None,
        seen=bool(containers),
        image_problem=": ".join(filter(None, (text(problem, "reason", in_container), text(problem, "message", in_container)))),
        init_runs=next((each.name for each in started if each.runs and each.name not in sidecars), ""),
        init_ran=bool(started),
    )


def _templates_without_claim(spec: Fields, status: Fields) -> tuple[str, ...]:
    at, of_status = "spec.resourceClaims[]", "status.resourceClaimStatuses[]"
    existing = {string(each, "name", of_status) for each in objects(status, "resourceClaimStatuses", "status")}
    wanted = (each for each in objects(spec, "resourceClaims", "spec") if string(each, "name", at) not in existing)
    return tuple(name for each in wanted if (name := string(each, "resourceClaimTemplateName", at)))


class _Container(NamedTuple):
    name: str
    waiting: Fields
    runs: bool
    ended: bool

    @staticmethod
    def of(raw: Fields) -> _Container:
        state = fields(raw, "state", "status.containerStatuses[]")
        return _Container(string(raw, "name"), fields(state, "waiting", "state"), "running" in state, "terminated" in state)
