"""One preview from its beginning to its end: the jobs are applied, everything settles, the fleet changes, everything settles again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco_operator.api.job import InvalidJob
from diloco_operator.kube.client import Obj
from diloco_operator.preview.changes import Changes
from diloco_operator.preview.cluster import VirtualCluster
from diloco_operator.preview.contents import Contents
from diloco_operator.preview.outlook import JobOutlook, outlook
from diloco_operator.preview.speeds import Measured, measured_speeds
from diloco_operator.preview.virtual_time import run_virtual


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


def preview(contents: Contents, jobs: Sequence[Obj], changes: Changes, begin: float) -> Preview:
    """`jobs`: to apply, valid, with defaults and namespaces. `begin`: the time now, seconds since the epoch. Raises `ApiError` for a job
    that the API server would refuse, and `PreviewFailed`."""
    measured = {(job["metadata"]["namespace"], job["metadata"]["name"]): _measured(job) for job in contents.jobs}

    async def work() -> Preview:
        async with VirtualCluster(contents, begin) as cluster:
            for job in jobs:
                await cluster.apply(job)
            settled = await cluster.settle()
            planned = _outlooks(await cluster.jobs(), measured)
            changed = None
            if changes:
                await cluster.change(changes)
                settled &= await cluster.settle()
                changed = _outlooks(await cluster.jobs(), measured)
        return Preview(_outlooks(contents.jobs, measured), planned, changed, settled)

    return run_virtual(work())


def _measured(job: Obj) -> Measured:
    try:
        return measured_speeds(job)
    except InvalidJob:
        return {}


def _outlooks(jobs: Iterable[Obj], measured: Mapping[tuple[str, str], Measured]) -> tuple[JobOutlook, ...]:
    """Of the jobs that can be read."""
    found = []
    for job in jobs:
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        try:
            found.append(outlook(job, measured.get(key, {})))
        except InvalidJob:
            continue  # no operator acts on it either
    return tuple(sorted(found, key=lambda each: each.key))
