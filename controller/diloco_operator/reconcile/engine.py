"""One pass over one job, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from diloco_operator.fleet.slices import Fleet
from diloco_operator.plan import Plan
from diloco_operator.reconcile.snapshot import Job, PodView, Snapshot


def reconcile(snapshot: Snapshot, now: datetime) -> Plan:
    """The whole desired change for this job. `now` must have a time zone. Pure: same arguments, same plan."""
    raise NotImplementedError


def holds(job: Job, pods: Sequence[PodView], fleet: Fleet) -> frozenset[str]:
    """Names of the nodes that a job holds by its status and its pods: for the inventory of an operator that has just started
    (call for every job before the first reconcile), and for a job that is gone while pods of it are still there."""
    raise NotImplementedError
