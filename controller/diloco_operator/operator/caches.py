"""What the operator knows of the cluster: one reflector for each resource that a reconcile reads.

See docs/decisions/0105-rights-and-networks.md. See docs/decisions/0173-requests-and-quota.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.certificates.authority import Authority
from diloco_operator.certificates.view import project_certificates, project_foreign
from diloco_operator.fleet import NodeView, PodUse, project_node
from diloco_operator.fleet.device_pools import ClaimedDevices, DeviceSlice, project_claim, project_slice
from diloco_operator.kube.cache import Cache, CachedObject, Handler, Indexer, Projection
from diloco_operator.kube.client import Client, Obj, Resource
from diloco_operator.kube.fields import controller_uid, fields, string
from diloco_operator.kube.malformed import MalformedObjects
from diloco_operator.kube.reflector import Reflector
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
from diloco_operator.timeouts import WatchTimeouts

_BY_JOB = "job"
_BY_GROUP = "group"
_BY_POOL = "pool"
USING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that use resources of a node."""
_WITHOUT_OTHER_PODS = (
    "the operator does not see which nodes other pods use: it may choose a slice that is not free, whose unit then waits for its node. "
    "Grant list and watch of pods in all namespaces (chart value watchOtherPods), or set watchOtherPods: false."
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
    """All reflectors of an operator. `namespaces`: only jobs of these and their objects; empty: of all. Nodes are those of the cluster,
    and so are pods that are not of jobs, unless `other_pods` is False. `end_annotations`: see `project_node`."""

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
            resource: Resource,
            project: Projection[T],
            *,
            ours: bool = True,
            indexers: Mapping[str, Indexer[T]] | None = None,
            problem: Callable[[T], str] = lambda _: "",
            without: str = "",
            selected: str = "",
            everywhere: bool = False,
        ) -> _Followed[T]:
            cache: Cache[T] = Cache(indexers)
            # Once each: a namespace that is configured twice would be listed and watched twice.
            where = tuple(dict.fromkeys(namespaces)) if resource.namespaced and namespaces and not everywhere else ("",)
            reflectors = [
                Reflector(
                    client,
                    resource,
                    project,
                    rng=rng,
                    namespace=namespace,
                    cache=cache,
                    label_selector=names.LABEL_JOB if ours else "",
                    field_selector=selected,
                    timeouts=timeouts,
                    malformed=self.malformed,
                    problem=problem,
                    without=without,
                )
                for namespace in where
            ]
            return _Followed(cache, reflectors)

        self._jobs = reflect(names.DILOCO_JOBS, CachedJob.of, ours=False, problem=lambda job: job.problem)
        self._pods = reflect(
            names.PODS,
            lambda obj, _: project_pod(obj),
            indexers={_BY_JOB: _job_of_pod, _BY_GROUP: _group_of_pod},
            problem=lambda pod: pod.problem,
        )
        self._nodes = reflect(names.NODES, lambda obj, _: project_node(obj, end_annotations), ours=False)
        self._priorities = reflect(names.PRIORITY_CLASSES, lambda obj, _: project_priority(obj), ours=False)
        self._objects = {
            resource: reflect(resource, project_object, indexers={_BY_JOB: _job_of_object})
            for resource in (names.CONFIG_MAPS, names.SERVICES, names.VOLUME_CLAIMS)
        }

        def reflect_granted[T](watched: Watched[T]) -> _Followed[T]:
            return reflect(
                watched.resource,
                lambda obj, _: watched.project(obj),
                ours=False,
                without=watched.without,
            )

        self._granted: Mapping[Resource, _Followed[Any]] = {each.resource: reflect_granted(each) for each in WATCHES}
        """What grantors need, followed only where it can be read."""
        self._device_slices = reflect(
            names.RESOURCE_SLICES,
            lambda obj, _: project_slice(obj),
            ours=False,
            without=_WITHOUT_SLICES,
            selected=names.GPU_SLICES,
        )
        self._claims: _Followed[ClaimedDevices] | None = None
        """What pods claim; None: the operator is not to see it."""
        if other_pods:
            self._claims = reflect(
                names.RESOURCE_CLAIMS,
                lambda obj, _: project_claim(obj),
                ours=False,
                indexers={_BY_JOB: _job_of_claim, _BY_POOL: _pools_of_claim},
                without=_WITHOUT_CLAIMS,
                everywhere=True,
            )
        self._secrets = reflect(names.SECRETS, self._project_secret, indexers={_BY_JOB: lambda held: ((held.namespace, held.value.job),)})
        # A Secret that came before its job was taken for a stranger's. Nothing else would read its certificates then.
        self._jobs.on_change(self._read_secrets_of_new_job)
        self._other_pods = tuple(
            Reflector(
                client,
                names.PODS,
                project_use,
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
            self._device_slices,
            *((self._claims,) if self._claims is not None else ()),
            *self._granted.values(),
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
        """Return when every resource was listed once, or may not be listed in a namespace. Nothing may be decided before."""
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
        """Whether there is a namespace for whose jobs no right is missing."""
        # A reflector of all namespaces has "": without its right no job can be decided.
        without = {reflector.namespace for reflector in self._forbidden}
        return "" not in without and bool(self._namespaces - without or not without)

    @property
    def failures(self) -> list[str]:
        """What the API server answers instead of lists, a sentence for each resource and namespace. Its objects are those of before."""
        return [f"{reflector.what}: {reflector.failing}" for reflector in self.reflectors if reflector.failing]

    def on_failure_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` when a resource comes to be in `failures`, or is no longer."""
        for reflector in self.reflectors:
            reflector.on_failure_change(handler)

    def missing_rights_in(self, namespace: str) -> list[str]:
        """Return the same for the jobs of one namespace: without these rights nothing can be decided there."""
        return [_forbidden(reflector) for reflector in self._forbidden if reflector.namespace in ("", namespace)]

    def without(self, namespace: str) -> dict[Resource, str]:
        """Return what grantors need and that cannot be read in the namespace, and why."""
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
        for granted in self._granted.values():
            granted.on_change(lambda old, new: self._on_group(handler, _either(old, new).key))

    def _on_group(self, handler: Callable[[JobKey], None], group: tuple[str, str]) -> None:
        """Call the handler for a group that has pods of a job; none of the many groups of others has."""
        for key in {(pod.namespace, pod.value.job) for pod in self._pods.cache.by_index(_BY_GROUP, group)}:
            handler(key)

    def on_node_change(self, handler: Callable[[NodeView | None, str], None]) -> None:
        """Call `handler` at every change of a node, with the node (None: deleted) and its name."""
        self._nodes.on_change(lambda old, new: handler(new.value if new else None, _either(old, new).name))

    def on_slice_change(self, handler: Handler[DeviceSlice]) -> None:
        """Call `handler` with the old and the new object at every change of a ResourceSlice of GPUs."""
        self._device_slices.on_change(handler)

    def on_claim_change(self, handler: Handler[ClaimedDevices]) -> None:
        """Call `handler` with the old and the new object at every change of a ResourceClaim."""
        if self._claims is not None:
            self._claims.on_change(handler)

    def claims_with_label(self, job: JobKey) -> list[CachedObject[ClaimedDevices]]:
        """Return the ResourceClaims with the job's label."""
        return self._claims.cache.by_index(_BY_JOB, job) if self._claims is not None else []

    def claims_in(self, pool: str) -> list[CachedObject[ClaimedDevices]]:
        """Return the ResourceClaims that hold devices of the pool."""
        return self._claims.cache.by_index(_BY_POOL, pool) if self._claims is not None else []

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
        """Return the job, or None."""
        held = self.jobs.get(*key)
        return held.value.whole() if held is not None else None

    def pods(self, key: JobKey) -> tuple[PodView, ...]:
        """Return every pod in the job's namespace with the job's label."""
        return tuple(held.value for held in self._pods.cache.by_index(_BY_JOB, key))

    def labelled_pods(self, key: JobKey) -> list[CachedObject[PodView]]:
        """Return the same as the cache has them."""
        return self._pods.cache.by_index(_BY_JOB, key)

    async def has_pods_of(self, key: JobKey) -> bool:
        """Return whether the cache has the pods with the job's label as the API server has them now. If it has not, all are listed again.
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
        """Return the uid of a job that this operator runs; "": it runs none of this name."""
        job = self.jobs.get(*key)
        return job.uid if job is not None and job.value.bare.managed_by == names.MANAGER else ""

    def is_of_other_operator(self, pod: PodView) -> bool:
        """Return whether a job owns the pod that another operator runs."""
        job = self.jobs.get(pod.namespace, pod.job)
        return job is not None and job.uid == pod.owner and job.value.bare.managed_by != names.MANAGER

    def pod_count(self, key: JobKey) -> int:
        """Return the number of pods with the job's label."""
        return self._pods.cache.count(_BY_JOB, key)

    def pod(self, namespace: str, name: str) -> PodView | None:
        """Return the pod, or None."""
        held = self._pods.cache.get(namespace, name)
        return held.value if held is not None else None

    def children(self, key: JobKey) -> Children:
        """Return the objects that exist under the names that the job uses."""
        job = self.jobs.get(*key)
        secrets = {
            held.name: held.value.certificates
            for held in self._secrets.cache.by_index(_BY_JOB, key)
            # Its own, not read yet: it is listed again. Until then it is not there, so that nothing is replaced that is right.
            if held.value.read or job is None or held.value.certificates.owner != job.uid
        }
        config_maps = {held.name: held.value.view for held in self._objects[names.CONFIG_MAPS].cache.by_index(_BY_JOB, key)}
        config_maps.pop(names.config_map_name(key[1]), None)
        return Children(
            config_map=self._child(names.CONFIG_MAPS, key, names.config_map_name),
            service=self._child(names.SERVICES, key, names.service_name),
            external_service=self._child(names.SERVICES, key, names.external_service_name),
            volume_claim=self._child(names.VOLUME_CLAIMS, key, names.volume_claim_name),
            authority=secrets.pop(names.authority_secret_name(key[1]), None),
            certificates=secrets,
            host_lists={name: child for name, child in config_maps.items() if child.unit},
            granted=self._granted_to(key),
        )

    def _granted_to(self, key: JobKey) -> dict[Resource, dict[str, Any]]:
        groups = {pod.value.group.name for pod in self._pods.cache.by_index(_BY_JOB, key) if pod.value.group is not None}
        found = {}
        for resource, followed in self._granted.items():
            held = (followed.cache.get(key[0], group) for group in groups)
            found[resource] = {each.name: each.value for each in held if each is not None}
        return found

    def priority(self, name: str) -> int:
        """Return the value of a PriorityClass; "": that of the cluster's default class. 0 if the class does not exist, as for pods without
        one."""
        if name:
            held = self._priorities.cache.get("", name)
            return held.value.value if held is not None else 0
        return next((held.value.value for held in self._priorities.cache if held.value.default), 0)

    @property
    def non_preempting(self) -> frozenset[str]:
        """Names of the PriorityClasses whose pods never pre-empt others."""
        return frozenset(held.name for held in self._priorities.cache if not held.value.preempts)

    def authority(self, key: JobKey, owner: str) -> Authority | None:
        """Return the certificate authority of the job with uid `owner`; None: it has none yet."""
        held = self._secrets.cache.get(key[0], names.authority_secret_name(key[1]))
        # Not that of a deleted job of this name: it is about to be collected, and what it signs with it.
        return held.value.certificates.authority if held is not None and held.value.certificates.owner == owner else None

    def roots(self, key: JobKey) -> str:
        """Return certificates of the authorities that may have signed the syncer's certificate, PEM; "" if there are none."""
        held = self._secrets.cache.get(key[0], names.syncer_secret_name(key[1]))
        return "".join(root.pem for root in held.value.certificates.roots) if held is not None else ""

    def shown(self, resource: Resource, namespace: str, name: str) -> CachedObject[Any] | None:
        """Return an object of a job that the operator may patch as the cache has it, or None."""
        known: Mapping[Resource, _Followed[Any]] = {names.SECRETS: self._secrets, names.PODS: self._pods, **self._objects, **self._granted}
        followed = known[resource]
        return followed.cache.get(namespace, name)

    def _project_secret(self, obj: Obj, _previous: JobSecret | None) -> JobSecret:
        """Read the content of a Secret only if its owner is the job that its label names."""
        label, meta = job_label(obj), fields(obj, "metadata")
        job = self.jobs.get(string(meta, "namespace", "metadata"), label)
        ours = job is not None and job.uid == controller_uid(meta)
        return JobSecret(label, project_certificates(obj) if ours else project_foreign(obj), ours)

    def _read_secrets_of_new_job(self, old: CachedObject[CachedJob] | None, new: CachedObject[CachedJob] | None) -> None:
        """Read the Secrets of a new job, which may have come before it: those of another replica, or while the jobs were not listed yet."""
        if new is None or (old is not None and old.uid == new.uid):
            return
        if any(not held.value.read and held.value.certificates.owner == new.uid for held in self._secrets.cache.by_index(_BY_JOB, new.key)):
            for reflector in self._secrets.reflectors:
                if reflector.namespace in ("", new.namespace):
                    reflector.list_again()

    def _child(self, resource: Resource, key: JobKey, name: Callable[[str], str]) -> Child | None:
        held = self._objects[resource].cache.get(key[0], name(key[1]))
        return held.value.view if held is not None else None


def _either[T](old: CachedObject[T] | None, new: CachedObject[T] | None) -> CachedObject[T]:
    held = new if new is not None else old
    assert held is not None
    return held


def _job_of_object[T](held: CachedObject[JobObject[T]]) -> Iterable[JobKey]:
    return ((held.namespace, held.value.job),)


def _job_of_pod(held: CachedObject[PodView]) -> Iterable[JobKey]:
    return ((held.namespace, held.value.job),)


def _job_of_claim(held: CachedObject[ClaimedDevices]) -> Iterable[JobKey]:
    return ((held.namespace, held.value.job),) if held.value.job else ()


def _pools_of_claim(held: CachedObject[ClaimedDevices]) -> Iterable[str]:
    return {pool for pool, _ in held.value.devices}


def _group_of_pod(held: CachedObject[PodView]) -> Iterable[tuple[str, str]]:
    return ((held.namespace, held.value.group.name),) if held.value.group is not None else ()


def _other_pods(namespaces: Sequence[str] | None) -> Iterable[tuple[str, str]]:
    """Return label and field selectors of the pods that are not of jobs in these namespaces (empty: of all); None: nothing is selected. A
    pod with the label is of a job, or pretends to be; those of the jobs' own namespaces are in the cache of their pods already."""
    if namespaces is None:
        return
    yield f"!{names.LABEL_JOB}", USING
    if namespaces:
        yield names.LABEL_JOB, ",".join([USING, *(f"metadata.namespace!={each}" for each in dict.fromkeys(namespaces))])


def _forbidden(reflector: Reflector[Any]) -> str:
    where = f"namespace {reflector.namespace}" if reflector.namespace else "the cluster"
    return f"the operator may not read {reflector.resource.plural} in {where}: {reflector.forbidden}"
