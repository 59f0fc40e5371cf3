"""What a preview begins with: the nodes of a fleet file, or nodes, jobs and pods as a cluster has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj, Resource
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.grantors.registry import WATCHES

from diloco_local.nodes import set_ready

_USING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that use resources of a node."""


class NodesNotReadable(Exception):
    """The user may not list nodes: nothing can be placed."""


@dataclass(frozen=True, slots=True)
class Contents:
    nodes: tuple[Obj, ...]
    slices: tuple[Obj, ...] = ()
    """ResourceSlices of GPUs."""
    claims: tuple[Obj, ...] = ()
    """ResourceClaims of pods that are of no job: here no garbage collector ends those of pods that leave."""
    jobs: tuple[Obj, ...] = ()
    pods: tuple[Obj, ...] = ()
    """Pods of jobs, and others that use resources of nodes."""
    priorities: tuple[Obj, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, and what that means."""


def of_fleet(nodes: Iterable[Obj], now: float) -> Contents:
    """Return `nodes` as a kubelet registers them; all become ready."""
    return Contents(tuple(ready(node, now) for node in nodes))


def ready(node: Obj, now: float) -> Obj:
    """Return the node with a kubelet that reports, since `now`."""
    found: Obj = {**node, "status": dict(node.get("status") or {})}
    set_ready(found, "True", "KubeletReady", "kubelet is posting ready status", now=format_timestamp(now))
    return found


async def of_cluster(client: Client, namespace: str) -> Contents:
    """Return everything that the operator would read. Of a user who may not list all namespaces only those of `namespace`. Raises
    `NodesNotReadable`, and `NotFound` if the cluster has no DiLoCoJobs."""
    notes: list[str] = []
    try:
        nodes = await list_all(client, names.NODES)
    except Forbidden as error:
        raise NodesNotReadable(
            "you may not list the nodes of the cluster, without which nothing can be placed; ask for the right to list nodes, or plan on a "
            "file of them: --fleet FILE, for example from `kubectl get nodes -o yaml` of someone who may"
        ) from error
    jobs = await _allowed(client, names.DILOCO_JOBS, namespace, notes, "jobs", "hold no slice here")
    pods = await _allowed(client, names.PODS, namespace, notes, "pods of jobs", "hold no slice here", label=names.LABEL_JOB)
    pods += await _allowed(
        client, names.PODS, namespace, notes, "other pods", "use no resource of a node here", label=f"!{names.LABEL_JOB}", field=_USING
    )
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


async def _allowed(
    client: Client, resource: Resource, namespace: str, notes: list[str], what: str, meaning: str, *, label: str = "", field: str = ""
) -> list[Obj]:
    """List the objects of all namespaces, or of one and add a note."""
    try:
        return await list_all(client, resource, labels=label, fields=field)
    except Forbidden:
        notes.append(f"you may list {what} of namespace {namespace} only: those of other namespaces {meaning}")
        return await list_all(client, resource, namespace, labels=label, fields=field)


def as_dump(contents: Contents, begin: float) -> Mapping[str, Any]:
    """Return state for `MemoryApi.restore`: objects keep their uids, so that pods belong to their jobs."""
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
"""Kinds that come with grantors; here they get no answer."""


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
    """Return the object as a server has it. What it does not say of itself, such as a node of a file, is the same in every run."""
    meta = obj["metadata"]
    given = {"uid": f"{kind.lower()}-{meta['name']}", "creationTimestamp": at, "generation": 1, **meta}
    given.pop("managedFields", None)
    return {**obj, "apiVersion": api_version, "kind": kind, "metadata": {**given, "resourceVersion": "1"}}
