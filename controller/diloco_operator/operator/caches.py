"""What the operator knows of the cluster: one reflector for each resource that a reconcile reads.

See docs/decisions/0134-rights-on-secrets.md.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diloco_operator.api import names
from diloco_operator.certificates.authority import Authority
from diloco_operator.certificates.view import CertificateSecret, project_certificates, project_foreign
from diloco_operator.fleet import NodeView, PodUse, project_node
from diloco_operator.fleet.resources import resources_of
from diloco_operator.kube.client import Client, Obj, Resource
from diloco_operator.kube.fields import controller_uid, fields, moment, needed_string, string, whole_number
from diloco_operator.kube.malformed import MalformedObjects
from diloco_operator.kube.reflector import Cache, CachedObject, Handler, Indexer, Projection, Reflector
from diloco_operator.reconcile import Child, Children, Job, PodView, parse_job, project_child, project_pod
from diloco_operator.reconcile.observe.status_check import check_status
from diloco_operator.timeouts import WatchTimeouts

type JobKey = tuple[str, str]
"""(namespace, name)."""

_BY_JOB = "job"
_USING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that use resources of a node."""
_WITHOUT_OTHER_PODS = (
    "the operator does not see which nodes other pods use: it may choose a slice that is not free, whose unit then waits for its node. "
    "Grant list and watch of pods in all namespaces (chart value watchOtherPods), or set watchOtherPods: false."
)


@dataclass(frozen=True, slots=True)
class JobObject:
    """A ConfigMap, Service or volume claim that carries a job's label."""

    job: str
    """Name of the job, by the label."""
    child: Child


@dataclass(frozen=True, slots=True)
class JobSecret:
    """A Secret that carries a job's label."""

    job: str
    """Name of the job, by the label."""
    certificates: CertificateSecret
    read: bool
    """False: no known job owned it when it came, so nothing of its content was looked at."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    value: int
    default: bool
    """It applies to pods that name no class."""


class _Followed[T]:
    """One resource: its cache, and the reflectors that fill it, one for each namespace."""

    def __init__(self, cache: Cache[T], reflectors: Sequence[Reflector[T]]) -> None:
        self.cache = cache
        self.reflectors = reflectors

    def on_change(self, handler: Handler[T]) -> None:
        for reflector in self.reflectors:
            reflector.on_change(handler)


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job between two reconciles. Its status is kept as JSON: as objects it would take five times the memory, 1.7 KB for each unit."""

    bare: Job
    """The job without its status."""
    status: bytes
    problem: str = ""
    """What of the status is malformed, and left out."""

    @staticmethod
    def of(obj: Obj, previous: CachedJob | None) -> CachedJob:
        job = parse_job(obj, previous.bare if previous is not None else None)
        status, problem = check_status(obj.get("status"))
        return CachedJob(replace(job, status={}), status, problem)

    def whole(self) -> Job:
        """The job with its status; a copy for the caller."""
        return replace(self.bare, status=json.loads(self.status))


class Caches:
    """All reflectors of an operator. `namespaces`: only jobs of these and their objects; empty: of all. Nodes are those of the cluster,
    and so are pods that are not of jobs, unless `other_pods` is False."""

    def __init__(
        self,
        client: Client,
        *,
        rng: Callable[[], float],
        namespaces: Sequence[str] = (),
        other_pods: bool = True,
        timeouts: WatchTimeouts | None = None,
    ) -> None:
        self.malformed = MalformedObjects()
        """Objects that are left out of the caches."""

        def reflect[T](
            resource: Resource,
            project: Projection[T],
            *,
            ours: bool = True,
            indexers: Mapping[str, Indexer[T]] | None = None,
            problem: Callable[[T], str] = lambda _: "",
        ) -> _Followed[T]:
            cache: Cache[T] = Cache(indexers)
            where = tuple(dict.fromkeys(namespaces)) if resource.namespaced and namespaces else ("",)
            reflectors = [
                Reflector(
                    client,
                    resource,
                    project,
                    rng=rng,
                    namespace=namespace,
                    cache=cache,
                    label_selector=names.LABEL_JOB if ours else "",
                    timeouts=timeouts,
                    malformed=self.malformed,
                    problem=problem,
                )
                for namespace in where
            ]
            return _Followed(cache, reflectors)

        self._jobs = reflect(names.DILOCO_JOBS, CachedJob.of, ours=False, problem=lambda job: job.problem)
        self._pods = reflect(names.PODS, lambda obj, _: project_pod(obj), indexers={_BY_JOB: _job_of_pod}, problem=lambda pod: pod.problem)
        self._nodes = reflect(names.NODES, lambda obj, _: project_node(obj), ours=False)
        self._priorities = reflect(names.PRIORITY_CLASSES, lambda obj, _: _project_priority(obj), ours=False)
        self._objects = {
            resource: reflect(resource, _project_object, indexers={_BY_JOB: lambda held: ((held.namespace, held.value.job),)})
            for resource in (names.CONFIG_MAPS, names.SERVICES, names.VOLUME_CLAIMS)
        }
        self._secrets = reflect(names.SECRETS, self._project_secret, indexers={_BY_JOB: lambda held: ((held.namespace, held.value.job),)})
        self._jobs.on_change(self._read_secrets_of_new_job)
        self._other_pods = tuple(
            Reflector(
                client,
                names.PODS,
                _project_use,
                rng=rng,
                label_selector=label,
                field_selector=selected,
                without=_WITHOUT_OTHER_PODS,
                timeouts=timeouts,
                malformed=self.malformed,
            )
            for label, selected in _other_pods(namespaces if other_pods else None)
        )
        self._all: tuple[_Followed[Any], ...] = (
            self._jobs,
            self._pods,
            self._nodes,
            self._priorities,
            self._secrets,
            *self._objects.values(),
        )
        self._forbidden: list[Reflector[Any]] = []
        """Those that the API server does not answer for lack of a right."""
        for reflector in self.reflectors:
            reflector.on_rights_change(self._note_rights)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors. Each must run."""
        return [*(reflector for followed in self._all for reflector in followed.reflectors), *self._other_pods]

    @property
    def sees_other_pods(self) -> bool:
        """Whether the operator sees what pods use that are not of its jobs."""
        return bool(self._other_pods) and not any(reflector.refused for reflector in self._other_pods)

    @property
    def synced(self) -> bool:
        """Whether every resource was listed once."""
        return all(reflector.synced for reflector in self.reflectors)

    @property
    def jobs(self) -> Cache[CachedJob]:
        return self._jobs.cache

    @property
    def nodes(self) -> Cache[NodeView]:
        return self._nodes.cache

    async def wait_synced(self) -> None:
        """Returns when every resource was listed once, or may not be listed in a namespace. Nothing may be decided before."""
        for reflector in self.reflectors:
            if reflector.resource.namespaced:
                await reflector.wait_answered()
            else:
                await reflector.wait_synced()

    @property
    def missing_rights(self) -> list[str]:
        """What the API server forbids, a sentence for each resource and namespace."""
        return [_forbidden(reflector) for reflector in self._forbidden]

    def missing_rights_in(self, namespace: str) -> list[str]:
        """The same for the jobs of one namespace: without these rights nothing can be decided there."""
        return [_forbidden(reflector) for reflector in self._forbidden if reflector.namespace in ("", namespace)]

    def _note_rights(self) -> None:
        self._forbidden = [reflector for reflector in self.reflectors if reflector.forbidden]

    def on_rights_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with every job of a namespace in which rights came or went."""

        def changed(where: str) -> None:
            for held in self.jobs:
                if where in ("", held.namespace):
                    handler(held.key)

        for reflector in self.reflectors:
            reflector.on_rights_change(functools.partial(changed, reflector.namespace))

    def on_job_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with the job's key at every change of the job or of its objects."""
        self._jobs.on_change(lambda old, new: handler(_either(old, new).key))
        self._pods.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        self._secrets.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        for followed in self._objects.values():
            followed.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))

    def on_node_change(self, handler: Callable[[NodeView | None, str], None]) -> None:
        """Call `handler` at every change of a node, with the node (None: deleted) and its name."""
        self._nodes.on_change(lambda old, new: handler(new.value if new else None, _either(old, new).name))

    def on_use_change(self, handler: Callable[[PodUse | None, PodUse | None], None]) -> None:
        """Call `handler` with the old and the new use at every change of what a pod of no job uses; None: it uses nothing."""
        for reflector in self._other_pods:
            reflector.on_change(lambda old, new: handler(old.value if old else None, new.value if new else None))

    def on_pod_change(self, handler: Handler[PodView]) -> None:
        """Call `handler` with the old and the new object at every change of a pod with the label of a job."""
        self._pods.on_change(handler)

    def on_ownership_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with the job's key when a job came or went, so that pods with its label have another owner."""

        def changed(old: CachedObject[CachedJob] | None, new: CachedObject[CachedJob] | None) -> None:
            if old is None or new is None or old.uid != new.uid:
                handler(_either(old, new).key)

        self._jobs.on_change(changed)

    def on_object_change(self, handler: Callable[[Resource, CachedObject[Any] | None, CachedObject[Any] | None], None]) -> None:
        """Call `handler` at every change of a job or its objects, before the handlers that `on_job_change` adds later."""
        for reflector in (reflector for followed in self._all for reflector in followed.reflectors):
            if reflector.resource not in (names.NODES, names.PRIORITY_CLASSES):
                reflector.on_change(functools.partial(handler, reflector.resource))

    def job(self, key: JobKey) -> Job | None:
        """The job, or None."""
        held = self.jobs.get(*key)
        return held.value.whole() if held is not None else None

    def pods(self, key: JobKey) -> tuple[PodView, ...]:
        """Every pod in the job's namespace with the job's label."""
        return tuple(held.value for held in self._pods.cache.by_index(_BY_JOB, key))

    def labelled_pods(self, key: JobKey) -> list[CachedObject[PodView]]:
        """The same as the cache has them."""
        return self._pods.cache.by_index(_BY_JOB, key)

    def is_ours(self, pod: PodView) -> bool:
        """Whether a job that this operator runs owns the pod."""
        job = self.jobs.get(pod.namespace, pod.job)
        return job is not None and job.uid == pod.owner and job.value.bare.managed_by == names.MANAGER

    def is_of_other_operator(self, pod: PodView) -> bool:
        """Whether a job owns the pod that another operator runs."""
        job = self.jobs.get(pod.namespace, pod.job)
        return job is not None and job.uid == pod.owner and job.value.bare.managed_by != names.MANAGER

    def pod_count(self, key: JobKey) -> int:
        """Number of pods with the job's label."""
        return self._pods.cache.count(_BY_JOB, key)

    def pod(self, namespace: str, name: str) -> PodView | None:
        """The pod, or None."""
        held = self._pods.cache.get(namespace, name)
        return held.value if held is not None else None

    def children(self, key: JobKey) -> Children:
        """The objects that exist under the names that the job uses."""
        job = self.jobs.get(*key)
        secrets = {
            held.name: held.value.certificates
            for held in self._secrets.cache.by_index(_BY_JOB, key)
            # Its own, not read yet: it is listed again. Until then it is not there, so that nothing is replaced that is right.
            if held.value.read or job is None or held.value.certificates.owner != job.uid
        }
        config_maps = {held.name: held.value.child for held in self._objects[names.CONFIG_MAPS].cache.by_index(_BY_JOB, key)}
        config_maps.pop(names.config_map_name(key[1]), None)
        return Children(
            config_map=self._child(names.CONFIG_MAPS, key, names.config_map_name),
            service=self._child(names.SERVICES, key, names.service_name),
            volume_claim=self._child(names.VOLUME_CLAIMS, key, names.volume_claim_name),
            authority=secrets.pop(names.authority_secret_name(key[1]), None),
            certificates=secrets,
            host_lists={name: child for name, child in config_maps.items() if child.unit},
        )

    def priority(self, name: str) -> int:
        """The value of a PriorityClass; "": that of the cluster's default class. 0 if the class does not exist, as for pods without one."""
        if name:
            held = self._priorities.cache.get("", name)
            return held.value.value if held is not None else 0
        return next((held.value.value for held in self._priorities.cache if held.value.default), 0)

    def authority(self, key: JobKey, owner: str) -> Authority | None:
        """The certificate authority of the job with uid `owner`; None: it has none yet."""
        held = self._secrets.cache.get(key[0], names.authority_secret_name(key[1]))
        return held.value.certificates.authority if held is not None and held.value.certificates.owner == owner else None

    def roots(self, key: JobKey) -> str:
        """Certificates of the authorities that may have signed the syncer's certificate, PEM; "" if there are none."""
        held = self._secrets.cache.get(key[0], names.syncer_secret_name(key[1]))
        return "".join(root.pem for root in held.value.certificates.roots) if held is not None else ""

    def shown(self, resource: Resource, namespace: str, name: str) -> CachedObject[Any] | None:
        """The Secret, ConfigMap, Service or volume claim as the cache has it, or None."""
        followed: _Followed[Any] = self._secrets if resource == names.SECRETS else self._objects[resource]
        return followed.cache.get(namespace, name)

    def _project_secret(self, obj: Obj, _previous: JobSecret | None) -> JobSecret:
        """The content of a Secret is read only if its owner is the job that its label names."""
        label, meta = _label_job(obj), fields(obj, "metadata")
        job = self.jobs.get(string(meta, "namespace", "metadata"), label)
        ours = job is not None and job.uid == controller_uid(meta)
        return JobSecret(label, project_certificates(obj) if ours else project_foreign(obj), ours)

    def _read_secrets_of_new_job(self, old: CachedObject[CachedJob] | None, new: CachedObject[CachedJob] | None) -> None:
        """Its Secrets may have come before it: those of another replica, or while the jobs were not listed yet."""
        if new is None or (old is not None and old.uid == new.uid):
            return
        if any(not held.value.read and held.value.certificates.owner == new.uid for held in self._secrets.cache.by_index(_BY_JOB, new.key)):
            for reflector in self._secrets.reflectors:
                if reflector.namespace in ("", new.namespace):
                    reflector.list_again()

    def _child(self, resource: Resource, key: JobKey, name: Callable[[str], str]) -> Child | None:
        held = self._objects[resource].cache.get(key[0], name(key[1]))
        return held.value.child if held is not None else None


def _either[T](old: CachedObject[T] | None, new: CachedObject[T] | None) -> CachedObject[T]:
    held = new if new is not None else old
    assert held is not None
    return held


def _job_of_pod(held: CachedObject[PodView]) -> Iterable[JobKey]:
    return ((held.namespace, held.value.job),)


def _other_pods(namespaces: Sequence[str] | None) -> Iterable[tuple[str, str]]:
    """Label and field selectors of the pods that are not of jobs in these namespaces (empty: of all); None: nothing is selected. A pod
    with the label is of a job, or pretends to be; those of the jobs' own namespaces are in the cache of their pods already."""
    if namespaces is None:
        return
    yield f"!{names.LABEL_JOB}", _USING
    if namespaces:
        yield names.LABEL_JOB, ",".join([_USING, *(f"metadata.namespace!={each}" for each in dict.fromkeys(namespaces))])


def _project_use(obj: Obj, previous: PodUse | None) -> PodUse:
    """A pod that is bound to a node and has not ended."""
    meta, spec = fields(obj, "metadata"), fields(obj, "spec")
    node, requests = needed_string(spec, "nodeName", "spec"), resources_of(spec)
    if previous is not None and previous.node == node and previous.requests == requests:
        return previous
    namespace, name = needed_string(meta, "namespace", "metadata"), needed_string(meta, "name", "metadata")
    labels = fields(meta, "labels", "metadata")
    if names.LABEL_JOB not in labels or labels.get(names.LABEL_COMPONENT) != names.COMPONENT_LEARNER:
        return PodUse(sys.intern(namespace), name, sys.intern(node), requests)
    learner = (moment(meta, "creationTimestamp", "metadata") or 0.0, string(meta, "uid", "metadata"))
    return PodUse(sys.intern(namespace), name, sys.intern(node), requests, learner)


def _project_priority(obj: Obj) -> PriorityClass:
    return PriorityClass(whole_number(obj, "value"), obj.get("globalDefault") is True)


def _project_object(obj: Obj, _previous: JobObject | None) -> JobObject:
    return JobObject(_label_job(obj), project_child(obj))


def _forbidden(reflector: Reflector[Any]) -> str:
    where = f"namespace {reflector.namespace}" if reflector.namespace else "the cluster"
    return f"the operator may not read {reflector.resource.plural} in {where}: {reflector.forbidden}"


def _label_job(obj: Obj) -> str:
    return needed_string(fields(fields(obj, "metadata"), "labels", "metadata"), names.LABEL_JOB, "metadata.labels")
