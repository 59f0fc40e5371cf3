"""What comes of a ProvisioningRequest, in words: a class for each sentence, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.api.durations import format_duration
from diloco_operator.kube.fields import clip
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.grantors.provisioning_view import RequestState, RequestView
from diloco_operator.reconcile.sentences import Sentence

_WORDS = 400
"""Characters of what an autoscaler says."""


@dataclass(frozen=True, slots=True)
class ModeChanged:
    pool: str

    def words(self) -> str:
        return f"provisioning.mode of pool {self.pool} was changed"


@dataclass(frozen=True, slots=True)
class ParametersChanged:
    pool: str

    def words(self) -> str:
        return f"provisioning.class or provisioning.parameters of pool {self.pool} were changed"


@dataclass(frozen=True, slots=True)
class RequestDeleted:
    request: str

    def words(self) -> str:
        return f"ProvisioningRequest {self.request} was deleted, but not by the operator"


@dataclass(frozen=True, slots=True)
class RequestOfOther:
    request: str

    def words(self) -> str:
        return (
            f"ProvisioningRequest {self.request} exists and does not belong to this job; delete or rename it, or give the job another name"
        )


@dataclass(frozen=True, slots=True)
class RequestIsNonsense:
    request: str
    problem: str

    def words(self) -> str:
        return f"ProvisioningRequest {self.request} says what cannot be: {clip(self.problem, _WORDS)}"


@dataclass(frozen=True, slots=True)
class RequestEnded:
    request: RequestView

    def words(self) -> str:
        what = f"ProvisioningRequest {self.request.name}"
        ends = {
            RequestState.FAILED: f"{what} failed",
            RequestState.REVOKED: f"the nodes of {what} are taken away",
            RequestState.EXPIRED: f"the nodes of {what} were kept for too short a time, and its pods were not bound",
        }
        return f"{ends[self.request.state]}; it says: {clip(self.request.words, _WORDS)}"


@dataclass(frozen=True, slots=True)
class RequestWaits:
    request: RequestView
    at: float

    def words(self) -> str:
        says = f"it says: {clip(self.request.words, _WORDS)}" if self.request.words else "it has said nothing yet"
        at = format_timestamp(self.at)
        return f"asked the autoscaler for nodes at {at} by ProvisioningRequest {self.request.name}; {says}"


@dataclass(frozen=True, slots=True)
class NoNodesInTime:
    pool: str
    limit: float
    wait: Sentence

    def words(self) -> str:
        limit = f"{format_duration(self.limit)} (provisioning.timeout of pool {self.pool})"
        return f"no nodes came within {limit}: {self.wait.words()}"


@dataclass(frozen=True, slots=True)
class NodesWithoutPods:
    refused: str
    """What the API server says of the pods."""

    def words(self) -> str:
        return f"its nodes are there, and its pods are not: {self.refused}"
