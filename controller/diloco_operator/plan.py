"""The whole desired change of one pass, as data. Pure: reconcile makes it, `kube.executor` carries it out.

The stages run in order and every action may be repeated:

1. `creates`, wave after wave, those of one wave concurrently; a wave is begun only if all before it succeeded. A name that is
   taken by an object of the same job is success; by a stranger it is an error.
2. `status`, one server-side apply, only if every create succeeded, so that status never tells of pods that nobody made.
3. `deletes`, concurrently, each with the uid it was decided on. What is gone already, or has another uid, is success. A pod is
   deleted only after its end is on record in status: a crash between the two leaves the pod, not a hole in the account.
4. `events`, best effort, beside the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.client import Obj, Resource


@dataclass(frozen=True, slots=True)
class Create:
    resource: Resource
    obj: Obj
    wave: int = 0
    """Not before every create of a lower wave has succeeded: configuration, then the syncer, then learners."""


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


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the job."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    creates: tuple[Create, ...] = ()
    status: ApplyStatus | None = None
    deletes: tuple[Delete, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until the job must be looked at again although nothing changed; None: not before something changes."""
    holds: frozenset[str] = frozenset()
    """Names of the nodes that the job holds from now on. The operator notes them in the inventory (`Inventory.set_holds`)
    in the same breath as it called reconcile, before anything is awaited, so that two jobs never choose one host."""

    @property
    def empty(self) -> bool:
        return not (self.creates or self.status or self.deletes)
