"""What the API server said when it refused to make an object of the job: how long to wait, what to tell, what a person can do. Pure.

One pool's bad template, a used-up quota or a policy must not keep the rest of the job from running: the object is left out of the
plan until it is due again, its unit says why, and everything else goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diloco.protocol.backoff import exponential

from diloco_operator.api import names
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.config import OperatorConfig

type WriteKey = tuple[str, str]
"""Kind and name of the object; ("Unit", unit) for every pod of a learner unit: an attempt is made whole or not at all."""

UNIT = "Unit"
_SERVER_ERRORS = 3
"""Errors of the server itself, in a row, after which they are treated as a refusal: a webhook that does not answer, for instance."""
_QUOTED = 1000
"""Characters of the server's message that are kept."""


@dataclass(frozen=True, slots=True)
class RejectedWrite:
    """The last attempt, and how many in a row failed like it."""

    code: int
    message: str
    at: float
    """Seconds since the epoch."""
    generation: int
    """metadata.generation of the job that it was made from: a mended spec is tried at once."""
    transient: bool = False
    """The server was busy or broken; it may do the same thing later."""
    count: int = 1


def write_key(resource: Resource, obj: Obj) -> WriteKey:
    unit = (obj["metadata"].get("labels") or {}).get(names.LABEL_UNIT)
    return (UNIT, unit) if resource == names.PODS and unit else (resource.kind, obj["metadata"]["name"])


def retry_at(rejected: RejectedWrite, config: OperatorConfig) -> float:
    """When to try again: the pause doubles with every refusal in a row."""
    return rejected.at + exponential(config.refused_retry, config.refused_retry_max, rejected.count)


def standing_rejection(
    rejected_writes: Mapping[WriteKey, RejectedWrite], key: WriteKey, generation: int, now: float, config: OperatorConfig
) -> RejectedWrite | None:
    """The refusal because of which the object must not be tried now."""
    rejected = rejected_writes.get(key)
    if rejected is None or rejected.generation != generation or (rejected.transient and rejected.count < _SERVER_ERRORS):
        return None
    return rejected if now < retry_at(rejected, config) else None


def explain(rejected: RejectedWrite, config: OperatorConfig) -> str:
    """For a message: what the server said, what to do, and when the operator tries again."""
    said = rejected.message.strip()
    said = said if len(said) <= _QUOTED else f"{said[:_QUOTED]}…"
    again = format_timestamp(round(retry_at(rejected, config)))
    return f"the API server rejected it: {said.rstrip('.')}; {advice(rejected)}; tried again at {again}"


_ADVICE = (
    (r"cannot (create|get|patch|delete) resource", "give the operator's service account this right, see the chart's roles"),
    (r"violates PodSecurity", "change the template's securityContext, or the namespace's label pod-security.kubernetes.io/enforce"),
    (
        r"exceeded quota|must specify (limits|requests)|(minimum|maximum) .* usage per",
        "raise the namespace's quota or limit range, or change the template's resources",
    ),
    (r"being terminated|namespaces? .* not found", "the namespace is going, and the job with it"),
    (r"PriorityClass", "make the PriorityClass, or change spec.priorityClassName"),
    (r"RuntimeClass", "make the RuntimeClass, or change runtimeClassName in the template"),
    (r"service ?account", "make the service account, or change serviceAccountName in the template"),
    (r"webhook", "ask whoever runs this admission webhook"),
    (r"too large|too long", "make the job's templates smaller"),
    (r"does not belong to this job", "delete or rename it"),
)


def advice(rejected: RejectedWrite) -> str:
    """What a person can do about it."""
    for pattern, text in _ADVICE:
        if re.search(pattern, rejected.message, re.IGNORECASE):
            return text
    if rejected.code in (400, 422):
        return "mend the field in the template that it names"
    return "ask whoever runs the cluster" if rejected.code < 500 else "look at the API server and its admission webhooks"
