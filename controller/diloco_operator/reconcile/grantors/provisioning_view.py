"""A ProvisioningRequest (autoscaling.x-k8s.io/v1) as reconcile reads it: what its conditions together say. Pure.

See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import (
    Fields,
    MalformedField,
    controller_uid,
    fields,
    moment,
    needed_string,
    objects,
    string,
    strings,
    text,
)

_SHOWN = 3
"""So many conditions of types that only their writer knows are shown."""


class RequestState(enum.Enum):
    """What a request has come to."""

    WAITING = "waiting"
    """Asked for, with or without a word from the autoscaler."""
    PROVISIONED = "provisioned"
    """The nodes are there, and are kept for the pods for a while."""
    EXPIRED = "expired"
    """The nodes are kept no longer: pods that are not bound to them may find others there."""
    REVOKED = "revoked"
    """The nodes are taken away."""
    FAILED = "failed"
    """There will be no nodes."""
    NONSENSE = "nonsense"
    """Its conditions contradict each other, or cannot be read."""


@dataclass(frozen=True, slots=True)
class RequestView:
    name: str
    uid: str
    owner: str
    """uid of the job that owns it."""
    unit: str
    attempt: int
    """By the labels; another's request may have neither."""
    created: float
    deleting: bool
    class_name: str
    parameters: Mapping[str, str]
    """What it asks for beside the pods, which follow from the attempt."""
    state: RequestState
    since: float
    """When it came into this state by its own account; seconds since the epoch."""
    words: str
    """What the autoscaler says: `<condition>=<status>: <reason>: <message>`; "": nothing yet."""
    problem: str = ""
    """What of its status is nonsense."""


def project_request(obj: Obj) -> RequestView:
    """Project the raw object. Raises `MalformedField` for wrong metadata. Whatever is wrong with the status becomes `problem`: the object
    is there, and must not be asked for again."""
    meta = fields(obj, "metadata")
    labels = fields(meta, "labels", "metadata")
    created = moment(meta, "creationTimestamp", "metadata") or 0.0
    problem = ""
    try:
        conditions = _conditions(obj)
        state, since, words = _judge(conditions, created)
    except MalformedField as error:
        state, since, words, problem = RequestState.NONSENSE, created, "", str(error)
    if state is RequestState.NONSENSE and not problem:
        problem = f"its conditions contradict each other: {words}"
    spec = fields(obj, "spec")
    attempt = string(labels, names.LABEL_ATTEMPT, "metadata.labels")
    return RequestView(
        name=needed_string(meta, "name", "metadata"),
        uid=string(meta, "uid", "metadata"),
        owner=controller_uid(meta),
        unit=string(labels, names.LABEL_UNIT, "metadata.labels"),
        attempt=int(attempt) if attempt.isascii() and attempt.isdecimal() and len(attempt) < 10 else -1,
        created=created,
        deleting=bool(meta.get("deletionTimestamp")),
        class_name=string(spec, "provisioningClassName", "spec"),
        parameters=strings(spec, "parameters", "spec"),
        state=state,
        since=since,
        words=words,
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class _Condition:
    type: str
    status: str
    at: float | None
    words: str

    @property
    def true(self) -> bool:
        return self.status == "True"


def _conditions(obj: Obj) -> Mapping[str, _Condition]:
    found = objects(fields(obj, "status"), "conditions", "status")
    return {condition.type: condition for condition in map(_condition, found)}


def _condition(raw: Fields) -> _Condition:
    at = "status.conditions[]"
    kind, status = needed_string(raw, "type", at), string(raw, "status", at)
    said = ": ".join(each for each in (text(raw, "reason", at), text(raw, "message", at)) if each)
    return _Condition(kind, status, moment(raw, "lastTransitionTime", at), f"{kind}={status}" + (f": {said}" if said else ""))


_KNOWN = ("Accepted", "Provisioned", "BookingExpired", "CapacityRevoked", "Failed")


def _judge(conditions: Mapping[str, _Condition], created: float) -> tuple[RequestState, float, str]:
    """Return state, since when, and the words that say so. What ends a request outweighs what went before."""
    true = {kind for kind in _KNOWN if (found := conditions.get(kind)) is not None and found.true}
    if {"Provisioned", "Failed"} <= true:
        both = (conditions["Provisioned"], conditions["Failed"])
        return RequestState.NONSENSE, _latest(both, created), "; ".join(each.words for each in both)
    for kind, state in (
        ("Failed", RequestState.FAILED),
        ("CapacityRevoked", RequestState.REVOKED),
        ("BookingExpired", RequestState.EXPIRED),
        ("Provisioned", RequestState.PROVISIONED),
    ):
        if kind in true:
            return state, _latest([conditions[kind]], created), conditions[kind].words
    said = [conditions[kind] for kind in ("Accepted", "Provisioned", "Failed") if kind in conditions]
    said = said or [each for kind, each in conditions.items() if kind not in _KNOWN][:_SHOWN]
    return RequestState.WAITING, created, "; ".join(each.words for each in said)


def _latest(conditions: Iterable[_Condition], created: float) -> float:
    return max((each.at for each in conditions if each.at is not None), default=created)
