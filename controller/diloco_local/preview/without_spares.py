"""What spares cost: the units that would run if no job kept slices free. Pure.

See docs/decisions/0214-plan.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from diloco_operator.kube.client import Obj

from diloco_local.preview.outlook import JobOutlook


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
