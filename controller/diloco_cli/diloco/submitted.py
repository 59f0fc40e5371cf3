"""Creates the objects of `diloco submit` in a cluster, and follows the job to its end.

The ConfigMap is created before the job, so that no pod waits for it. Then the job becomes its owner, so that it is deleted with the job.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from diloco_operator.api import names
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj

from diloco_cli.cluster import CommandError, no_such_resource
from diloco_cli.jobs import follow
from diloco_cli.view_model import JobView, Line, changes

_OLD_GOES_SECONDS = 60.0
_POLL_SECONDS = 0.5


async def create_job(client: Client, job: Obj, config_map: Obj | None, *, seconds: float = _OLD_GOES_SECONDS) -> Obj:
    """Create the job with its script. Raises `CommandError` if the name is taken and `ApiError` if the API server refuses the job, and
    leaves nothing behind. `seconds` is how long the ConfigMap of a deleted job may take to go."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _refuse_twice(client, namespace, name)
    if config_map is not None:
        await _create_script(client, config_map, seconds)
    try:
        created = await client.create(names.DILOCO_JOBS, job, field_manager=names.KUBECTL_PLUGIN)
    except ApiError as error:
        if config_map is not None:
            with contextlib.suppress(ApiError):  # the first error is the one to tell
                await client.delete(names.CONFIG_MAPS, namespace, config_map["metadata"]["name"])
        if isinstance(error, NotFound):
            raise no_such_resource() from error
        if isinstance(error, AlreadyExists):
            raise _exists(namespace, name) from error
        raise
    if config_map is not None:
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name, "uid": created["metadata"]["uid"]}
        await client.patch(
            names.CONFIG_MAPS,
            namespace,
            config_map["metadata"]["name"],
            {"metadata": {"ownerReferences": [owner]}},
            field_manager=names.KUBECTL_PLUGIN,
        )
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


async def _create_script(client: Client, config_map: Obj, seconds: float) -> None:
    """Create the ConfigMap. One of a deleted job with the same name and script may have to go first."""
    namespace, name = config_map["metadata"]["namespace"], config_map["metadata"]["name"]
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            await client.create(names.CONFIG_MAPS, config_map, field_manager=names.KUBECTL_PLUGIN)
            return
        except AlreadyExists:
            with contextlib.suppress(NotFound):
                existing = await client.get(names.CONFIG_MAPS, namespace, name)
                if existing.get("data") != config_map["data"]:
                    raise CommandError(f'ConfigMap "{name}" has another content; delete it, or give --name for another job') from None
                # A `diloco submit` that was killed before it created its job left it. It has the same content.
                if not existing["metadata"].get("ownerReferences") and not existing["metadata"].get("deletionTimestamp"):
                    return
        if asyncio.get_running_loop().time() > deadline:
            raise CommandError(f'ConfigMap "{name}" of a deleted job does not go; look at its ownerReferences and finalizers')
        await asyncio.sleep(_POLL_SECONDS)


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
