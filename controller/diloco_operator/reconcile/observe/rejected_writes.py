"""Objects of the job that the API server rejected: how long to wait, what to report, and what a person can do. Pure.

A pool's invalid template, an exhausted quota or a policy must not stop the rest of the job. The plan leaves the object out until its
retry is due, its unit reports why, and everything else goes on.

See docs/decisions/0031-writes.md.
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
"""Kind and name of the object. All objects of a unit share ("Unit", unit): its pods, host list and request for nodes are created together
or not at all."""

UNIT = "Unit"
_SERVER_ERRORS = 3
"""After this many errors of the server in a row, such as a webhook that does not answer, they count as a rejection."""
_QUOTED = 1000
"""Characters of the API server's message that the operator quotes."""


@dataclass(frozen=True, slots=True)
class RejectedWrite:
    """The last try. `count`: how many in a row were rejected."""

    code: int
    message: str
    at: float
    """Seconds since the epoch."""
    generation: int
    """metadata.generation of the job at that time. A changed spec is tried at once."""
    transient: bool = False
    """The server was busy or failed; the same write may succeed later."""
    count: int = 1


def write_key(resource: Resource, obj: Obj) -> WriteKey:
    unit = (obj["metadata"].get("labels") or {}).get(names.LABEL_UNIT)
    return (UNIT, unit) if unit else (resource.kind, obj["metadata"]["name"])


def retry_at(rejected: RejectedWrite, config: OperatorConfig) -> float:
    """When to try again. The pause doubles with every rejection in a row."""
    return rejected.at + exponential(config.refused_retry, config.refused_retry_max, rejected.count)


def is_known(rejected: RejectedWrite) -> bool:
    """Whether the API server is known to reject the object. One or two failures of the server itself do not show that."""
    return not rejected.transient or rejected.count >= _SERVER_ERRORS


def standing_rejection(
    rejected_writes: Mapping[WriteKey, RejectedWrite], key: WriteKey, generation: int, now: float, config: OperatorConfig
) -> RejectedWrite | None:
    """The rejection that forbids to try the object now. None if it may be tried."""
    rejected = rejected_writes.get(key)
    if rejected is None or rejected.generation != generation or not is_known(rejected):
        return None
    return rejected if now < retry_at(rejected, config) else None


def explain(rejected: RejectedWrite, config: OperatorConfig, again_at: float | None = None) -> str:
    """Quote the server, and say what to do and when the operator tries again: at `again_at`, or if that is None at `retry_at`."""
    quoted = rejected.message.strip()
    quoted = quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}…"
    again = format_timestamp(round(again_at if again_at is not None else retry_at(rejected, config)))
    return f"the API server rejected it: {quoted.rstrip('.')}; {advice(rejected)}; tried again at {again}"


_ADVICE = (
    (r"cannot (create|get|patch|delete) resource", "give the operator's service account this right, see the chart's roles"),
    (r"ownerRef on a resource you can't delete", "give the operator's service account the right to delete persistentvolumeclaims"),
    (
        r"security context constraint",
        "set config.assignUsers: false in the operator's chart and no user in the template, or give the service account another SCC",
    ),
    (r"violates PodSecurity", "change the template's securityContext, or the namespace's label pod-security.kubernetes.io/enforce"),
    (
        r"exceeded quota|must specify (limits|requests)|(minimum|maximum) .* usage per",
        "raise the namespace's quota or limit range, or change the template's resources",
    ),
    (r"being terminated|namespaces? .* not found", "the namespace is being deleted, and the job with it"),
    (r"PriorityClass", "create the PriorityClass, or change spec.priorityClassName"),
    (r"RuntimeClass", "create the RuntimeClass, or change runtimeClassName in the template"),
    (r"service ?account", "create the service account, or change serviceAccountName in the template"),
    (r"webhook", "ask the owner of this admission webhook"),
    (r"too large|too long", "make the job's templates smaller"),
    (r"does not belong to this job", "give the job another name, or delete it if nothing needs it"),
)


def advice(rejected: RejectedWrite) -> str:
    """What a person can do about it."""
    for pattern, text in _ADVICE:
        if re.search(pattern, rejected.message, re.IGNORECASE):
            return text
    if rejected.code in (400, 422):
        return "fix the field in the template that it names"
    return "ask the cluster's administrators" if rejected.code < 500 else "check the API server and its admission webhooks"
