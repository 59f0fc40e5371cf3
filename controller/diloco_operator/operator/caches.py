"""What the operator knows of the cluster: one reflector for each resource that a pass reads."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diloco.contract import SECRET_KEY

from diloco_operator.api import names
from diloco_operator.fleet import NodeView, project_node
from diloco_operator.kube.client import Client, Obj, Resource
from diloco_operator.kube.reflector import Cache, Held, Indexer, Projection, Reflector, Timing
from diloco_operator.reconcile import Child, Children, Job, PodView, parse_job, project_child, project_pod

type JobKey = tuple[str, str]
"""(namespace, name)."""

_BY_JOB = "job"


@dataclass(frozen=True, slots=True)
class JobObject:
    """A ConfigMap, Secret, Service or volume claim that carries a job's label."""

    job: str
    """Name of the job, by the label."""
    child: Child
    token: str = ""
    """A Secret's token."""


class Caches:
    """Every reflector of an operator. `namespace` is "" for all."""

    def __init__(self, client: Client, *, chance: Callable[[], float], namespace: str = "", timing: Timing | None = None) -> None:
        def reflect[T](
            resource: Resource, project: Projection[T], *, ours: bool = True, indexers: Mapping[str, Indexer[T]] | None = None
        ) -> Reflector[T]:
            return Reflector(
                client,
                resource,
                project,
                chance=chance,
                namespace=namespace if resource.namespaced else "",
                label_selector=names.LABEL_JOB if ours else "",
                indexers=indexers,
                timing=timing,
            )

        self._jobs = reflect(names.DILOCO_JOBS, parse_job, ours=False)
        self._pods = reflect(names.PODS, lambda obj, _: project_pod(obj), indexers={_BY_JOB: _job_of_pod})
        self._nodes = reflect(names.NODES, lambda obj, _: project_node(obj), ours=False)
        self._objects = {
            resource: reflect(resource, _project_object)
            for resource in (names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.VOLUME_CLAIMS)
        }
        self.reflectors: tuple[Reflector[Any], ...] = (self._jobs, self._pods, self._nodes, *self._objects.values())

    @property
    def jobs(self) -> Cache[Job]:
        return self._jobs.cache

    @property
    def nodes(self) -> Cache[NodeView]:
        return self._nodes.cache

    async def wait_synced(self) -> None:
        """Returns when everything has been listed once. Nothing may be decided before."""
        for reflector in self.reflectors:
            await reflector.wait_synced()

    def on_job_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with the key of the job at every change of it or of something that it owns."""
        self._jobs.on_change(lambda old, new: handler(_either(old, new).key))
        self._pods.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        for reflector in self._objects.values():
            reflector.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))

    def on_node_change(self, handler: Callable[[NodeView | None, str], None]) -> None:
        """Call `handler` with a node (None: it is gone) and its name at every change."""
        self._nodes.on_change(lambda old, new: handler(new.value if new else None, _either(old, new).name))

    def on_object_change(self, handler: Callable[[Resource, Held[Any] | None, Held[Any] | None], None]) -> None:
        """Call `handler` at every change of anything but a node, before the handlers of `on_job_change` that are added later."""
        for reflector in self.reflectors:
            if reflector is not self._nodes:
                reflector.on_change(functools.partial(handler, reflector.resource))

    def job(self, key: JobKey) -> Job | None:
        """The job, or None."""
        held = self.jobs.get(*key)
        return held.value if held is not None else None

    def pods(self, key: JobKey) -> tuple[PodView, ...]:
        """Every pod in the job's namespace with the job's label."""
        return tuple(held.value for held in self._pods.cache.by_index(_BY_JOB, "/".join(key)))

    def pod(self, namespace: str, name: str) -> PodView | None:
        """The pod, or None."""
        held = self._pods.cache.get(namespace, name)
        return held.value if held is not None else None

    def jobs_with_pods(self) -> set[JobKey]:
        """Keys of all jobs that have pods, whether the jobs are still there or not."""
        return {(held.namespace, held.value.job) for held in self._pods.cache}

    def children(self, key: JobKey) -> Children:
        """What there is under the names that the job uses for its objects."""
        return Children(
            config_map=self._child(names.CONFIG_MAPS, key, names.config_map_name),
            secret=self._child(names.SECRETS, key, names.secret_name),
            service=self._child(names.SERVICES, key, names.service_name),
            volume_claim=self._child(names.VOLUME_CLAIMS, key, names.volume_claim_name),
        )

    def token(self, key: JobKey) -> str:
        """The job's secret, "" when there is none."""
        held = self._objects[names.SECRETS].cache.get(key[0], names.secret_name(key[1]))
        return held.value.token if held is not None else ""

    def _child(self, resource: Resource, key: JobKey, name: Callable[[str], str]) -> Child | None:
        held = self._objects[resource].cache.get(key[0], name(key[1]))
        return held.value.child if held is not None else None


def _either[T](old: Held[T] | None, new: Held[T] | None) -> Held[T]:
    held = new if new is not None else old
    assert held is not None
    return held


def _job_of_pod(held: Held[PodView]) -> Iterable[str]:
    return (f"{held.namespace}/{held.value.job}",)


def _project_object(obj: Obj, _previous: JobObject | None) -> JobObject:
    job = obj["metadata"]["labels"][names.LABEL_JOB]
    return JobObject(job, project_child(obj), _token(obj))


def _token(obj: Obj) -> str:
    """A Secret's token; "" when it has none that can be read, which the syncer will refuse and reconcile then sees as silence."""
    data = obj.get("data") or {}
    try:
        return base64.b64decode(data.get(SECRET_KEY, ""), validate=True).decode() if obj.get("kind") == names.SECRETS.kind else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""
