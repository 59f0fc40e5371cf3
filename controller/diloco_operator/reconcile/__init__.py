"""PURE: `judge(observed, now)`, then `Judged.plan(observed)`. They decide on a job and its learner units from the present state, never
from past events.

`engine` shows the whole reconcile. It uses `observe` (what exists), `grantors` (who brings nodes), `children` (the objects of a job),
`units` (the learner units) and `status` (conditions, status, Events). `context` is the job at one moment.

The operator calls it like this, with nothing awaited between the lines:

    judged = judge(observed, now)
    allotment.update(judged.request)
    plan = judged.plan(observed with what the allotment says now)
    allotment.update(plan.request)
    inventory.set_reservations(observed.job.key, plan.reservations)
    queue the plan for the executor
"""

from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.engine import Judged, first_request, judge, reconcile
from diloco_operator.reconcile.grantors.registry import project_pod
from diloco_operator.reconcile.observe.children import Child, Children, project_child
from diloco_operator.reconcile.observe.job import Job, parse_job
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.state import ObservedState
from diloco_operator.reconcile.units.reservations import reservations

__all__ = [
    "Child",
    "Children",
    "Job",
    "Judged",
    "ObservedState",
    "OperatorConfig",
    "PodView",
    "first_request",
    "judge",
    "parse_job",
    "project_child",
    "project_pod",
    "reconcile",
    "reservations",
]
