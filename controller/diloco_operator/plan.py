"""The whole desired change of one pass, as data. Pure: reconcile makes it, `operator.executor` carries it out.

The stages run in order and every action may be repeated:

1. `creates` and `certificates`, wave after wave, those of one wave concurrently; a wave is begun only if all before it succeeded. A name
   that is taken by an object of the same job is success; by a stranger it is an error. Certificates are made by
   `operator.certificate_writes` while others are written already; a pod is made after the Secret that holds its own.
2. `status`, one server-side apply, only if every create succeeded, so that status never tells of pods that nobody made. One that
   may wait is left, and all that follows it, to the next pass if that is due already and a write costs much.
3. `deletes`, concurrently, each with the uid it was decided on. What is gone already, or has another uid, is success. A pod is
   deleted only after its end is on record in status: a crash between the two leaves the pod, not a hole in the account.
4. `events`, best effort, beside the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.api.reasons import ConditionReason, EventReason
from diloco_operator.certificates.authority import Authority, Leaf
from diloco_operator.fleet.slices import Slice
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.placement.matching import SliceRequirements

WAVE_CONFIGURATION, WAVE_CERTIFICATES, WAVE_SYNCER, WAVE_LEARNERS = range(4)
"""An authority belongs to the configuration: it must be the stored one before anything is signed by it."""


@dataclass(frozen=True, slots=True)
class Create:
    resource: Resource
    obj: Obj
    wave: int = WAVE_CONFIGURATION
    """Not before everything of a lower wave has succeeded."""
    after: str = ""
    """Nor, if a Secret of this name is among the plan's certificates, before that is written."""
    fresh: bool = False
    """What is in it was made for this plan alone: an object of the same job under this name is not as good, but a reason to look again."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The write for an `IssueCertificates` whose Secret exists: a merge patch. uid and resourceVersion in its metadata bind it to the
    object that the plan was made from."""

    resource: Resource
    namespace: str
    name: str
    body: Obj = field(repr=False)
    wave: int = WAVE_CONFIGURATION


@dataclass(frozen=True, slots=True)
class IssueCertificates:
    """One Secret of the job in which certificates must be made: a new Secret, or one patch of it however many they are."""

    obj: Obj
    """The Secret without its data."""
    job_uid: str
    uid: str = ""
    version: str = ""
    """Of the Secret as it is; empty: there is none."""
    create_authority: bool = False
    """Make the job's authority itself. Comes before everything that it signs."""
    authority: Authority | None = field(default=None, repr=False)
    """Who signs; None: the one that this plan makes."""
    leaves: tuple[Leaf, ...] = ()
    drop: tuple[str, ...] = ()
    """Keys of certificates that nobody needs any more."""
    roots: tuple[str, ...] = field(default=(), repr=False)
    """Certificates of earlier authorities that are to be trusted a while longer, PEM."""
    wave: int = WAVE_CERTIFICATES


@dataclass(frozen=True, slots=True)
class Delete:
    resource: Resource
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None
    """None: the object's own terminationGracePeriodSeconds."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ApplyStatus:
    resource: Resource
    namespace: str
    name: str
    uid: str
    status: dict[str, Any]
    may_wait: bool = False
    """A later pass can tell all of this as well, from what is there then: every end that it puts on record can be read again."""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the job."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    unit: str = ""
    """The unit that it is about; "": the whole job."""

    @classmethod
    def of(cls, reason: ConditionReason | EventReason, message: str) -> Event:
        """Its type is the severity of the reason."""
        return cls(reason.severity.value, reason.value, message)


@dataclass(frozen=True, slots=True)
class UnitRestart:
    """An attempt of a unit ended, and it is to start again. For the count."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    creates: tuple[Create, ...] = ()
    certificates: tuple[IssueCertificates, ...] = ()
    """In the order of their waves."""
    status: ApplyStatus | None = None
    deletes: tuple[Delete, ...] = ()
    events: tuple[Event, ...] = ()
    restarts: tuple[UnitRestart, ...] = ()
    """What the status of this plan puts on record as restarts."""
    requeue_after: float | None = None
    """Seconds until the job must be looked at again although nothing changed; None: not before something changes."""
    demand: Mapping[SliceRequirements, int] = field(default_factory=dict)
    """Slices that units of the job found none of, and that scavengers should give back for them."""
    reclaimable: tuple[Slice, ...] = ()
    """Slices on which units of Scavenged pools are, those included that are about to leave."""
    reservations: frozenset[str] = frozenset()
    """Names of the nodes that the job holds from now on. The operator notes them in the inventory (`Inventory.set_reservations`)
    in the same breath as it called reconcile, before anything is awaited, so that two jobs never choose one host."""

    @property
    def empty(self) -> bool:
        return not (self.creates or self.certificates or self.status or self.deletes)
