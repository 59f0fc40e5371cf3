"""One DiLoCoJob as reconcile reads it: its spec parsed, its status raw. Projected once from raw JSON for the caches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.api.addresses import parse_address
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.kinds import has_shape, kind_problems
from diloco_operator.api.spec import Part, PartPool, Pool, Spec
from diloco_operator.kube.client import Cause, Obj
from diloco_operator.kube.fields import (
    MalformedField,
    clip,
    fields,
    moment,
    needed_string,
    string,
    strings,
    whole_number,
)
from diloco_operator.reconcile.observe.derived import Derived, derive
from diloco_operator.reconcile.observe.object_size import stored_bytes, too_large
from diloco_operator.reconcile.observe.template import is_malformed, template_problems


def job_key(namespace: str, name: str, uid: str) -> str:
    """The key of a job in `Inventory.set_reservations`. A later object of the same name is another job."""
    return f"{namespace}/{name}/{uid}"


@dataclass(frozen=True, slots=True)
class Job:
    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    deleting: bool
    outlives_deletion: bool
    """The job is being deleted, but a finalizer of another program keeps it. Until it is gone, garbage collection leaves its objects
    alone."""
    managed_by: str
    spec: Spec | None
    """The part of the spec that can be read. None if nothing can be, see `problems`."""
    problems: tuple[Cause, ...]
    """What is wrong with a spec that the API server accepted. Nothing starts then, but what runs is still judged by the spec."""
    status: Mapping[str, Any]
    derived: Derived | None
    """None if `spec` is."""
    all_pools: tuple[Pool, ...] = ()
    """The pools of all clusters, in the order of the spec. `spec.pools` has those of this cluster, and `spec.parts` the others' units."""
    finalizers: tuple[str, ...] = ()
    deleted_at: float = 0.0
    """When its deletion was asked for, 0 if it was not."""
    version: str = ""
    """metadata.resourceVersion."""
    bytes_beside_status: int = 0
    """Bytes of the object without its status, as an API server stores them."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def away(self) -> tuple[Pool, ...]:
        """The pools that are in other clusters."""
        return tuple(pool for pool in self.all_pools if pool.cluster)

    @property
    def key(self) -> str:
        return job_key(self.namespace, self.name, self.uid)


def parse_job(obj: Obj, previous: Job | None = None) -> Job:
    """Parse the spec anew only if uid or generation differ from `previous`. Faults of the spec become `problems`; malformed metadata raises
    `MalformedField`."""
    meta = fields(obj, "metadata")
    uid, generation = string(meta, "uid", "metadata"), whole_number(meta, "generation", "metadata", most=2**63 - 1)
    spec: Spec | None
    problems: tuple[Cause, ...]
    derived: Derived | None
    pools: tuple[Pool, ...]
    beside = _bytes_beside_status(obj)
    name, namespace = needed_string(meta, "name", "metadata"), string(meta, "namespace", "metadata") or "default"
    if previous is not None and (previous.uid, previous.generation) == (uid, generation):
        spec, problems, derived, pools = previous.spec, previous.problems, previous.derived, previous.all_pools
    else:
        spec, problems = _parse_spec(obj, beside)
        pools = spec.pools if spec is not None else ()
        spec = _without_other_clusters(spec) if spec is not None else None
        derived = derive(spec, name=name, namespace=namespace, uid=uid) if spec is not None else None
    raw_spec, raw_status = obj.get("spec"), obj.get("status")
    deleting = bool(meta.get("deletionTimestamp"))
    return Job(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=generation,
        created=moment(meta, "creationTimestamp", "metadata") or 0.0,
        deleting=deleting,
        outlives_deletion=deleting and _is_kept(meta.get("finalizers")),
        managed_by=_managed_by(raw_spec),
        spec=spec,
        problems=problems,
        status=raw_status if isinstance(raw_status, dict) else {},
        derived=derived,
        all_pools=pools,
        finalizers=_finalizers(meta.get("finalizers")),
        deleted_at=moment(meta, "deletionTimestamp", "metadata") or 0.0,
        version=string(meta, "resourceVersion", "metadata"),
        bytes_beside_status=beside,
        labels=strings(meta, "labels", "metadata"),
    )


def _bytes_beside_status(obj: Obj) -> int:
    try:
        return stored_bytes({key: value for key, value in obj.items() if key != "status"})
    except RecursionError:
        raise MalformedField("spec", "is nested too deep") from None


def _finalizers(finalizers: object) -> tuple[str, ...]:
    return tuple(map(str, finalizers)) if isinstance(finalizers, list) else ()


def _without_other_clusters(spec: Spec) -> Spec:
    """Return the spec of this cluster, with a part for each other one."""
    away = [pool for pool in spec.pools if pool.cluster and pool.learners.max]
    made = [
        Part(name=cluster, pools=tuple(PartPool(name=pool.name, units=pool.learners.max) for pool in away if pool.cluster == cluster))
        for cluster in dict.fromkeys(pool.cluster for pool in away)
    ]
    here = tuple(pool for pool in spec.pools if not pool.cluster)
    return spec.model_copy(update={"pools": here, "parts": (*spec.parts, *made)}) if len(here) < len(spec.pools) else spec


def _is_kept(finalizers: object) -> bool:
    """Whether a finalizer of another program keeps the job. With the finalizer `orphan` the user wants the pods to stay, so the job does
    not count as kept."""
    finalizer_names = set(_finalizers(finalizers))
    return "orphan" not in finalizer_names and bool(finalizer_names - {"foregroundDeletion"})


def _managed_by(spec: object) -> str:
    manager = spec.get("managedBy", names.MANAGER) if isinstance(spec, dict) else names.MANAGER
    return manager if isinstance(manager, str) else clip(str(manager))


def _parse_spec(obj: Obj, beside: int) -> tuple[Spec | None, tuple[Cause, ...]]:
    try:
        spec = load({key: value for key, value in obj.items() if key != "status"}).spec
    except InvalidJob as error:
        return None, error.causes
    if spec.syncer.at is not None and (no_address := _no_address("spec.syncer.at.address", spec.syncer.at.address)):
        return None, no_address
    problems = (*_contradictions(spec), *too_large(spec, beside))
    return (_readable(spec) if problems else spec), problems


def _no_address(field: str, text: str) -> tuple[Cause, ...]:
    try:
        parse_address(text)
    except ValueError as error:
        return (Cause(field, str(error)),)
    return ()


def _readable(spec: Spec) -> Spec:
    """Leave out what no running unit can be judged by: pools of unknown hardware, and templates that are not PodSpecs."""
    pools = {pool.name: pool for pool in reversed(spec.pools) if has_shape(pool) and not is_malformed(pool.template)}
    syncer = spec.syncer.template
    kept = spec.syncer.model_copy(update={"template": None}) if syncer is not None and is_malformed(syncer) else spec.syncer
    return spec.model_copy(update={"pools": tuple(reversed(pools.values())), "syncer": kept})


def _contradictions(spec: Spec) -> list[Cause]:
    """Contradictions that reconcile cannot work with and that an API server with other rules may have let in."""
    causes: list[Cause] = []
    pool_names: set[str] = set()
    for index, pool in enumerate(spec.pools):
        where = f"spec.pools[{index}]"
        if pool.name in pool_names:
            causes.append(Cause(f"{where}.name", f"another pool already has the name {pool.name!r}"))
        pool_names.add(pool.name)
        causes += kind_problems(pool, where)
        if pool.learners.min > pool.learners.max:
            causes.append(Cause(f"{where}.learners", f"min {pool.learners.min} is more than max {pool.learners.max}"))
    if spec.learners.min > spec.learners.max:
        causes.append(Cause("spec.learners", f"min {spec.learners.min} is more than max {spec.learners.max}"))
    if spec.syncer.at is None and spec.training.quorum > spec.learners.max:
        causes.append(
            Cause(
                "spec.training.quorum",
                f"{plural(spec.training.quorum, 'learner')} can never contribute: learners.max is {spec.learners.max}",
            )
        )
    if spec.syncer.external_address:
        causes += _no_address("spec.syncer.externalAddress", spec.syncer.external_address)
    return [*causes, *template_problems(spec)]
