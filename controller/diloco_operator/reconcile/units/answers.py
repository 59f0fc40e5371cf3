"""What came of what was asked for units that wait, and the pods of those whose nodes were granted. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diloco_operator.plan import Create
from diloco_operator.reconcile.children.learners import LearnerPods
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors import registry
from diloco_operator.reconcile.grantors.interface import Answer
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.start_waits import all_bound
from diloco_operator.reconcile.units.states import State, state_of


def read_answer(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> Answer | None:
    """Return the answer for a unit that waits, with `pods` those of its attempt; None: there is nothing more to say, and its pods are
    looked at."""
    return None if all_bound(pods) else registry.read_answer(context, record, pods)


def granted_pods(context: ReconcileContext, pods: LearnerPods, records: Mapping[str, UnitStatusRecord]) -> list[Create]:
    """Return the pods of units whose nodes are there, but for those that exist: a create may have failed, or an operator died."""
    creates: list[Create] = []
    for record in records.values():
        mine = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
        if state_of(record) is not State.WAITING_FOR_GRANTOR or not context.up_to_date(record):
            continue
        answer = read_answer(context, record, mine)
        grantor = registry.grantor_of(context.spec, context.pools[record.pool])
        if answer is not None and answer.granted and grantor is not None:
            there = {pod.name for pod in mine}
            creates += [create for create in pods.of_delegated(record, grantor) if create.obj["metadata"]["name"] not in there]
    return creates
