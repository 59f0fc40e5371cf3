"""The client protocol: the verbs of the Kubernetes API that the operator uses, on plain JSON objects.

`kube.memory.MemoryApi` and `kube.rest.RestClient` implement it; tests/kube holds both to one contract.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

type Obj = dict[str, Any]
"""A Kubernetes object as JSON. What a client returns is the caller's own copy."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API serves it."""

    group: str
    """"" for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class EventType(enum.StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: EventType
    object: Obj
    """For BOOKMARK only kind, apiVersion and metadata.resourceVersion are set."""


@dataclass(frozen=True, slots=True)
class ObjList:
    items: list[Obj]
    resource_version: str
    continue_token: str = ""
    """Not empty: more pages follow. A token outlived by compaction is refused with `Gone`."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One wrong field of an `Invalid` object."""

    field: str
    """Path as Kubernetes writes it: `spec.pools[0].topology`."""
    message: str


@dataclass
class ApiError(Exception):
    """What the API server answered, as in a Kubernetes Status object."""

    code: int
    reason: str
    message: str
    causes: list[Cause] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.reason} ({self.code}): {self.message}"


class NotFound(ApiError):
    """404: no such object, no such kind, or no such namespace to create in."""


class Forbidden(ApiError):
    """403: for instance creating in a namespace that is being deleted."""


class AlreadyExists(ApiError):
    """409 on create."""


class Conflict(ApiError):
    """409: the resourceVersion or a precondition did not hold, or an apply met fields of another manager."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is older than what the server still knows. List again."""


class Invalid(ApiError):
    """422: schema, CEL rule or immutability; `causes` names every field."""


class BadRequest(ApiError):
    """400."""


class Unavailable(ApiError):
    """503 or no connection: nothing is known of whether the request was carried out. Try again."""


class PatchType(enum.StrEnum):
    MERGE = "application/merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client(Protocol):
    """Errors are `ApiError`s. `namespace` is "" for cluster-scoped objects and, in list and watch, for all namespaces.

    Selectors are in Kubernetes' string form: labels `a=b,c!=d,e in (x,y),f,!g`; fields `metadata.name=x`, `spec.nodeName=n`.
    """

    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        """`subresource`: "", "status" (the whole object) or "scale" (an autoscaling/v1 Scale)."""
        ...

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> ObjList: ...

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float,
        allow_bookmarks: bool = True,
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, in order; "" or "0": what exists as ADDED first. Ends after `timeout_seconds`.

        An object that a change takes out of the selectors arrives as DELETED. Raises `Gone` when that version is compacted.
        Bookmarks come about once a minute and 2 s before the end, but only where the server knows of a version newer than
        `resource_version`: a watch of something that nobody changes may well be silent from beginning to end.
        """
        ...

    async def create(self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False) -> Obj:
        """Where apiVersion or kind are missing the client fills them in; so it does in `update` and an apply.

        `metadata_only`, here and in `patch`: the answer need not have more of the object than its metadata. What comes back is a
        meta.k8s.io/v1 PartialObjectMetadata then, which is half the work of the answer for both sides.
        """
        ...

    async def update(self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "") -> Obj:
        """Replace. With metadata.resourceVersion set it must be the current one, else `Conflict`; custom objects need it set.

        `subresource`: "", "status" (all but status is ignored) or "scale" (`obj` is a Scale).
        """
        ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Obj,
        *,
        type: PatchType,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        metadata_only: bool = False,
    ) -> Obj:
        """Merge patch, or server-side apply (which creates what does not exist, except through a subresource).

        An apply needs `field_manager`. metadata.resourceVersion in a patch is a precondition (`Conflict`). So is metadata.uid
        (`Invalid`, or `Conflict` where there is no object), but not through the status of a custom resource: there it is ignored.

        What an apply no longer mentions is removed. What it mentions as empty, after it had content of this manager's, is removed
        too if it is a list; a map becomes null, which a custom resource's schema refuses (`Invalid`): leave it out instead.
        """
        ...

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> None:
        """`uid` and `resource_version` are preconditions (`Conflict`). `propagation`: Background, Foreground or Orphan."""
        ...

    async def bind(self, namespace: str, name: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does (POST to the pod's `binding`); the only way to set spec.nodeName later.

        `Conflict` when the pod is already bound or being deleted.
        """
        ...

    async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        """Ask for a pod to be deleted as a disruption (POST to the pod's `eviction`): it gets the condition DisruptionTarget first.

        An `ApiError` with code 429 when a PodDisruptionBudget does not allow it now.
        """
        ...
