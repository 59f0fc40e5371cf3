"""PURE: `reconcile(observed, now) -> Plan`. The life of a job and of its learner units, decided from what is, never from what happened.

The operator calls it like this, with nothing awaited between the three lines:

    plan = reconcile(observed, now)
    inventory.set_reservations(observed.job.key, plan.reservations)
    queue the plan for the executor
"""

from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.engine import reconcile
from diloco_operator.reconcile.observe.state import Child, Children, Job, ObservedState, PodView, parse_job, project_child, project_pod
from diloco_operator.reconcile.units.reservations import reservations

__all__ = [
    "Child",
    "Children",
    "Job",
    "ObservedState",
    "OperatorConfig",
    "PodView",
    "parse_job",
    "project_child",
    "project_pod",
    "reconcile",
    "reservations",
]
