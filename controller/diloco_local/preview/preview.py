"""One preview from its beginning to its end: the jobs are applied, everything settles, the fleet changes, everything settles again.

If slices are kept free, all of this happens once more without spares. The difference is what spares cost.

See docs/decisions/0214-plan.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diloco_operator.api.job import InvalidJob
from diloco_operator.api.names import JobKey
from diloco_operator.kube.client import Obj

from diloco_local.preview.changes import Changes
from diloco_local.preview.cluster import VirtualCluster
from diloco_local.preview.contents import Contents
from diloco_local.preview.outlook import JobOutlook, SparesByPool, outlook
from diloco_local.preview.speeds import Measured, measured_speeds
from diloco_local.preview.virtual_time import run_virtual


@dataclass(frozen=True, slots=True)
class Preview:
    """The jobs at each stage, sorted by namespace and name."""

    now: tuple[JobOutlook, ...]
    """The jobs as the cluster has them. A fleet file has none."""
    planned: tuple[JobOutlook, ...]
    """Once the jobs of the files are applied and everything has settled."""
    changed: tuple[JobOutlook, ...] | None
    """Once the fleet has changed as well. None if it does not change."""
    settled: bool
    """False if units still came and went after a virtual hour."""
    spares_cost: SparesCost | None = None
    """None if no slice is kept free."""


@dataclass(frozen=True, slots=True)
class SparesCost:
    """Units that would run if no job kept slices free, as `namespace/job/unit`."""

    planned: tuple[str, ...]
    changed: tuple[str, ...] | None
    """None if the fleet does not change."""


def preview(contents: Contents, jobs: Sequence[Obj], changes: Changes, begin: float) -> Preview:
    """What would happen if these jobs were applied. Raises `PreviewFailed`, and `ApiError` for a job that the API server would refuse.

    Args:
        jobs: valid, with defaults and namespaces
        begin: the time now, seconds since the epoch
    """
    plan = _preview(contents, jobs, changes, begin)
    if not keeps_spares([*plan.planned, *(plan.changed or ())]):
        return plan
    bare = _preview(replace(contents, jobs=tuple(without_spares(contents.jobs))), without_spares(jobs), changes, begin)
    changed = None if plan.changed is None or bare.changed is None else further_units(plan.changed, bare.changed)
    return replace(plan, settled=plan.settled and bare.settled, spares_cost=SparesCost(further_units(plan.planned, bare.planned), changed))


def _preview(contents: Contents, jobs: Sequence[Obj], changes: Changes, begin: float) -> Preview:
    measured = {_key(job): _measured(job) for job in contents.jobs}

    async def outlooks(cluster: VirtualCluster) -> tuple[JobOutlook, ...]:
        jobs_now = await cluster.jobs()
        return _outlooks(jobs_now, measured, {_key(job): cluster.spares(_key(job)) for job in jobs_now})

    async def work() -> Preview:
        async with VirtualCluster(contents, begin) as cluster:
            for job in jobs:
                await cluster.apply(job)
            settled = await cluster.settle()
            planned = await outlooks(cluster)
            changed = None
            if changes:
                await cluster.change(changes)
                settled &= await cluster.settle()
                changed = await outlooks(cluster)
        return Preview(_outlooks(contents.jobs, measured, {}), planned, changed, settled)

    return run_virtual(work())


def _key(job: Obj) -> JobKey:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _measured(job: Obj) -> Measured:
    try:
        return measured_speeds(job)
    except InvalidJob:
        return {}


def _outlooks(jobs: Iterable[Obj], measured: Mapping[JobKey, Measured], spares: Mapping[JobKey, SparesByPool]) -> tuple[JobOutlook, ...]:
    """The outlooks of the jobs that can be read."""
    outlooks = []
    for job in jobs:
        key = _key(job)
        try:
            outlooks.append(outlook(job, measured.get(key, {}), spares.get(key, {})))
        except InvalidJob:
            continue  # no operator acts on it either
    return tuple(sorted(outlooks, key=lambda each: each.key))


# --- What spares cost: the units that would run if no job kept slices free --------------------------------------------
def keeps_spares(jobs: Iterable[JobOutlook]) -> bool:
    return any(pool.spares.kept for job in jobs for pool in job.pools)


def without_spares(jobs: Iterable[Obj]) -> list[Obj]:
    """The same jobs, with pools that keep no slice free."""
    return [_without(job) for job in jobs]


def _without(job: Obj) -> Obj:
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return job  # it cannot be read, so no operator acts on it
    pools = spec.get("pools")
    if not isinstance(pools, list):
        return job  # nor can this one
    bare = [{key: value for key, value in pool.items() if key != "spares"} if isinstance(pool, dict) else pool for pool in pools]
    return {**job, "spec": {**spec, "pools": bare}}


def further_units(planned: Iterable[JobOutlook], without: Iterable[JobOutlook]) -> tuple[str, ...]:
    """The units that run only without spares, as `namespace/job/unit`. Each job has at most as many here as it gains: a unit that merely
    has another name is no gain."""
    with_spares = {job.key: {unit.name for unit in job.units} for job in planned}
    further: list[str] = []
    for job in without:
        names, bare = with_spares.get(job.key, set()), sorted(unit.name for unit in job.units)
        further += ["/".join((*job.key, name)) for name in [each for each in bare if each not in names][: max(0, len(bare) - len(names))]]
    return tuple(further)
