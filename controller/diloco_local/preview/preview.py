"""One preview from its beginning to its end: the jobs are applied, everything settles, the fleet changes, everything settles again.

Where slices are kept free, all of it happens once more without spares: the difference is what they cost.

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
    """The jobs at each stage, by namespace and name."""

    now: tuple[JobOutlook, ...]
    """As the cluster has them; of a fleet file: none."""
    planned: tuple[JobOutlook, ...]
    """Once the jobs of the files are applied and nothing happens any more."""
    changed: tuple[JobOutlook, ...] | None
    """Once the fleet has changed as well; None: it does not change."""
    settled: bool
    """False: units still came and went after a virtual hour."""
    spares_cost: SparesCost | None = None
    """None: no slice is kept free."""


@dataclass(frozen=True, slots=True)
class SparesCost:
    """Units that would run if no job kept slices free, as `namespace/job/unit`."""

    planned: tuple[str, ...]
    changed: tuple[str, ...] | None
    """None: the fleet does not change."""


def preview(contents: Contents, jobs: Sequence[Obj], changes: Changes, begin: float) -> Preview:
    """Preview what these jobs would do when applied: valid, with defaults and namespaces. `begin`: the time now, seconds since the epoch.
    Raises `ApiError` for a job that the API server would refuse, and `PreviewFailed`."""
    found = _preview(contents, jobs, changes, begin)
    if not keeps_spares([*found.planned, *(found.changed or ())]):
        return found
    bare = _preview(replace(contents, jobs=tuple(without_spares(contents.jobs))), without_spares(jobs), changes, begin)
    changed = None if found.changed is None or bare.changed is None else further_units(found.changed, bare.changed)
    return replace(
        found, settled=found.settled and bare.settled, spares_cost=SparesCost(further_units(found.planned, bare.planned), changed)
    )


def _preview(contents: Contents, jobs: Sequence[Obj], changes: Changes, begin: float) -> Preview:
    measured = {_key(job): _measured(job) for job in contents.jobs}

    async def outlooks(cluster: VirtualCluster) -> tuple[JobOutlook, ...]:
        there = await cluster.jobs()
        return _outlooks(there, measured, {_key(job): cluster.spares(_key(job)) for job in there})

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
    """Return the outlooks of the jobs that can be read."""
    found = []
    for job in jobs:
        key = _key(job)
        try:
            found.append(outlook(job, measured.get(key, {}), spares.get(key, {})))
        except InvalidJob:
            continue  # no operator acts on it either
    return tuple(sorted(found, key=lambda each: each.key))


# --- What spares cost: the units that would run if no job kept slices free --------------------------------------------
def keeps_spares(jobs: Iterable[JobOutlook]) -> bool:
    """Return whether a slice is kept free."""
    return any(pool.spares.kept for job in jobs for pool in job.pools)


def without_spares(jobs: Iterable[Obj]) -> list[Obj]:
    """Return the same jobs, with pools that keep nothing free."""
    return [_without(job) for job in jobs]


def _without(job: Obj) -> Obj:
    spec = job.get("spec")
    if not isinstance(spec, dict) or not isinstance(pools := spec.get("pools"), list):
        return job  # it cannot be read, so no operator acts on it
    bare = [{key: value for key, value in pool.items() if key != "spares"} if isinstance(pool, dict) else pool for pool in pools]
    return {**job, "spec": {**spec, "pools": bare}}


def further_units(found: Iterable[JobOutlook], without: Iterable[JobOutlook]) -> tuple[str, ...]:
    """Name the units that run only without spares, as `namespace/job/unit`: of each job as many as it then has more."""
    there = {job.key: {unit.name for unit in job.units} for job in found}
    further: list[str] = []
    for job in without:
        now, then = there.get(job.key, set()), sorted(unit.name for unit in job.units)
        further += ["/".join((*job.key, name)) for name in [each for each in then if each not in now][: max(0, len(then) - len(now))]]
    return tuple(further)
