"""What each grantor needs before a unit may be asked for, and what it is asked with. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from diloco_operator.plan import Create
from diloco_operator.reconcile.children.learners import LearnerPods
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors import Grantor
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.quota import pod_group, still_there, without_kueue


class Asking(NamedTuple):
    """How one grantor is asked for a unit."""

    creates: Callable[[ReconcileContext, LearnerPods, UnitStatusRecord], list[Create]]
    """What to create for an attempt that begins: its pods, or what brings them."""
    unavailable: Callable[[ReconcileContext], str] = lambda _: ""
    """Why it cannot be asked for any unit of the job; "": it can."""
    waits_for: Callable[[ReconcileContext, UnitStatusRecord], str] = lambda _, __: ""
    """A pod of an earlier attempt that must end before; "": there is none."""


ASKING: Mapping[Grantor, Asking] = {
    Grantor.AUTOSCALER: Asking(lambda _, pods, record: pods.of_delegated(record, Grantor.AUTOSCALER)),
    Grantor.PROVISIONING_REQUEST: Asking(lambda _, pods, record: pods.of_request(record)),
    Grantor.KUEUE: Asking(
        lambda context, pods, record: pods.of_delegated(record, Grantor.KUEUE, pod_group(context, record)), without_kueue, still_there
    ),
}
