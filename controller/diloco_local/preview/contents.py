"""What a preview begins with: the nodes of a fleet file, or nodes, jobs and pods as a cluster has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj, Resource
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.pods import USING
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.grantors.registry import WATCHES

from diloco_local.nodes import set_ready


class NodesNotReadable(Exception):
    """The user may not list nodes, so nothing can be placed."""


@dataclass(frozen=True, slots=True)
class Contents:
    nodes: tuple[Obj, ...]
    slices: tuple[Obj, ...] = ()
    """ResourceSlices of GPUs."""
    claims: tuple[Obj, ...] = ()
    """ResourceClaims of pods that belong to no job. Jobs' claims are left out: no garbage collector here would delete them with their
    pods."""
    jobs: tuple[Obj, ...] = ()
    pods: tuple[Obj, ...] = ()
    """Pods of jobs, and others that use resources of nodes."""
    priorities: tuple[Obj, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, and what that means."""


def of_fleet(nodes: Iterable[Obj], now: float) -> Contents:
    """The contents of a fleet file. All its nodes are ready."""
    return Contents(tuple(ready(node, now) for node in nodes))


def ready(node: Obj, now: float) -> Obj:
    """The node as if its kubelet reports Ready since `now`."""
    copy: Obj = {**node, "status": dict(node.get("status") or {})}
    set_ready(copy, "True", "KubeletReady", "kubelet is posting ready status", now=format_timestamp(now))
    return copy


async def of_cluster(client: Client, namespace: str) -> Contents:
    """Read what the operator would read. If the user may not list an object in all namespaces, read only those of `namespace`, and add a
    note. Raises `NodesNotReadable`, and `NotFound` if the cluster does not know DiLoCoJobs."""
    readable = _ReadableObjects(client, namespace)
    try:
        nodes = await list_all(client, names.NODES)
    except Forbidden as error:
        raise NodesNotReadable(
            "you may not list the nodes of the cluster, without which nothing can be placed; ask for the right to list nodes, or plan on a "
            "file of them: --fleet FILE, for example from `kubectl get nodes -o yaml` of someone who may"
        ) from error
    jobs = await readable.read(names.DILOCO_JOBS, "jobs", "hold no slice here")
    pods = await readable.read(names.PODS, "pods of jobs", "hold no slice here", labels=names.LABEL_JOB)
    pods += await readable.read(names.PODS, "other pods", "use no resource of a node here", labels=f"!{names.LABEL_JOB}", fields=USING)
    notes = readable.notes
    try:
        priorities = await list_all(client, names.PRIORITY_CLASSES)
    except Forbidden:
        priorities = []
        notes.append("you may not list priority classes: every job has priority 0 here")
    slices: list[Obj] = []
    claims: list[Obj] = []
    try:
        slices = await list_all(client, names.RESOURCE_SLICES, fields=names.GPU_SLICES)
        claims = await list_all(client, names.RESOURCE_CLAIMS, labels=f"!{names.LABEL_JOB}") if slices else []
    except NotFound:
        pass  # Kubernetes before 1.34
    except Forbidden:
        notes.append(
            "you may not list resource claims: those of other pods hold no GPU here"
            if slices
            else "you may not list resource slices: GPUs that only DRA offers are no slices here"
        )
    return Contents(
        tuple(nodes),
        slices=tuple(slices),
        claims=tuple(claims),
        jobs=tuple(jobs),
        pods=tuple(pods),
        priorities=tuple(priorities),
        notes=tuple(notes),
    )


class _ReadableObjects:
    """Lists objects of all namespaces, or only of `namespace` if that is all that the user may list. `notes` then says so."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.notes: list[str] = []

    async def read(self, resource: Resource, what: str, meaning: str, *, labels: str = "", fields: str = "") -> list[Obj]:
        """`what` names the objects, and `meaning` says what follows if other namespaces are not read, for the note."""
        try:
            return await list_all(self._client, resource, labels=labels, fields=fields)
        except Forbidden:
            self.notes.append(f"you may list {what} of namespace {self._namespace} only: those of other namespaces {meaning}")
            return await list_all(self._client, resource, self._namespace, labels=labels, fields=fields)


def as_dump(contents: Contents, begin: float) -> Mapping[str, Any]:
    """The state for `MemoryApi.restore`. Objects keep their uids, so that pods still belong to their jobs."""
    at = format_timestamp(begin)
    spaces = sorted({"default", *(obj["metadata"]["namespace"] for obj in (*contents.jobs, *contents.pods, *contents.claims))})
    objects = [
        _stored(_established(build_crd(), at), "apiextensions.k8s.io/v1", "CustomResourceDefinition", at),
        *(_stored(_established(_grantor_crd(each), at), "apiextensions.k8s.io/v1", "CustomResourceDefinition", at) for each in _GRANTED),
        *(_stored({"metadata": {"name": name}, "status": {"phase": "Active"}}, "v1", names.NAMESPACES.kind, at) for name in spaces),
        *_kind(contents.nodes, names.NODES, at),
        *_kind(contents.slices, names.RESOURCE_SLICES, at),
        *_kind(contents.claims, names.RESOURCE_CLAIMS, at),
        *_kind(contents.priorities, names.PRIORITY_CLASSES, at),
        *_kind(contents.jobs, names.DILOCO_JOBS, at),
        *_kind(contents.pods, names.PODS, at),
    ]
    return {"resourceVersion": 2, "objects": objects}


_GRANTED = tuple(watched.resource for watched in WATCHES if watched.resource.group)
"""Kinds of grantors' objects. No grantor runs in a preview, so they get no answer."""


def _grantor_crd(resource: Resource) -> Obj:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
    }  # fmt: skip
    kinds = {
        "kind": resource.kind, "listKind": f"{resource.kind}List", "plural": resource.plural, "singular": resource.kind.lower(),
    }  # fmt: skip
    spec = {"group": resource.group, "scope": "Namespaced", "names": kinds, "versions": [version]}
    return {"metadata": {"name": f"{resource.plural}.{resource.group}"}, "spec": spec}


def _established(crd: Obj, at: str) -> Obj:
    conditions = [{"type": name, "status": "True", "lastTransitionTime": at} for name in ("NamesAccepted", "Established")]
    return {**crd, "status": {"conditions": conditions}}


def _kind(objs: Sequence[Obj], resource: Resource, at: str) -> list[Obj]:
    return [_stored(obj, resource.api_version, resource.kind, at) for obj in objs]


def _stored(obj: Obj, api_version: str, kind: str, at: str) -> Obj:
    """The object as a server has it. If it lacks a uid or a creation time, as a node from a file does, it gets the same ones in every
    run."""
    meta = obj["metadata"]
    given = {"uid": f"{kind.lower()}-{meta['name']}", "creationTimestamp": at, "generation": 1, **meta}
    given.pop("managedFields", None)
    return {**obj, "apiVersion": api_version, "kind": kind, "metadata": {**given, "resourceVersion": "1"}}
