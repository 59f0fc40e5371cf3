"""Creates the objects of `diloco submit` in a cluster, and follows the job to its end.

The job is created before the ConfigMap, which thereby has its owner from the beginning: it goes with the job, whatever fails in between.
Pods that come first wait for it.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj

from diloco_cli.cluster import CommandError
from diloco_cli.jobs import follow, list_jobs
from diloco_cli.view_model import JobView, Line, changes

_OLD_SCRIPT_SECONDS = 60.0
_POLL_SECONDS = 0.5


async def create_job(client: Client, job: Obj, config_map: Obj | None, *, seconds: float = _OLD_SCRIPT_SECONDS) -> Obj:
    """Create the job with its script. Raises `CommandError` if the name is taken and `ApiError` if the API server refuses an object, and
    leaves nothing behind. `seconds` is how long the ConfigMap of a deleted job may take to go."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _refuse_twice(client, namespace, name)
    script_exists = config_map is not None and await _script_exists(client, config_map, seconds)
    try:
        created = await client.create(names.DILOCO_JOBS, job, field_manager=names.KUBECTL_PLUGIN)
    except NotFound:
        await list_jobs(client, namespace)  # raises if the cluster lacks the kind; else it lacks the namespace
        raise
    except AlreadyExists as error:
        raise _exists(namespace, name) from error
    if config_map is not None:
        try:
            await _add_script(client, config_map, created, exists=script_exists)
        except BaseException:  # after Ctrl-C, too, a job without its script would only hold slices
            with contextlib.suppress(ApiError):  # the first error is the one to tell
                await client.delete(names.DILOCO_JOBS, namespace, name, uid=created["metadata"]["uid"])
            raise
    return created


async def _refuse_twice(client: Client, namespace: str, name: str) -> None:
    try:
        await client.get(names.DILOCO_JOBS, namespace, name)
    except NotFound:
        return
    raise _exists(namespace, name)


def _exists(namespace: str, name: str) -> CommandError:
    return CommandError(
        f'there is a job "{name}" in namespace "{namespace}" already; give --name for another one, or delete it: '
        f"kubectl delete dlj {name} -n {namespace}"
    )


async def _script_exists(client: Client, config_map: Obj, seconds: float) -> bool:
    """Whether there is this ConfigMap already and no job owns it, as after `kubectl apply` of a dry run. First waits until one of a deleted
    job is gone. Raises `CommandError` if it does not go, or has another content."""
    namespace, name = config_map["metadata"]["namespace"], config_map["metadata"]["name"]
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            existing = await client.get(names.CONFIG_MAPS, namespace, name)
        except NotFound:
            return False
        if existing.get("data") != config_map["data"]:
            raise CommandError(f'ConfigMap "{name}" has another content; delete it, or give --name for another job')
        if not existing["metadata"].get("ownerReferences") and not existing["metadata"].get("deletionTimestamp"):
            return True
        if asyncio.get_running_loop().time() > deadline:
            raise CommandError(f'ConfigMap "{name}" of a deleted job does not go; look at its ownerReferences and finalizers')
        await asyncio.sleep(_POLL_SECONDS)


async def _add_script(client: Client, config_map: Obj, job: Obj, *, exists: bool) -> None:
    """Create the ConfigMap as one of the job, or give the job one that `exists`."""
    metadata = config_map["metadata"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    owned = {"ownerReferences": [owner]}
    if exists:
        await client.patch(
            names.CONFIG_MAPS, metadata["namespace"], metadata["name"], {"metadata": owned}, field_manager=names.KUBECTL_PLUGIN
        )
    else:
        await client.create(names.CONFIG_MAPS, {**config_map, "metadata": {**metadata, **owned}}, field_manager=names.KUBECTL_PLUGIN)


async def watch_job(client: Client, namespace: str, name: str, emit: Callable[[Line], None]) -> JobView:
    """Emit each change of the job until it is over, and return the job. Raises `CommandError` if the job is deleted."""
    known: JobView | None = None
    async with contextlib.aclosing(follow(client, namespace, name)) as views:  # type: ignore[type-var]
        async for view in views:
            for line in changes(known, view):
                emit(line)
            known = view
            if view.over:
                return view
    raise AssertionError("following a job does not end by itself")
