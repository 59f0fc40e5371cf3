"""All changes that one reconcile wants, as data. Pure: reconcile makes the plan, `operator.executor` carries it out.

The stages run in this order, and every action may be repeated:

0. `patches`, concurrently; each is bound to the object that it was decided on. Nothing follows if one of them fails.
1. `creates` and `certificates`, wave after wave. The actions of one wave run concurrently; a wave begins only if all earlier ones
   succeeded. If the name exists already, an object of the same job is success, and a foreign object is an error. While
   `operator.certificate_writes` makes certificates, earlier ones are written. A pod is created after the Secret with its certificate.
2. `status`, one PUT, only if every create succeeded: status never shows pods that do not exist. A status that may wait is
   left to the next reconcile, with everything after it, if that is due already and the write is expensive.
3. `deletes`, concurrently, each with the uid that the decision was made for. An object that is gone or has another uid is success. A pod is
   deleted only after its end is recorded in status: a crash between the two leaves the pod, and no end is lost.
4. `events`, best effort, in the background.
5. `pod_checks`, concurrently, each a dry run that stores nothing. What the API server answers is observed by the next reconcile.

See docs/decisions/0130-what-occupies-a-node.md. See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.api.names import PODS
from diloco_operator.api.reasons import ConditionReason, EventReason
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.fleet.admission import KnownAdmission
from diloco_operator.fleet.occupancy import Reservations
from diloco_operator.fleet.resources import takes_accelerators
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.fields import fields
from diloco_operator.placement import JobRequest

WAVE_CONFIGURATION, WAVE_CERTIFICATES, WAVE_SYNCER, WAVE_LEARNERS = range(4)
"""The authority belongs to the configuration wave: it must be stored before it signs anything."""


@dataclass(frozen=True, slots=True)
class Create:
    resource: Resource
    obj: Obj
    wave: int = WAVE_CONFIGURATION
    """Created after every action of the lower waves succeeded."""
    after: str = ""
    """Also created after the Secret of this name, if that is among the plan's certificates."""
    fresh: bool = False
    """Its content was made for this plan alone. If the job already has an object of this name, the job must be reconciled again."""

    def may_have_made(self, existing: Obj, job_uid: str) -> bool:
        """Return whether an earlier write for the job can have made `existing`, the object that has the name. A pod without accelerators in
        place of one that requests some was made by others: with it a unit would hold accelerators that no quota counts."""
        if not any(owner.get("uid") == job_uid for owner in existing["metadata"].get("ownerReferences", ())):
            return False
        return self.resource != PODS or takes_accelerators(fields(existing, "spec")) or not takes_accelerators(fields(self.obj, "spec"))


@dataclass(frozen=True, slots=True)
class PodCheck:
    """Ask the API server by a dry run whether it would admit a pod of the pool now."""

    pool: str
    pod: Obj = field(repr=False)


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch, of a Secret whose certificates are issued, of the volume claim, or of a pod. uid and resourceVersion in its metadata
    bind it to the object that the plan was made from."""

    resource: Resource
    namespace: str
    name: str
    body: Obj = field(repr=False)
    wave: int = WAVE_CONFIGURATION
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class IssueCertificates:
    """Issue certificates in one Secret of the job: one create or one patch, however many certificates there are."""

    obj: Obj
    """The Secret without its data."""
    job_uid: str
    uid: str = ""
    version: str = ""
    """uid and resourceVersion of the existing Secret, empty if there is none."""
    create_authority: bool = False
    """Create the job's authority itself, before everything that it signs."""
    authority: Authority | None = field(default=None, repr=False)
    """The authority that signs. None for the one that this plan creates."""
    leaves: tuple[Leaf, ...] = ()
    drop: tuple[str, ...] = ()
    """Keys of certificates that are no longer needed."""
    roots: tuple[str, ...] = field(default=(), repr=False)
    """Certificates of earlier authorities that stay trusted for a while, PEM."""
    wave: int = WAVE_CERTIFICATES


@dataclass(frozen=True, slots=True)
class Delete:
    resource: Resource
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None
    """None for the object's own terminationGracePeriodSeconds."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceStatus:
    """Replace the whole status of the job. The new one also contains what others have added and must stay."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    status: dict[str, Any]
    may_wait: bool = False
    """A later reconcile can write all of this too: every end that this status records can still be read then."""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the job."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    unit: str = ""
    """The unit that the event is about, "" for the whole job."""
    unit_message: str = ""
    """The message without the name of the unit."""

    @classmethod
    def of(cls, reason: ConditionReason | EventReason, message: str) -> Event:
        """Make an Event; its type is the severity of the reason."""
        return cls(reason.severity.value, reason.value, message)

    @classmethod
    def about(cls, unit: str, reason: EventReason, unit_message: str) -> Event:
        return cls(reason.severity.value, reason.value, f"{unit}: {unit_message}" if unit_message else unit, unit, unit_message)


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A part of the job as it should be in another cluster."""

    cluster: str
    secret: str
    """Name of the Secret of this cluster with its certificates."""
    secret_version: str
    job_file: str
    manifest: Obj = field(repr=False)
    """Its DiLoCoJob without a namespace."""
    may_be_made: bool
    """False: it is only changed where it exists."""


@dataclass(frozen=True, slots=True)
class UnitRestart:
    """An attempt of a unit ended, and the unit will start again. For the metrics."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    patches: tuple[Patch, ...] = ()
    """Patches of the volume claim and of pods. Secrets are patched from `certificates`."""
    creates: tuple[Create, ...] = ()
    certificates: tuple[IssueCertificates, ...] = ()
    """In the order of their waves."""
    status: ReplaceStatus | None = None
    deletes: tuple[Delete, ...] = ()
    events: tuple[Event, ...] = ()
    pod_checks: tuple[PodCheck, ...] = ()
    parts: tuple[WantedPart, ...] | None = None
    """All parts in other clusters. They are made beside the plan, as these clusters may not answer. None: they stay as they are."""
    restarts: tuple[UnitRestart, ...] = ()
    """The restarts that the status of this plan records."""
    slices_given_up: tuple[UnitRestart, ...] = ()
    """Units that give their slice up by the status of this plan, and why. That is no failure."""
    requeue_after: float | None = None
    """Seconds until the job must be reconciled again although nothing changed. None if it need not be."""
    request: JobRequest | None = None
    """What the job has and wants now, for the allotment between jobs. None if it keeps what it reserves and wants nothing."""
    reservations: Reservations = Reservations()  # noqa: RUF009 -- immutable
    """The nodes that the job reserves from now on. The operator writes them to the inventory (`Inventory.set_reservations`) right
    after the decision and before it awaits anything, so that two jobs never choose the same host."""

    admissions: Mapping[str, KnownAdmission] = field(default_factory=dict)
    """What the API server makes of the pods of each pool. The next reconcile gets it back (`ObservedState.admissions`)."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Pods with the job's label that take part in nothing, since the operator cannot have made them: the reason by the pod's name."""

    @property
    def empty(self) -> bool:
        return not (self.patches or self.creates or self.certificates or self.status or self.deletes or self.pod_checks)
