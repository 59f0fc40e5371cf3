"""Finds jobs and units by name, changes jobs, and follows a job's status until a condition holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from diloco.wording import and_more
from diloco_operator.api import names
from diloco_operator.api.names import DILOCO_JOBS, KUBECTL_PLUGIN
from diloco_operator.api.status import UnitStatus
from diloco_operator.kube.client import Client, Conflict, EventType, Gone, NotFound, Obj, Unavailable
from diloco_operator.kube.fields import fields, objects, string

from diloco_cli.cluster import CommandError, no_such_resource
from diloco_cli.view_model import JobView

_WATCH_SECONDS = 300.0
_RETRY_SECONDS = 1.0
"""Least time between two watches, since a proxy may end each at once."""
_SHOWN = 10
"""Most names that a message lists."""
_TRIES = 10
"""Most tries of a write, since others change the job: its status is written every few seconds."""


async def find_job(client: Client, namespace: str, name: str) -> Obj:
    """Return the job. If there is none, raises `CommandError` that names the existing jobs."""
    try:
        return await client.get(DILOCO_JOBS, namespace, name)
    except NotFound as error:
        job_names = [obj["metadata"]["name"] for obj in await list_jobs(client, namespace)]
        listed = and_more(job_names[:_SHOWN], len(job_names))
        existing = f"there are: {listed}" if job_names else "there are none in it; choose another namespace with -n"
        raise CommandError(f'no DiLoCoJob "{name}" in namespace "{namespace}"; {existing}') from error


async def change_job(client: Client, namespace: str, name: str, change: Callable[[Obj], Obj | None]) -> Obj:
    """Write what `change` wants of the job, and return the job as it was read for that.

    `change` returns a merge patch without metadata, or None if nothing is to be written. It is asked again if another writer has changed
    the job since it was read: if two users run a command at once, one of them finds what the other has done. Raises `CommandError`, and
    what `change` and the client raise.
    """
    for _ in range(_TRIES):
        job = await find_job(client, namespace, name)
        patch = change(job)
        if patch is None:
            return job
        version: Obj = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}}
        with contextlib.suppress(Conflict):
            await client.patch(DILOCO_JOBS, namespace, name, version | patch, field_manager=KUBECTL_PLUGIN)
            return job
    raise CommandError(f'job "{name}" is being changed all the time; run the command again')


def reference(name: str) -> str:
    """How kubectl writes the job: `dilocojob.GROUP/NAME`."""
    return f"{DILOCO_JOBS.kind.lower()}.{DILOCO_JOBS.group}/{name}"


async def list_jobs(client: Client, namespace: str) -> list[Obj]:
    """The jobs of a namespace ("" for all), sorted by namespace and name. Raises `CommandError` if the CRD is not installed."""
    try:
        items = (await client.list(DILOCO_JOBS, namespace)).items
    except NotFound as error:
        raise no_such_resource() from error
    return sorted(items, key=lambda obj: (obj["metadata"]["namespace"], obj["metadata"]["name"]))


def unit_of(view: JobView, name: str) -> UnitStatus:
    """Return the unit. If there is none, raises `CommandError` that names the job's units."""
    if (unit := view.status.unit(name)) is not None:
        return unit
    units = [unit.name for unit in view.status.units]
    existing = f"its units are: {and_more(units[:_SHOWN], len(units))}" if units else "it has none yet"
    raise CommandError(f'job "{view.name}" has no unit "{name}"; {existing}')


def cluster_of(job: Obj, unit: str) -> str:
    """Return the name of the cluster that runs the unit, "" if it is the job's own. Another one is named by the unit's pool, or by the part
    in `spec.parts` that has this pool."""
    clusters = [(pool.name, pool.cluster or "") for pool in JobView.of(job).status.pools]
    for part in objects(fields(job, "spec"), "parts", "spec"):
        clusters += [(string(pool, "name"), string(part, "name")) for pool in objects(part, "pools", "spec.parts[]")]
    return next((cluster for pool, cluster in clusters if cluster and names.unit_index(pool, unit) is not None), "")


async def follow(client: Client, namespace: str, name: str) -> AsyncIterator[JobView]:
    """Like `follow_object`, but yields views."""
    async with contextlib.aclosing(follow_object(client, namespace, name)) as objects:  # type: ignore[type-var]
        async for obj in objects:
            yield JobView.of(obj)


async def follow_object(client: Client, namespace: str, name: str) -> AsyncIterator[Obj]:
    """Yield the job now, and again after every change, also across restarts of the API server. Raises `CommandError` if the job is
    deleted."""
    obj = await find_job(client, namespace, name)
    yield obj
    uid, version = obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
    deleted = CommandError(f'job "{name}" was deleted')
    now = asyncio.get_running_loop().time
    while True:
        next_watch = now() + _RETRY_SECONDS
        events = client.watch(
            DILOCO_JOBS, namespace, resource_version=version, field_selector=f"metadata.name={name}", timeout_seconds=_WATCH_SECONDS
        )
        try:
            async with contextlib.aclosing(events) as changes:  # type: ignore[type-var]
                async for event in changes:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type is EventType.DELETED:
                        raise deleted
                    if event.type is not EventType.BOOKMARK:
                        yield event.object
            await asyncio.sleep(next_watch - now())
        except (Gone, Unavailable):
            await asyncio.sleep(_RETRY_SECONDS)
            try:
                obj = await client.get(DILOCO_JOBS, namespace, name)
            except NotFound as error:
                raise deleted from error
            except Unavailable:
                continue  # the next watch fails in the same way and waits again
            if obj["metadata"]["uid"] != uid:
                raise deleted from None
            version = obj["metadata"]["resourceVersion"]
            yield obj


async def wait_until(client: Client, namespace: str, name: str, holds: Callable[[JobView], bool], *, seconds: float) -> JobView | None:
    """Like `wait_for_object`, but for views."""
    obj = await wait_for_object(client, namespace, name, lambda candidate: holds(JobView.of(candidate)), seconds=seconds)
    return None if obj is None else JobView.of(obj)


async def wait_for_object(client: Client, namespace: str, name: str, holds: Callable[[Obj], bool], *, seconds: float | None) -> Obj | None:
    """Return the job once `holds` is true of it, or None if it is not within `seconds` (None to wait without end). `holds` may raise to
    give up."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), contextlib.aclosing(follow_object(client, namespace, name)) as objects:  # type: ignore[type-var]
            async for obj in objects:
                if holds(obj):
                    return obj
    return None
