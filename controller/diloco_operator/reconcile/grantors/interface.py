"""The interface of grantors: what differs between the ways in which the pods of a delegated unit get nodes. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from diloco_operator.api.reasons import PlacedReason, PoolReason, UnitReason
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.fields import Fields
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import Patch
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.children import Children
from diloco_operator.reconcile.observe.clocks import between
from diloco_operator.reconcile.observe.pod_marks import PodGroup
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.rejected_writes import WriteKey
from diloco_operator.reconcile.observe.startup import PodStartup
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord


@dataclass(frozen=True, slots=True)
class Grant:
    """What a grantor gives, and the reasons of the unit, the pool and the job that wait for it."""

    words: str
    verb: str
    """"was" or "were", as `words` needs it."""
    unit: UnitReason
    pool: PoolReason
    job: PlacedReason


NODES = Grant("nodes", "were", UnitReason.WAITING_FOR_NODES, PoolReason.WAITING_FOR_NODES, PlacedReason.WAITING_FOR_NODES)
QUOTA = Grant("quota", "was", UnitReason.WAITING_FOR_QUOTA, PoolReason.WAITING_FOR_QUOTA, PlacedReason.WAITING_FOR_QUOTA)


@dataclass(frozen=True, slots=True)
class Watched[T]:
    """A kind of object with which a grantor answers, named as the pod group. The operator watches it if the API server has it."""

    resource: Resource
    project: Callable[[Obj], T]
    """Reads the raw object. Raises `MalformedField`."""
    verbs: str
    """Verbs that the operator needs on it, besides list and watch."""
    purpose: str
    """What the operator reads it for, in the table of rights."""
    without: str
    """What does not work while it cannot be read, for the log."""

    def among(self, children: Children) -> Mapping[str, T]:
        """Return the job's objects of this kind, by name."""
        return cast("Mapping[str, T]", children.granted.get(self.resource, {}))


class PodPlace(NamedTuple):
    """The fields of a pod that depend on where it may run."""

    affinity: Obj
    annotations: Mapping[str, str]
    labels: Mapping[str, str] = {}
    selector: Mapping[str, str] = {}
    """Labels that its node must have, besides those that the template selects."""
    gates: Sequence[Obj] = ()
    """Scheduling gates."""
    never_preempts: bool = False
    """It waits until there is room: no scheduler may end other pods for it."""
    claims: bool = False
    """It gets its accelerators by a ResourceClaim, because no device plugin offers any there."""

    def with_annotations(self, more: Mapping[str, str]) -> PodPlace:
        return self._replace(annotations={**self.annotations, **more})


class PodWait(NamedTuple):
    """What a pod without a node waits for."""

    waits: UnitReason
    what: str
    began: float | None
    """When provisioning.timeout begins to count. None: the pod may wait without limit."""
    speaker: str = "it"
    """Who brings nodes, to introduce what an autoscaler says about the pod."""


class Grantor(ABC):
    """Brings nodes for the pods of a unit, or lets the pods go to nodes.

    A unit with a grantor is *delegated*: its pods name no node. Which units ask, which are withdrawn, time-outs, and how the slice is found
    are the same for all grantors (`units.delegation`). The adapter says the rest. It has no state: what was asked for, and what came of it,
    follows from the objects that exist, so it may be called again at any time.

    To add one, subclass it, override what is not as the default says, and add it to `registry.GRANTORS`:

        class Permit(Grantor):
            name, asked, gives = "Permit", "the owner of the cluster", QUOTA
            watches = (PERMITS,)

            def grants(self, spec, pool):
                return pool.provisioning.mode is ProvisioningMode.PERMIT

            def places(self, context, record, places):
                return [place.with_annotations(_wanted_permit(context, record)) for place in places]

            def pod_wait(self, context, pod, startup, since):
                ...
    """

    name: ClassVar[str]
    """The value of the pods' annotation `names.ANNOTATION_GRANTOR`."""
    asked: ClassVar[str]
    """What messages call the grantor, such as "the autoscaler"."""
    gives: ClassVar[Grant]
    chooses: ClassVar[bool] = False
    """It chooses the place of every unit of a job, even if a slice is free: placement gives these units no slices, and takes none from
    them."""
    reads_priority: ClassVar[bool] = False
    """It reads the pods' PriorityClass. If it does not, delegated pods have none: no slice was chosen for them, so a class that
    pre-empts would let them end units of other jobs."""
    missing_reason: ClassVar[PlacedReason] = PlacedReason.INSUFFICIENT_CAPACITY
    """Reason of a job whose places it chooses, while the grantor is missing."""
    watches: ClassVar[Sequence[Watched[Any]]] = ()
    evictions: ClassVar[Sequence[str]] = ()
    """Types of the pod conditions with which it takes pods away."""

    # --- whom it is for -----------------------------------------------------------------------------------------------
    @abstractmethod
    def grants(self, spec: Spec, pool: Pool) -> bool:
        """Return whether it brings nodes for units of the pool. The first grantor in the registry that says so is asked."""

    def missing(self, unreadable: Mapping[Resource, str]) -> str:
        """Return why it cannot be asked, and what to do about that. "" if it can. `unreadable`: resource that cannot be read -> why."""
        return ""

    # --- what must be created -----------------------------------------------------------------------------------------
    def blocker(self, context: ReconcileContext, record: UnitStatusRecord) -> str:
        """Return a pod of an earlier attempt that must end before the grantor may be asked for the unit. "" if there is none."""
        return ""

    def places(self, context: ReconcileContext, record: UnitStatusRecord, places: Sequence[PodPlace]) -> Sequence[PodPlace]:
        """Add what the grantor needs to the pods of an attempt."""
        return places

    # --- how its answer is read ---------------------------------------------------------------------------------------
    def was_asked(self, at: float) -> str:
        """Say what it was asked for, and when: the message until it answers."""
        return f"asked {self.asked} for {self.gives.words} at {format_timestamp(at)}"

    def pod_wait(self, context: ReconcileContext, pod: PodView, startup: PodStartup, since: float) -> PodWait:
        """Return what a pod without a node waits for. `since`: when its attempt began."""
        began = between(since, pod.created, context.now, context.now)
        return PodWait(self.gives.unit, self.was_asked(began), began)

    # --- its marks on pods --------------------------------------------------------------------------------------------
    def group(self, meta: Fields, labels: Fields, annotations: Fields) -> PodGroup | None:
        """Return the pod's group, by its metadata. None if this grantor has it in no group. Raises `MalformedField`."""
        return None

    def holds(self, pod: PodView) -> bool:
        """Return whether the grantor counts the pod now, and until the pod's status says that it has ended."""
        return False

    # --- what is patched ----------------------------------------------------------------------------------------------
    def patches(self, context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[Patch]:
        """Return what the grantor must be told about a job. `records`: as they will be once this plan's status is written, or none if the
        job is over."""
        return ()

    def orphan_patches(
        self, pods: Sequence[PodView], unreachable: Callable[[str], bool], rejected: Callable[[WriteKey], bool]
    ) -> Sequence[Patch]:
        """Return what the grantor must be told about pods of a job that is gone.

        Args:
            unreachable: whether a node does not answer.
            rejected: whether a write must not be tried now.
        """
        return ()
