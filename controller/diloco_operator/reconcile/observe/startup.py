"""How far a pod is on its way from the API server to a running main container, as scheduler and kubelet report it. Pure.

See docs/decisions/0131-four-time-outs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp

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
    """When a scheduler bound it to its node, by the control plane's clock; None: it is not bound."""
    gated: bool
    """Somebody holds it back from the schedulers (spec.schedulingGates)."""
    nominated: bool
    """A scheduler takes pods of lower priority away from a node to make room for it."""
    network_at: float | None
    """When its volumes and network were ready (condition PodReadyToStartContainers), by the node's clock; None: they are not."""
    seen: bool
    """Its kubelet has reported its containers."""
    image_problem: str
    """Why an image cannot be pulled now, such as `ErrImagePull: …`; "": nothing is known of a problem."""
    init_runs: str
    """Name of the init container that runs now, sidecars left out; "": none."""
    init_ran: bool
    """Some init container runs or has run, so images were pulled before."""


def project_startup(obj: Obj) -> PodStartup:
    """From the raw Pod object."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled, network = conditions.get("PodScheduled", {}), conditions.get("PodReadyToStartContainers", {})
    bound = bool(spec.get("nodeName"))
    bound_at = _time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    sidecars = {c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    init = status.get("initContainerStatuses") or ()
    containers = (*init, *(status.get("containerStatuses") or ()))
    problems = (c["state"]["waiting"] for c in containers if (c.get("state") or {}).get("waiting"))
    problem: Mapping[str, Any] = next((w for w in problems if w.get("reason") in _IMAGE_PROBLEMS), {})
    ran = [c for c in init if (c.get("state") or {}).keys() & {"running", "terminated"}]
    return PodStartup(
        bound_at=(bound_at if bound_at is not None else _time(meta.get("creationTimestamp")) or 0.0) if bound else None,
        gated=scheduled.get("reason") == "SchedulingGated",
        nominated=bool(status.get("nominatedNodeName")),
        network_at=_time(network.get("lastTransitionTime")) if network.get("status") == "True" else None,
        seen=bool(containers),
        image_problem=": ".join(filter(None, (problem.get("reason"), problem.get("message")))),
        init_runs=next((str(c.get("name", "")) for c in ran if "running" in c["state"] and c.get("name") not in sidecars), ""),
        init_ran=bool(ran),
    )


def _time(text: str | None) -> float | None:
    return parse_timestamp(text) if text else None
