"""Conditions before they go into the status: what is true now, without times. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.reasons import ConditionReason
from diloco_operator.kube.timestamps import format_timestamp


@dataclass(frozen=True, slots=True)
class Statement:
    """A condition without its times."""

    reason: ConditionReason
    message: str = ""

    @property
    def status(self) -> str:
        return self.reason.status


type Statements = dict[ConditionType, Statement]


def merge(previous: Sequence[Mapping[str, Any]], now_true: Statements, generation: int, now: float) -> list[dict[str, Any]]:
    """Return `status.conditions`, in the order of `ConditionType`. A condition without a statement stays as it was; lastTransitionTime
    moves only when a status changes."""
    before = {condition["type"]: condition for condition in previous}
    conditions: list[dict[str, Any]] = []
    for kind in ConditionType:
        statement = now_true.get(kind)
        old = before.get(kind.value)
        if statement is None:
            if old is not None:
                conditions.append(dict(old))
            continue
        same = old is not None and old.get("status") == statement.status
        conditions.append(
            {
                "type": kind.value,
                "status": statement.status,
                "reason": statement.reason.value,
                "message": statement.message,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else format_timestamp(now),
            }
        )
    return conditions
