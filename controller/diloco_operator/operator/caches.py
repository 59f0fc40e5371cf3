"""What the operator knows of the cluster: one reflector for each resource that a reconcile reads.

See docs/decisions/0105-rights-and-networks.md. See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.certificates.authority import Authority
from diloco_operator.certificates.view import project_certificates, project_foreign
from diloco_operator.fleet import NodeView, PodUse, project_node
from diloco_operator.fleet.device_pools import ClaimedDevices, DeviceSlice, project_claim, project_slice
from diloco_operator.kube.cache import Cache, CachedObject, Handler, Indexer
from diloco_operator.kube.client import Client, Obj, Resource
from diloco_operator.kube.fields import controller_uid, fields, string
from diloco_operator.kube.malformed import MalformedObjects
from diloco_operator.kube.pods import USING
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.operator.projections import (
    CachedJob,
    JobObject,
    JobSecret,
    job_label,
    project_object,
    project_priority,
    project_use,
)
from diloco_operator.reconcile import Child, Children, Job, PodView, project_pod
from diloco_operator.reconcile.grantors.interface import Watched
from diloco_operator.reconcile.grantors.registry import WATCHES
from diloco_operator.reconcile.observe.part_secret import PartSecret, project_part_secret
from diloco_operator.timeouts import WatchTimeouts

_BY_JOB = "job"
_BY_GROUP = "group"
_BY_POOL = "pool"
_WITHOUT_OTHER_PODS = (
    "the operator does not see which nodes other pods use: it may choose a slice that is not free, whose unit then waits for its node. "
    "Grant list and watch of pods in all namespaces, as the chart does with rbac.create, or set watchOtherPods: false in the configuration."
)

_WITHOUT_SLICES = "GPUs that only DRA offers are no part of the fleet; grant list and watch of them in the chart's ClusterRole"
_WITHOUT_CLAIMS = (
    "the operator does not see which GPUs other pods claim: it may choose a host whose GPUs are not free; grant list and watch of them in "
    "all namespaces"
)


class _Followed[T]:
    """One resource: its cache, and the reflectors that fill it, one for each namespace."""

    def __init__(self, cache: Cache[T], reflectors: Sequence[Reflector[T]]) -> None:
        self.cache = cache
        self.reflectors = reflectors

    def on_change(self, handler: Handler[T]) -> None:
        for reflector in self.reflectors:
            reflector.on_change(handler)


class Caches:
    """All reflectors of an operator. Nodes are followed in the whole cluster.

    Args:
        namespaces: jobs and their objects are followed in these; in all namespaces if empty.
        other_pods: follow other pods too, in the whole cluster.
        end_annotations: see `project_node`.
    """

    def __init__(
        self,
        client: Client,
        *,
        rng: Callable[[], float],
        namespaces: Sequence[str] = (),
        other_pods: bool = True,
        timeouts: WatchTimeouts | None = None,
        end_annotations: Sequence[str] = (),
    ) -> None:
        self._namespaces = frozenset(namespaces)
        self.malformed = MalformedObjects()
        """Objects that are left out of the caches."""

        def reflect[T](
            watched: WatchedResource[T], indexers: Mapping[str, Indexer[T]] | None = None, *, everywhere: bool = False
        ) -> _Followed[T]:
            cache: Cache[T] = Cache(indexers)
            # A namespace may be configured twice, and is listed and watched once.
            followed_namespaces: tuple[str, ...] = ("",)
            if watched.resource.namespaced and namespaces and not everywhere:
                followed_namespaces = tuple(dict.fromkeys(namespaces))
            reflectors = [
                Reflector(client, replace(watched, namespace=namespace), rng=rng, cache=cache, timeouts=timeouts, malformed=self.malformed)
                for namespace in followed_namespaces
            ]
            return _Followed(cache, reflectors)

        self._jobs = reflect(WatchedResource(names.DILOCO_JOBS, CachedJob.of, problem=lambda job: job.problem))
        self._pods = reflect(
            WatchedResource(names.PODS, lambda obj, _: project_pod(obj), label_selector=names.LABEL_JOB, problem=lambda pod: pod.problem),
            {_BY_JOB: _job_of_pod, _BY_GROUP: _group_of_pod},
        )
        self._nodes = reflect(WatchedResource(names.NODES, lambda obj, _: project_node(obj, end_annotations)))
        self._priorities = reflect(WatchedResource(names.PRIORITY_CLASSES, lambda obj, _: project_priority(obj)))
        self._objects = {
            resource: reflect(WatchedResource(resource, project_object, label_selector=names.LABEL_JOB), {_BY_JOB: _job_of_object})
            for resource in (names.CONFIG_MAPS, names.SERVICES, names.VOLUME_CLAIMS)
        }

        def reflect_granted[T](watched: Watched[T]) -> _Followed[T]:
            return reflect(WatchedResource(watched.resource, lambda obj, _: watched.project(obj), without=watched.without))

        self._granted: Mapping[Resource, _Followed[Any]] = {each.resource: reflect_granted(each) for each in WATCHES}
        """The objects of grantors. Where they cannot be read, the operator works without them."""
        self._device_slices = reflect(
            WatchedResource(
                names.RESOURCE_SLICES,
                lambda obj, _: project_slice(obj),
                field_selector=names.GPU_SLICES,
                without=_WITHOUT_SLICES,
            )
        )
        self._claims: _Followed[ClaimedDevices] | None = None
        """What pods claim. None if the operator is not to see other pods."""
        if other_pods:
            self._claims = reflect(
                WatchedResource(names.RESOURCE_CLAIMS, lambda obj, _: project_claim(obj), without=_WITHOUT_CLAIMS),
                {_BY_JOB: _job_of_claim, _BY_POOL: _pools_of_claim},
                everywhere=True,
            )
        self._secrets = reflect(
            WatchedResource(names.SECRETS, self._project_secret, label_selector=names.LABEL_JOB),
            {_BY_JOB: lambda cached: ((cached.namespace, cached.value.job),)},
        )
        # A Secret that came before its job was taken for a foreign one, and nothing else would read its certificates later.
        self._jobs.on_change(self._read_secrets_of_new_job)
        self._secrets.on_change(self._read_again)
        self._other_pods = tuple(
            Reflector(
                client,
                WatchedResource(names.PODS, project_use, label_selector=label, field_selector=selected, without=_WITHOUT_OTHER_PODS),
                rng=rng,
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
            self._device_slices,
            *((self._claims,) if self._claims is not None else ()),
            *self._granted.values(),
            *self._objects.values(),
        )
        self._forbidden: list[Reflector[Any]] = []
        """Reflectors that the API server refuses because the operator lacks a right."""
        for reflector in self.reflectors:
            reflector.on_rights_change(self._note_rights)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors. Each must run."""
        return [*(reflector for followed in self._all for reflector in followed.reflectors), *self._other_pods]

    @property
    def sees_other_pods(self) -> bool:
        """Whether the operator sees what other pods use."""
        return bool(self._other_pods) and not any(reflector.missing for reflector in self._other_pods)

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
        """Return when every resource was listed once, or was refused in a namespace. Nothing may be decided before."""
        for reflector in self.reflectors:
            # A namespace without rights must not keep the others from starting. Without nodes nothing can be placed anywhere.
            if reflector.resource.namespaced:
                await reflector.wait_answered()
            else:
                await reflector.wait_synced()

    @property
    def missing_rights(self) -> list[str]:
        """What the API server forbids, a sentence for each resource and namespace."""
        return [_forbidden(reflector) for reflector in self._forbidden]

    @property
    def may_decide(self) -> bool:
        """Whether no right is missing for the jobs of at least one namespace."""
        # "" is the namespace of a reflector that follows all of them: without its right no job can be decided.
        lacking = {reflector.namespace for reflector in self._forbidden}
        return "" not in lacking and bool(self._namespaces - lacking or not lacking)

    @property
    def failures(self) -> list[str]:
        """Why resources cannot be listed now, a sentence for each resource and namespace. Their caches keep what they had."""
        return [f"{reflector.what}: {reflector.failing}" for reflector in self.reflectors if reflector.failing]

    def on_failure_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` when a resource joins `failures` or leaves it."""
        for reflector in self.reflectors:
            reflector.on_failure_change(handler)

    def missing_rights_in(self, namespace: str) -> list[str]:
        """The missing rights for the jobs of one namespace. While any is missing, nothing can be decided there."""
        return [_forbidden(reflector) for reflector in self._forbidden if reflector.namespace in ("", namespace)]

    def unreadable(self, namespace: str) -> dict[Resource, str]:
        """Resources of grantors that cannot be read in the namespace, with the reason."""
        return {
            resource: reflector.missing
            for resource, followed in self._granted.items()
            for reflector in followed.reflectors
            if reflector.missing and reflector.namespace in ("", namespace)
        }

    def _note_rights(self) -> None:
        self._forbidden = [reflector for reflector in self.reflectors if reflector.forbidden]

    def on_rights_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with every job of a namespace in which rights came or went."""

        def changed(where: str) -> None:
            for cached in self.jobs:
                if where in ("", cached.namespace):
                    handler(cached.key)

        for reflector in self.reflectors:
            reflector.on_rights_change(functools.partial(changed, reflector.namespace))

    def on_job_change(self, handler: Callable[[JobKey], None]) -> None:
        """Call `handler` with the job's key at every change of the job or of its objects."""
        self._jobs.on_change(lambda old, new: handler(_either(old, new).key))
        self._pods.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        self._secrets.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        for followed in self._objects.values():
            followed.on_change(lambda old, new: handler((_either(old, new).namespace, _either(old, new).value.job)))
        for granted in self._granted.values():
            granted.on_change(lambda old, new: self._on_group(handler, _either(old, new).key))

    def _on_group(self, handler: Callable[[JobKey], None], group: tuple[str, str]) -> None:
        """Call the handler with each job that has pods in the group. Most groups have none: they belong to others."""
        for key in {(pod.namespace, pod.value.job) for pod in self._pods.cache.by_index(_BY_GROUP, group)}:
            handler(key)

    def on_node_change(self, handler: Callable[[NodeView | None, str], None]) -> None:
        """Call `handler` at every change of a node, with the node, or None if it was deleted, and its name."""
        self._nodes.on_change(lambda old, new: handler(new.value if new else None, _either(old, new).name))

    def on_slice_change(self, handler: Handler[DeviceSlice]) -> None:
        """Call `handler` with the old and the new object at every change of a ResourceSlice of GPUs."""
        self._device_slices.on_change(handler)

    def on_claim_change(self, handler: Handler[ClaimedDevices]) -> None:
        """Call `handler` with the old and the new object at every change of a ResourceClaim."""
        if self._claims is not None:
            self._claims.on_change(handler)

    def claims_with_label(self, job: JobKey) -> list[CachedObject[ClaimedDevices]]:
        return self._claims.cache.by_index(_BY_JOB, job) if self._claims is not None else []

    def claims_in(self, pool: str) -> list[CachedObject[ClaimedDevices]]:
        """Return the ResourceClaims that hold devices of the pool."""
        return self._claims.cache.by_index(_BY_POOL, pool) if self._claims is not None else []

    def on_use_change(self, handler: Callable[[PodUse | None, PodUse | None], None]) -> None:
        """Call `handler` with the old and the new use at every change of what a pod of no job uses. None if it uses nothing."""
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
        cached = self.jobs.get(*key)
        return cached.value.whole() if cached is not None else None

    def pods(self, key: JobKey) -> tuple[PodView, ...]:
        """Return every pod in the job's namespace with the job's label."""
        return tuple(cached.value for cached in self._pods.cache.by_index(_BY_JOB, key))

    def labelled_pods(self, key: JobKey) -> list[CachedObject[PodView]]:
        """Return the same pods, as the cache keeps them."""
        return self._pods.cache.by_index(_BY_JOB, key)

    async def sync_pods_of(self, key: JobKey) -> bool:
        """Return whether the cache has the pods with the job's label as the API server has them now. If not, it lists all pods again.
        Raises `ApiError` and `OSError`."""
        namespace, name = key
        current = True
        for reflector in self._pods.reflectors:
            if reflector.namespace not in ("", namespace):
                continue
            if not await reflector.agrees(namespace, f"{names.LABEL_JOB}={name}", lambda: self.labelled_pods(key)):
                reflector.list_again()
                current = False
        return current

    def is_ours(self, pod: PodView) -> bool:
        """Return whether a job that this operator runs owns the pod."""
        job = self.jobs.get(pod.namespace, pod.job)
        # By uid: a job that was made again under its name does not own the pods of the one before.
        return job is not None and job.uid == pod.owner and job.value.bare.managed_by == names.MANAGER

    def uid_of_ours(self, key: JobKey) -> str:
        """Return the job's uid, or "" if this operator runs no job of this name."""
        job = self.jobs.get(*key)
        return job.uid if job is not None and job.value.bare.managed_by == names.MANAGER else ""

    def is_of_other_operator(self, pod: PodView) -> bool:
        """Return whether the pod belongs to a job that another operator runs."""
        job = self.jobs.get(pod.namespace, pod.job)
        return job is not None and job.uid == pod.owner and job.value.bare.managed_by != names.MANAGER

    def pod_count(self, key: JobKey) -> int:
        return self._pods.cache.count(_BY_JOB, key)

    def pod(self, namespace: str, name: str) -> PodView | None:
        cached = self._pods.cache.get(namespace, name)
        return cached.value if cached is not None else None

    def children(self, key: JobKey) -> Children:
        """Return the objects that exist under the names that the job uses."""
        job = self.jobs.get(*key)
        secrets = {
            cached.name: cached.value.certificates
            for cached in self._secrets.cache.by_index(_BY_JOB, key)
            # The job's own Secret, if it was not read yet, is about to be listed again. Until then it is left out: what is in it is not
            # known, and must not be replaced if it is right.
            if cached.value.read or job is None or cached.value.certificates.owner != job.uid
        }
        config_maps = {cached.name: cached.value.view for cached in self._objects[names.CONFIG_MAPS].cache.by_index(_BY_JOB, key)}
        config_maps.pop(names.config_map_name(key[1]), None)  # the job file; all others are host lists
        return Children(
            config_map=self._child(names.CONFIG_MAPS, key, names.config_map_name),
            service=self._child(names.SERVICES, key, names.service_name),
            external_service=self._child(names.SERVICES, key, names.external_service_name),
            volume_claim=self._child(names.VOLUME_CLAIMS, key, names.volume_claim_name),
            authority=secrets.pop(names.authority_secret_name(key[1]), None),
            certificates=secrets,
            part_secret=self.part_secret(key),
            host_lists={name: child for name, child in config_maps.items() if child.unit},
            granted=self._granted_to(key),
        )

    def _granted_to(self, key: JobKey) -> dict[Resource, dict[str, Any]]:
        groups = {pod.value.group.name for pod in self._pods.cache.by_index(_BY_JOB, key) if pod.value.group is not None}
        granted = {}
        for resource, followed in self._granted.items():
            cached = (followed.cache.get(key[0], group) for group in groups)
            granted[resource] = {each.name: each.value for each in cached if each is not None}
        return granted

    def priority(self, name: str) -> int:
        """Return the value of a PriorityClass, for "" the cluster's default class. 0 if the class does not exist, as for pods without
        one."""
        if name:
            cached = self._priorities.cache.get("", name)
            return cached.value.value if cached is not None else 0
        return next((cached.value.value for cached in self._priorities.cache if cached.value.default), 0)

    @property
    def non_preempting(self) -> frozenset[str]:
        """Names of the PriorityClasses whose pods never pre-empt others."""
        return frozenset(cached.name for cached in self._priorities.cache if not cached.value.preempts)

    def authority(self, key: JobKey, owner: str) -> Authority | None:
        """Return the certificate authority of the job with uid `owner`, or None if it has none yet."""
        cached = self._secrets.cache.get(key[0], names.authority_secret_name(key[1]))
        # A deleted job of this name may have left its own, which is about to be collected with all that it signed.
        return cached.value.certificates.authority if cached is not None and cached.value.certificates.owner == owner else None

    def part_secret(self, key: JobKey) -> PartSecret | None:
        """Return the Secret that the job names in `spec.syncer.at`. None if it names none, or there is none with the job's label."""
        cached = self.jobs.get(*key)
        spec = cached.value.bare.spec if cached is not None else None
        if spec is None or spec.syncer.at is None:
            return None
        secret = self._secrets.cache.get(key[0], spec.syncer.at.secret_name)
        return secret.value.part if secret is not None and secret.value.job == key[1] else None

    def roots(self, key: JobKey) -> str:
        """Return PEM certificates of the authorities that may have signed the syncer's certificate, or "" if there are none."""
        cached = self._secrets.cache.get(key[0], names.syncer_secret_name(key[1]))
        return "".join(root.pem for root in cached.value.certificates.roots) if cached is not None else ""

    def cached_object(self, resource: Resource, namespace: str, name: str) -> CachedObject[Any] | None:
        """Return the cached object, or None. `resource`: one whose objects the operator may patch."""
        known: Mapping[Resource, _Followed[Any]] = {
            names.DILOCO_JOBS: self._jobs,
            names.SECRETS: self._secrets,
            names.PODS: self._pods,
            **self._objects,
            **self._granted,
        }
        followed = known[resource]
        return followed.cache.get(namespace, name)

    def _project_secret(self, obj: Obj, _previous: JobSecret | None) -> JobSecret:
        """Read the content of a Secret only if its owner is the job that its label names, or if it is a part's."""
        label, meta = job_label(obj), fields(obj, "metadata")
        job = self.jobs.get(string(meta, "namespace", "metadata"), label)
        ours = job is not None and job.uid == controller_uid(meta)
        if ours:
            return JobSecret(label, project_certificates(obj), read=True)
        return JobSecret(label, project_foreign(obj), read=False, part=project_part_secret(obj))

    def _read_secrets_of_new_job(self, old: CachedObject[CachedJob] | None, new: CachedObject[CachedJob] | None) -> None:
        """Read the Secrets of a new job. They may have come before it: from another replica, or while the jobs were not listed yet."""
        if new is None or (old is not None and old.uid == new.uid):
            return
        for secret in self._secrets.cache.by_index(_BY_JOB, new.key):
            self._read_again(None, secret)

    def _read_again(self, _: CachedObject[JobSecret] | None, secret: CachedObject[JobSecret] | None) -> None:
        """Read a job's own Secret that was projected before its job was known, on an earlier page of a long list for example."""
        if secret is None or secret.value.read:
            return
        job = self.jobs.get(secret.namespace, secret.value.job)
        if job is not None and job.uid == secret.value.certificates.owner:
            for reflector in self._secrets.reflectors:
                if reflector.namespace in ("", secret.namespace):
                    reflector.list_again()

    def _child(self, resource: Resource, key: JobKey, name: Callable[[str], str]) -> Child | None:
        cached = self._objects[resource].cache.get(key[0], name(key[1]))
        return cached.value.view if cached is not None else None


def _either[T](old: CachedObject[T] | None, new: CachedObject[T] | None) -> CachedObject[T]:
    cached = new if new is not None else old
    assert cached is not None
    return cached


def _job_of_object[T](cached: CachedObject[JobObject[T]]) -> Iterable[JobKey]:
    return ((cached.namespace, cached.value.job),)


def _job_of_pod(cached: CachedObject[PodView]) -> Iterable[JobKey]:
    return ((cached.namespace, cached.value.job),)


def _job_of_claim(cached: CachedObject[ClaimedDevices]) -> Iterable[JobKey]:
    return ((cached.namespace, cached.value.job),) if cached.value.job else ()


def _pools_of_claim(cached: CachedObject[ClaimedDevices]) -> Iterable[str]:
    return {pool for pool, _ in cached.value.devices}


def _group_of_pod(cached: CachedObject[PodView]) -> Iterable[tuple[str, str]]:
    return ((cached.namespace, cached.value.group.name),) if cached.value.group is not None else ()


def _other_pods(namespaces: Sequence[str] | None) -> Iterable[tuple[str, str]]:
    """Yield label and field selectors of the pods that are not of jobs in these namespaces: of all if empty, and nothing if None. A pod
    with the job label is of a job, or pretends to be. In the jobs' own namespaces the cache of their pods has it already."""
    if namespaces is None:
        return
    yield f"!{names.LABEL_JOB}", USING
    if namespaces:
        yield names.LABEL_JOB, ",".join([USING, *(f"metadata.namespace!={each}" for each in dict.fromkeys(namespaces))])


def _forbidden(reflector: Reflector[Any]) -> str:
    where = f"namespace {reflector.namespace}" if reflector.namespace else "the cluster"
    return f"the operator may not read {reflector.resource.plural} in {where}: {reflector.forbidden}"
