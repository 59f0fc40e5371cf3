"""What Kueue says about a unit's quota, in the Workload that stands for the unit's pod group. Pure.

See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, MalformedField, fields, moment, objects, string, text

_CONDITION = "status.conditions[]"


@dataclass(frozen=True, slots=True)
class Workload:
    """What Kueue says about a pod group."""

    admitted_at: float | None
    """Since when the group has its quota, and its pods may go to nodes. None: it waits."""
    words: str
    """Why it waits, in Kueue's words. "": it does not wait, or Kueue has not said why."""


def project_workload(obj: Obj) -> Workload:
    """Project the raw Workload object. If its status cannot be read, `words` says so, and the group counts as waiting."""
    try:
        return _judge(obj)
    except MalformedField as error:
        return Workload(None, f"its Workload cannot be read: {error}")


def _judge(obj: Obj) -> Workload:
    status = fields(obj, "status")
    conditions = {string(condition, "type", _CONDITION): condition for condition in objects(status, "conditions", "status")}
    admitted, reserved = conditions.get("Admitted", {}), conditions.get("QuotaReserved", {})
    if admitted.get("status") == "True":
        return Workload(moment(admitted, "lastTransitionTime", _CONDITION) or 0.0, "")
    if reserved.get("status") == "True":  # admission checks come after the quota, such as that of a ProvisioningRequest
        return Workload(None, _checks(status) or text(admitted, "message", _CONDITION))
    return Workload(None, text(reserved, "message", _CONDITION))


def _checks(status: Fields) -> str:
    """Return the messages of the admission checks that are not ready."""
    pending = (check for check in objects(status, "admissionChecks", "status") if check.get("state") != "Ready")
    return "; ".join(filter(None, (text(check, "message", "status.admissionChecks[]") for check in pending)))
