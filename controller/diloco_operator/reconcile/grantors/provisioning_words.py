"""What comes of a ProvisioningRequest, in words. Pure."""

from __future__ import annotations

from diloco_operator.api.durations import format_duration
from diloco_operator.kube.fields import clip
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.grantors.provisioning_view import RequestState, RequestView

_WORDS = 400
"""Characters of what an autoscaler says."""


def mode_changed(pool: str) -> str:
    return f"provisioning.mode of pool {pool} was changed"


def parameters_changed(pool: str) -> str:
    return f"provisioning.class or provisioning.parameters of pool {pool} were changed"


def request_deleted(request: str) -> str:
    return f"ProvisioningRequest {request} was deleted, but not by the operator"


def request_of_other(request: str) -> str:
    return f"ProvisioningRequest {request} exists and does not belong to this job; delete or rename it, or give the job another name"


def request_is_nonsense(request: str, problem: str) -> str:
    return f"ProvisioningRequest {request} says what cannot be: {clip(problem, _WORDS)}"


def request_ended(request: RequestView) -> str:
    what = f"ProvisioningRequest {request.name}"
    ends = {
        RequestState.FAILED: f"{what} failed",
        RequestState.REVOKED: f"the nodes of {what} are taken away",
        RequestState.EXPIRED: f"the nodes of {what} were kept for too short a time, and its pods were not bound",
    }
    return f"{ends[request.state]}; it says: {clip(request.words, _WORDS)}"


def request_waits(request: RequestView, at: float) -> str:
    says = f"it says: {clip(request.words, _WORDS)}" if request.words else "it has said nothing yet"
    return f"asked the autoscaler for nodes at {format_timestamp(at)} by ProvisioningRequest {request.name}; {says}"


def no_nodes_in_time(pool: str, limit: float, wait: str) -> str:
    return f"no nodes came within {format_duration(limit)} (provisioning.timeout of pool {pool}): {wait}"


def nodes_without_pods(refused: str) -> str:
    """Say why. `refused`: what the API server says of the pods."""
    return f"its nodes are there, and its pods are not: {refused}"
