"""The client protocol: the verbs of the Kubernetes API that the operator uses, on plain JSON objects.

`diloco_local.memory.MemoryApi` and `kube.rest.RestClient` implement it; tests/contract holds both to one contract.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from diloco_operator.kube.fields import ERROR_LIMIT, clip

type Obj = dict[str, Any]
"""A Kubernetes object as JSON. What a client returns is the caller's own copy."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, and where the API serves it."""

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
    size: int = 0
    """Bytes of the event on the wire, 0 if it did not come over one."""


@dataclass(frozen=True, slots=True)
class ObjList:
    items: list[Obj]
    resource_version: str
    continue_token: str = ""
    """Not empty if more pages follow. A token that is older than the server's history fails with `Gone`."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One wrong field of an `Invalid` object."""

    field: str
    """Path as Kubernetes writes it: `spec.pools[0].topology`."""
    message: str


@dataclass
class ApiError(Exception):
    """What the API server answered, as in a Kubernetes Status object. Its message is clipped: it quotes objects and admission webhooks."""

    code: int
    reason: str
    message: str
    causes: list[Cause] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.message = clip(self.message, ERROR_LIMIT)

    def __str__(self) -> str:
        return f"{self.reason} ({self.code}): {self.message}"


class NotFound(ApiError):
    """404: no such object, no such kind, or no such namespace to create in."""


class Forbidden(ApiError):
    """403: for instance creating in a namespace that is being deleted."""


class AlreadyExists(ApiError):
    """409 on create."""


class Conflict(ApiError):
    """409: the resourceVersion or a precondition did not match."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is older than the server's history. List again."""


class Invalid(ApiError):
    """422: schema, CEL rule or immutability; `causes` names every field."""


class BadRequest(ApiError):
    """400."""


class Unavailable(ApiError):
    """503 or no connection: it is unknown whether the request took effect. Try again."""


class InternalError(Unavailable):
    """The server failed at this request, and may serve others: an admission webhook does not answer, for example."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which part of a pod's log is wanted, and how."""

    container: str = ""
    """Empty if there is only one."""
    follow: bool = False
    """Continue with new output until the container ends."""
    previous: bool = False
    """Read the run before the container's last restart."""
    tail_lines: int | None = None
    """Only this many lines at the end; None for all."""


class Client(Protocol):
    """Errors are `ApiError`s. `namespace` is "" for cluster-scoped objects and, in list and watch, for all namespaces.

    Selectors are in Kubernetes' string form: labels `a=b,c!=d,e in (x,y),f,!g`; fields `metadata.name=x`, `spec.nodeName=n`.
    """

    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        """Get an object; `subresource`: "" or "status" (the whole object)."""
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
        """Yield changes after `resource_version`, in order. With "" or "0" existing objects come as ADDED first. Ends after
        `timeout_seconds`.

        An object that no longer matches the selectors arrives as DELETED. Raises `Gone` if the version is compacted. Bookmarks come about
        once a minute and 2 s before the end, but only if the server knows a version newer than `resource_version`. A watch of objects that
        do not change may be silent from beginning to end.
        """
        ...

    async def create(
        self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False, dry_run: bool = False
    ) -> Obj:
        """Return the object as it is stored. The client fills in a missing apiVersion and kind, also in `update`.

        `metadata_only`, as in `update` and in `patch`: only the object's metadata is needed. The answer is then a meta.k8s.io/v1
        PartialObjectMetadata, which is half the work for both sides.

        `dry_run`: the server checks everything, its admission included, and stores nothing. It raises what a create would raise now. No
        quota counts a dry run, so several of them may all be admitted where there is room for one.
        """
        ...

    async def update(
        self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "", metadata_only: bool = False
    ) -> Obj:
        """Replace an object. metadata.resourceVersion and metadata.uid, if they are set, must be the current ones, else `Conflict`. Custom
        objects need the version.

        `subresource`: "" or "status". With "status" everything but the status and these two fields is ignored, and may be left out.
        """
        ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Obj,
        *,
        subresource: str = "",
        field_manager: str = "",
        metadata_only: bool = False,
    ) -> Obj:
        """Apply a merge patch. metadata.resourceVersion in it is a precondition (`Conflict`). So is metadata.uid (`Invalid`), except for
        the status of a custom resource, where the server ignores it."""
        ...

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> None:
        """Delete an object, and what it owns a little later; `uid` is a precondition (`Conflict`)."""
        ...

    async def bind(self, namespace: str, name: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does (POST to the pod's `binding`); the only way to set spec.nodeName later.

        `Conflict` if the pod is bound already or is being deleted.
        """
        ...

    async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        """Evict a pod (POST to the pod's `eviction`): it gets the condition DisruptionTarget and is deleted.

        An `ApiError` with code 429 if a PodDisruptionBudget does not allow it now.
        """
        ...
