"""The interface of grantors: what is particular to each way in which the pods of a delegated unit get nodes. Pure.

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
    """What a grantor gives, and the reasons of those that wait for it."""

    words: str
    verb: str
    """That goes with `words`."""
    unit: UnitReason
    pool: PoolReason
    job: PlacedReason


NODES = Grant("nodes", "were", UnitReason.WAITING_FOR_NODES, PoolReason.WAITING_FOR_NODES, PlacedReason.WAITING_FOR_NODES)
QUOTA = Grant("quota", "was", UnitReason.WAITING_FOR_QUOTA, PoolReason.WAITING_FOR_QUOTA, PlacedReason.WAITING_FOR_QUOTA)


@dataclass(frozen=True, slots=True)
class Watched[T]:
    """A kind of object by which a grantor answers, under the name of a pod group. It is followed wherever the API server has it."""

    resource: Resource
    project: Callable[[Obj], T]
    """From the raw object. Raises `MalformedField`."""
    verbs: str
    """That the operator needs on it, beside list and watch."""
    purpose: str
    """For whom, in the table of rights."""
    without: str
    """For the log: what does not work while it cannot be read."""

    def among(self, children: Children) -> Mapping[str, T]:
        """Return those of the job, by name."""
        return cast("Mapping[str, T]", children.granted.get(self.resource, {}))


class PodPlace(NamedTuple):
    """What of a pod depends on where it may run."""

    affinity: Obj
    annotations: Mapping[str, str]
    labels: Mapping[str, str] = {}
    selector: Mapping[str, str] = {}
    """Labels of its node, beside those that the template selects."""
    gates: Sequence[Obj] = ()
    """Scheduling gates."""
    patient: bool = False
    """It must wait for room: no scheduler may end other pods to make room for it."""
    claims: bool = False
    """It claims its accelerators: a device plugin offers none there."""

    def with_annotations(self, more: Mapping[str, str]) -> PodPlace:
        return self._replace(annotations={**self.annotations, **more})


class PodWait(NamedTuple):
    """What a pod that has no node yet waits for."""

    waits: UnitReason
    what: str
    began: float | None
    """From when on provisioning.timeout counts; None: it waits for as long as it takes."""
    speaker: str = "it"
    """Who brings nodes, for the words of an autoscaler about the pod."""


class Grantor(ABC):
    """Brings nodes for the pods of a unit, or lets these go to nodes.

    A unit with a grantor is *delegated*: its pods name no node. What is asked for and withdrawn, the time-outs and the slice that a unit
    got are the same for all (`units.delegation`). An adapter says the rest, and nothing outside this package asks which one it is. It has
    no state: what it has asked for, and what came of it, follows from the objects that are there. It may be called again at any time.

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
    """Stands on the pods (`names.ANNOTATION_GRANTOR`)."""
    asked: ClassVar[str]
    """Who is asked, in words."""
    gives: ClassVar[Grant]
    chooses: ClassVar[bool] = False
    """It chooses the place of every unit of a job, whether a slice is free or not: placement gives these none, and takes none from them."""
    reads_priority: ClassVar[bool] = False
    """It reads the PriorityClass of the pods. With another one they have none: nothing has chosen a slice for them, so with a class that
    pre-empts they would end the units of other jobs."""
    missing_reason: ClassVar[PlacedReason] = PlacedReason.INSUFFICIENT_CAPACITY
    """Reason of a job whose places it chooses, while it is not there."""
    watches: ClassVar[Sequence[Watched[Any]]] = ()
    evictions: ClassVar[Sequence[str]] = ()
    """Types of the conditions by which it takes pods away."""

    # --- whom it is for -----------------------------------------------------------------------------------------------
    @abstractmethod
    def grants(self, spec: Spec, pool: Pool) -> bool:
        """Return whether it is asked for units of the pool. The first in the registry that says so is."""

    def missing(self, without: Mapping[Resource, str]) -> str:
        """Return why it cannot be asked, and what to do; "": it can. `without`: what cannot be read, and why."""
        return ""

    # --- what must be created -----------------------------------------------------------------------------------------
    def blocker(self, context: ReconcileContext, record: UnitStatusRecord) -> str:
        """Return a pod of an earlier attempt that must end before it may be asked for the unit; "": there is none."""
        return ""

    def places(self, context: ReconcileContext, record: UnitStatusRecord, places: Sequence[PodPlace]) -> Sequence[PodPlace]:
        """Return the places of the pods of an attempt, with what it needs on them."""
        return places

    # --- how its answer is read ---------------------------------------------------------------------------------------
    def was_asked(self, at: float) -> str:
        """Say when it was asked for what, which is all there is to say as long as it has not answered."""
        return f"asked {self.asked} for {self.gives.words} at {format_timestamp(at)}"

    def pod_wait(self, context: ReconcileContext, pod: PodView, startup: PodStartup, since: float) -> PodWait:
        """Return what a pod waits for that has no node, of an attempt that began at `since`."""
        began = between(since, pod.created, context.now, context.now)
        return PodWait(self.gives.unit, self.was_asked(began), began)

    # --- its marks on pods --------------------------------------------------------------------------------------------
    def group(self, meta: Fields, labels: Fields, annotations: Fields) -> PodGroup | None:
        """Return the pod group of a pod, by its metadata; None: it is in none of this grantor. Raises `MalformedField`."""
        return None

    def holds(self, pod: PodView) -> bool:
        """Return whether it counts the pod until the pod's status says that it has ended."""
        return False

    # --- what is patched ----------------------------------------------------------------------------------------------
    def patches(self, context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Sequence[Patch]:
        """Return what it must be told, given the records as they will be once this plan's status is written; none: the job is over."""
        return ()

    def orphan_patches(
        self, pods: Sequence[PodView], unreachable: Callable[[str], bool], rejected: Callable[[WriteKey], bool]
    ) -> Sequence[Patch]:
        """Return what it must be told of the pods of a job that is gone. `unreachable`: whether a node does not answer; `rejected`: whether
        a write must not be tried now."""
        return ()
