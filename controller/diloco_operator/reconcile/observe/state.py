"""What one reconcile reads: the job, its pods and children, the fleet, the syncer's report. Plain data.

The operator keeps the parts in its caches (`observe.job`, `observe.pods`, `observe.children`) and assembles an `ObservedState` for each
reconcile. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from diloco_operator.allotment import NOTHING_ALLOTTED, Allotted
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.fleet.slices import Fleet
from diloco_operator.kube.client import Resource
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.observe.children import Children
from diloco_operator.reconcile.observe.job import Job
from diloco_operator.reconcile.observe.part_view import PartView
from diloco_operator.reconcile.observe.pod_answers import PodAnswer
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, WriteKey
from diloco_operator.report import Report, ReportFault


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that a reconcile decides by, except the time."""

    job: Job
    fleet: Fleet
    """The fleet as this job may use it: only slices that the allotment has granted to the job are free in it. It does not change during a
    reconcile; `Plan.reservations` goes into the inventory right after."""
    config: OperatorConfig
    pods: tuple[PodView, ...] = ()
    """All pods in the job's namespace with its label."""
    children: Children = field(default_factory=Children)
    rejected_writes: Mapping[WriteKey, RejectedWrite] = field(default_factory=dict)
    """Objects of the job whose last creation or change the API server rejected."""
    pod_answers: Mapping[str, PodAnswer] = field(default_factory=dict)
    """Pool -> the API server's last answer about its pods, to a dry run or to a create."""
    admissions: Mapping[str, KnownAdmission] = field(default_factory=dict)
    """Pool -> `Plan.admissions` of the last plan, with what dry runs have answered since."""
    allotted: Allotted = NOTHING_ALLOTTED
    """What the job gets and gives, by what it had and wanted last."""
    default_class: bool = False
    """In this namespace, the last claim seen of a job that names no StorageClass got the default one. False if it got none, or no claim was
    seen. Claims of other namespaces do not count: a user there could give one a class by hand, and learners here would start early."""
    slices_since: Mapping[str, float] = field(default_factory=dict)
    """Unit -> when it got its slice; 0 if before this operator started. A unit that has just got its slice is absent."""
    parts: Mapping[str, PartView] = field(default_factory=dict)
    """Cluster -> the part that this operator has made there, or wants to make."""
    missing_rights: tuple[str, ...] = ()
    """What the operator may not read in the job's namespace, in words. What is observed may then be old or incomplete."""
    unreadable: Mapping[Resource, str] = field(default_factory=dict)
    """Resource that a grantor of nodes needs but that cannot be read in the job's namespace -> why."""
    grantor_events: Mapping[str, str] = field(default_factory=dict)
    """Name of a pod that waits for its node -> what an autoscaler said last about the pod."""
    priority: int = 0
    """The value of the job's PriorityClass."""
    non_preempting: Collection[str] = frozenset()
    """Names of the PriorityClasses whose pods never pre-empt others."""
    listening_since: float = 0.0
    """Since when this operator has listened to the syncer's reports."""
    report: Report | None = None
    """The last report; its `received_at` is by the operator's clock. None if the syncer has not reported yet."""
    report_fault: ReportFault | None = None
    """Why the operator cannot read the syncer's reports, and asks for them only now and then. None if no fault is known."""
