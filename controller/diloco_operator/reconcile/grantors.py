"""Who grants nodes to delegated units: those whose pods name no node. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

import enum
from typing import Self

from diloco_operator.api.job import Pool, ProvisioningMode


class Grantor(enum.StrEnum):
    """Brings nodes for pods, or lets them go to nodes. The value stands on the pods (`names.ANNOTATION_GRANTOR`)."""

    asked: str
    """Who was asked, in words."""

    def __new__(cls, value: str, asked: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.asked = asked
        return member

    AUTOSCALER = "Autoscaler", "the autoscaler"

    @classmethod
    def of_pod(cls, annotation: str) -> Grantor | None:
        """By the annotation of a pod, which anyone may have written; None: the pod is no delegated one."""
        return next((each for each in cls if each.value == annotation), None)


_BY_MODE = {ProvisioningMode.AUTOSCALER: Grantor.AUTOSCALER}


def grantor_of(pool: Pool) -> Grantor | None:
    """Who brings nodes for units of the pool for which no slice is free; None: nobody."""
    return _BY_MODE.get(pool.provisioning.mode)
