"""The other clusters in which this operator makes parts of its jobs, for `pools[].cluster`.

Each has a client of its own, a watch of the parts that are there, and a worker. So one that does not answer holds up nothing else: a
reconcile says what it wants and never waits for another cluster. What is wanted is compared with what is there, again and again.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diloco.protocol.backoff import ExponentialBackoff

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj, Unavailable
from diloco_operator.kube.fields import contents, fields, string
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.workqueue import ShutDown, WorkQueue
from diloco_operator.plan import WantedPart
from diloco_operator.reconcile.children.part_manifest import secret_data
from diloco_operator.reconcile.observe.part_view import PartJob, PartView, project_part_job
from diloco_operator.timeouts import WatchTimeouts

log = logging.getLogger(__name__)

_RETRY = ExponentialBackoff(initial=1.0, ceiling=60.0)
_RESYNC = 300.0
"""Seconds after which a part is compared again although nothing has changed: its Secret is not watched."""
_LOOK = 15.0
"""Seconds between two looks whether the API server answers. A watch does not tell: it may be silent because nothing changes."""
_WORKERS = 4
"""Parts of one cluster that are written at once."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster in which this operator may make parts."""

    name: str
    kubeconfig: str
    """Path of a file."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespace of jobs here that may have parts there -> namespace of these parts."""


@dataclass(slots=True)
class _Wish:
    uid: str
    """The job's."""
    part: WantedPart | None
    """None: it must go."""
    problem: str = ""
    ended: bool = False
    """It had to go, and nothing of it was left at the last look."""


@dataclass(frozen=True, slots=True)
class OtherClusters:
    """The other clusters that an operator was told of."""

    clients: Sequence[tuple[ClusterConfig, Client]] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    """Name of a cluster without a client -> why it has none."""


class PartCluster:
    """One other cluster. `changed` is called with the job's key when something of its part has changed."""

    def __init__(
        self,
        home: Client,
        there: Client,
        config: ClusterConfig,
        changed: Callable[[JobKey], None],
        *,
        now: Callable[[], float],
        rng: Callable[[], float],
        timeouts: WatchTimeouts | None = None,
    ) -> None:
        self._home = home
        self._there = there
        self._config = config
        self._changed = changed
        self._now = now
        self._wishes: dict[JobKey, _Wish] = {}
        self._queue: WorkQueue[JobKey] = WorkQueue(_RETRY, rng, workers=_WORKERS)
        self._reflectors = {
            namespace: Reflector(
                there,
                WatchedResource(names.DILOCO_JOBS, lambda obj, _: project_part_job(obj), namespace, names.LABEL_HOME),
                rng=rng,
                timeouts=timeouts,
            )
            for namespace in dict.fromkeys(config.namespaces.values())
        }
        for reflector in self._reflectors.values():
            reflector.on_change(self._on_change)
        self._silent_since: float | None = now()
        """Since when the API server has not answered. At first nothing is known of it."""

    @property
    def what(self) -> str:
        return f"parts in cluster {self._config.name}"

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors.values():
                group.create_task(reflector.run(), name=reflector.what)
            group.create_task(self._look(), name=f"{self.what}: look")
            for index in range(_WORKERS):
                group.create_task(self._work(), name=f"{self.what} {index}")

    def want(self, key: JobKey, uid: str, part: WantedPart | None) -> None:
        """Say how the job's part should be. None: it should not be there."""
        before = self._wishes.get(key)
        if before is None or (before.uid, before.part) != (uid, part):
            self._wishes[key] = _Wish(uid, part, before.problem if before is not None and before.uid == uid else "")
            self._queue.add(key)

    def forget(self, key: JobKey) -> None:
        self._wishes.pop(key, None)

    def view(self, key: JobKey, uid: str) -> PartView:
        """Return what is known of the job's part."""
        wish, found = self._wishes.get(key), self._found(key)
        ours = found.value if found is not None and found.value.home == uid else None
        problem = self._refused(key[0]) or (wish.problem if wish is not None and wish.uid == uid else "")
        if key[0] not in self._config.namespaces:
            return PartView(ours, problem)
        left = wish is None or wish.uid != uid or not wish.ended
        return PartView(ours, problem, self._silent_since, left, namespace=self._config.namespaces[key[0]])

    def _refused(self, namespace: str) -> str:
        if namespace not in self._config.namespaces:
            return f"jobs of namespace {namespace} may have no parts in cluster {self._config.name}; clusters of the chart says which may"
        reflector = self._reflectors[self._config.namespaces[namespace]]
        return reflector.forbidden or reflector.failing

    async def _look(self) -> None:
        """Find out again and again whether the API server answers, and tell the jobs when that changes."""
        while True:
            before, self._silent_since = self._silent_since, await self._silence(self._silent_since)
            if (before is None) != (self._silent_since is None):
                for key in list(self._wishes):
                    self._changed(key)
            await asyncio.sleep(_LOOK)

    async def _silence(self, since: float | None) -> float | None:
        """Return since when the API server has not answered, None if it does. `since`: as it was at the last look."""
        began = self._now()
        try:
            async with asyncio.timeout(_LOOK):
                for namespace in self._reflectors:
                    await self._there.list(names.DILOCO_JOBS, namespace, limit=1)
        except (Unavailable, OSError, TimeoutError):
            return since if since is not None else began
        except ApiError:
            return None  # it answers; `problem` says what is wrong
        return None if all(reflector.synced or reflector.forbidden for reflector in self._reflectors.values()) else since

    def _found(self, key: JobKey) -> CachedObject[PartJob] | None:
        namespace = self._config.namespaces.get(key[0])
        return self._reflectors[namespace].cache.get(namespace, key[1]) if namespace is not None else None

    def _on_change(self, old: CachedObject[PartJob] | None, new: CachedObject[PartJob] | None) -> None:
        cached = new if new is not None else old
        assert cached is not None, "one of the two is there"
        for here, there in self._config.namespaces.items():
            key = (here, cached.name)
            if there == cached.namespace and key in self._wishes:
                self._queue.add(key)
                self._changed(key)

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except ShutDown:
                return
            try:
                await self._step(key)
            finally:
                self._queue.done(key)
            await asyncio.sleep(0)

    async def _step(self, key: JobKey) -> None:
        wish = self._wishes.get(key)
        namespace = self._config.namespaces.get(key[0])
        if wish is None or namespace is None:
            return
        try:
            await self._reflectors[namespace].wait_answered()
            if not self._reflectors[namespace].synced:  # forbidden; other namespaces need the worker
                self._queue.add_after(key, _LOOK)
                return
            if wish.part is not None:
                problem, ended = await self._make(key, namespace, wish), False
            else:
                problem, ended = "", await self._end(key, namespace, wish)
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("the part of %s/%s in cluster %s: %s", *key, self._config.name, error)
            self._note(key, wish, f"cluster {self._config.name}: {error}")
            self._queue.add_rate_limited(key)
            return
        except Exception:  # a defect that shows in one part must not stop the others
            log.exception("the part of %s/%s in cluster %s: this is a defect, please report it", *key, self._config.name)
            self._note(key, wish, f"cluster {self._config.name}: a defect of the operator, which its log describes; please report it")
            self._queue.add_rate_limited(key)
            return
        self._note(key, wish, problem, ended)
        self._queue.forget(key)
        self._queue.add_after(key, _RESYNC if wish.part is not None or ended else _LOOK)

    def _note(self, key: JobKey, wish: _Wish, problem: str, ended: bool = False) -> None:
        if (wish.problem, wish.ended) != (problem, ended):
            wish.problem, wish.ended = problem, ended
            self._changed(key)

    async def _make(self, key: JobKey, namespace: str, wish: _Wish) -> str:
        """Make the part what it should be, its Secret first. Return what keeps it from that, "" if nothing does."""
        part, found = wish.part, self._found(key)
        assert part is not None, "asked by the caller"
        if found is not None and found.value.home != wish.uid:
            return f"DiLoCoJob {namespace}/{key[1]} in cluster {self._config.name} is a part of another job; delete it, or rename this one"
        if found is None and not part.may_be_made:
            return ""
        await self._write_secret(key, namespace, wish.uid, part)
        spec = part.manifest["spec"]
        digest = _digest(json.dumps(spec, sort_keys=True))
        annotations = {names.ANNOTATION_SPEC_DIGEST: digest}
        metadata = {**part.manifest["metadata"], "name": key[1], "namespace": namespace, "annotations": annotations}
        manifest = {**part.manifest, "metadata": metadata}
        if found is None:
            try:
                # An older CRD would drop syncer.at without a word, and the part would be a job of its own.
                stored = await self._there.create(names.DILOCO_JOBS, manifest, field_manager=names.FIELD_MANAGER, dry_run=True)
                if not _has(stored.get("spec"), {"syncer": spec["syncer"]}):
                    return f"the CRD in cluster {self._config.name} knows no syncer.at: upgrade the operator there"
                await self._there.create(names.DILOCO_JOBS, manifest, field_manager=names.FIELD_MANAGER)
            except AlreadyExists:
                if key[1] in {fields(job, "metadata").get("name") for job in await self._ours(namespace, wish)}:
                    return ""  # the watch has not shown it yet
                return (
                    f"DiLoCoJob {namespace}/{key[1]} exists in cluster {self._config.name} and is no part of this job; rename one of them"
                )
        elif found.value.failed(spec.get("retry") or 0):
            return ""  # the API server there refuses other changes than a retry
        # The digest tells that a field has gone here. What the spec there has beyond what is wanted does not: the API server adds defaults.
        elif not found.value.deleting and not (found.value.digest == digest and _has(found.value.spec, spec)):
            meta = {"uid": found.uid, "resourceVersion": found.version, "annotations": annotations}
            body = {"metadata": meta, "spec": _replacing(found.value.spec, spec)}
            await self._there.patch(names.DILOCO_JOBS, namespace, key[1], body, field_manager=names.FIELD_MANAGER)
        return ""

    async def _write_secret(self, key: JobKey, namespace: str, uid: str, part: WantedPart) -> None:
        name, version = names.home_secret_name(key[1]), f"{part.secret_version}-{_digest(part.job_file)}"
        try:
            there: Obj | None = await self._there.get(names.SECRETS, namespace, name)
        except NotFound:
            there = None
        meta = fields(there, "metadata") if there is not None else {}
        if there is not None and string(fields(meta, "labels"), names.LABEL_HOME) != uid:
            raise Conflict(409, "Conflict", f"Secret {namespace}/{name} exists there and is not of this job; delete it, or rename the job")
        if there is not None and string(fields(meta, "annotations"), names.ANNOTATION_SECRET_VERSION) == version:
            return
        here = await self._home.get(names.SECRETS, key[0], part.secret)
        labels = {names.LABEL_JOB: key[1], names.LABEL_HOME: uid}
        annotations = {names.ANNOTATION_SECRET_VERSION: version}
        metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "data": secret_data(contents(here, "data"), part.job_file),
        }
        if there is None:
            await self._there.create(names.SECRETS, secret, field_manager=names.FIELD_MANAGER)
        else:  # as a whole, so that certificates of old attempts go
            bound = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            secret = {**secret, "metadata": {**metadata, **bound}}
            await self._there.update(names.SECRETS, secret, field_manager=names.FIELD_MANAGER)

    async def _end(self, key: JobKey, namespace: str, wish: _Wish) -> bool:
        """Delete the part. Its Secret goes once it is gone, as its pods need it until then. Return whether nothing of it is left."""
        # Not from the cache: it may lack a part that was made just now, and lacks one whose status cannot be read.
        left = await self._ours(namespace, wish)
        for job in left:
            meta = fields(job, "metadata")
            if not meta.get("deletionTimestamp"):
                name, uid = string(meta, "name", "metadata"), string(meta, "uid", "metadata")
                await self._gone(self._there.delete(names.DILOCO_JOBS, namespace, name, uid=uid))
        if left:
            return False
        name = names.home_secret_name(key[1])
        try:
            there = await self._there.get(names.SECRETS, namespace, name)
        except NotFound:
            return True
        meta = fields(there, "metadata")
        if string(fields(meta, "labels"), names.LABEL_HOME) == wish.uid:
            await self._gone(self._there.delete(names.SECRETS, namespace, name, uid=string(meta, "uid")))
        return True

    async def _ours(self, namespace: str, wish: _Wish) -> Sequence[Obj]:
        """Return what there is of the part, also where the watch has not shown it."""
        return (await self._there.list(names.DILOCO_JOBS, namespace, label_selector=f"{names.LABEL_HOME}={wish.uid}")).items

    @staticmethod
    async def _gone(deletion: Any) -> None:
        try:
            await deletion
        except (NotFound, Conflict):
            return  # it is gone, or another object has its name


class PartClusters:
    """All other clusters. `problems`: clusters that cannot be used, with the reason."""

    def __init__(self, clusters: Mapping[str, PartCluster] | None = None, problems: Mapping[str, str] | None = None) -> None:
        self._clusters = dict(clusters or {})
        self._problems = dict(problems or {})

    @property
    def running(self) -> list[PartCluster]:
        """The clusters; each must run."""
        return list(self._clusters.values())

    def want(self, key: JobKey, uid: str, parts: Iterable[WantedPart]) -> None:
        """Say how all parts of the job should be."""
        wanted = {part.cluster: part for part in parts}
        for name, cluster in self._clusters.items():
            cluster.want(key, uid, wanted.get(name))

    def forget(self, key: JobKey) -> None:
        for cluster in self._clusters.values():
            cluster.forget(key)

    def views(self, key: JobKey, uid: str, wanted: Iterable[str], *, everywhere: bool = False) -> dict[str, PartView]:
        """Return what is known of the job's parts: in the clusters that it names, and where else it has some. `everywhere`: also where
        something of one may be left."""
        named = set(wanted)
        if not named and not everywhere:
            return {}
        views = {name: cluster.view(key, uid) for name, cluster in self._clusters.items()}
        known = {name: view for name, view in views.items() if name in named or view.job is not None or view.left}
        unusable = {name: PartView(problem=self._problems[name], left=True) for name in named & self._problems.keys()}
        unknown = {
            name: PartView(problem=_no_such(name, self._clusters), left=True, unknown=True)
            for name in named - views.keys() - unusable.keys()
        }
        return known | unusable | unknown


def _no_such(name: str, clusters: Iterable[str]) -> str:
    others = ", ".join(clusters)
    return f"the operator knows no cluster {name}; {f'it knows {others}' if others else 'it knows none'}: see clusters of the chart"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _replacing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Obj:
    """Return the merge patch after which `found` is what is wanted. Defaults go too, and the API server adds them again."""
    gone = dict.fromkeys(found.keys() - wanted.keys())
    return gone | {
        key: _replacing(found[key], value) if isinstance(value, dict) and isinstance(found.get(key), dict) else value
        for key, value in wanted.items()
    }


def _has(found: Any, wanted: Any) -> bool:
    """Return whether the object has all that is wanted. An API server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and _has(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_has, found, wanted))
    return bool(found == wanted)
