"""Creates what `diloco submit` made in a cluster, and follows the job to its end.

The ConfigMap comes before the job, so that no pod waits for it, and belongs to the job once that is there: it is deleted with it.

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
    """Create the job with its script. Raises `CommandError` if there is one of this name, and `ApiError` if the API server refuses it;
    nothing is left then. `seconds`: how long the script of a job that was deleted may take to go."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _refuse_twice(client, namespace, name)
    if config_map is not None:
        await _create_script(client, config_map, seconds)
    try:
        made = await client.create(names.DILOCO_JOBS, job, field_manager=names.KUBECTL_PLUGIN)
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
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name, "uid": made["metadata"]["uid"]}
        await client.patch(
            names.CONFIG_MAPS,
            namespace,
            config_map["metadata"]["name"],
            {"metadata": {"ownerReferences": [owner]}},
            field_manager=names.KUBECTL_PLUGIN,
        )
    return made


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
    """Create the ConfigMap, once that of a deleted job with the same name and script has gone. One without an owner was left by a command
    that was killed: it has the same content, by its name."""
    namespace, name = config_map["metadata"]["namespace"], config_map["metadata"]["name"]
    late = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            await client.create(names.CONFIG_MAPS, config_map, field_manager=names.KUBECTL_PLUGIN)
            return
        except AlreadyExists:
            with contextlib.suppress(NotFound):
                there = await client.get(names.CONFIG_MAPS, namespace, name)
                if there.get("data") != config_map["data"]:
                    raise CommandError(f'ConfigMap "{name}" has another content; delete it, or give --name for another job') from None
                if not there["metadata"].get("ownerReferences") and not there["metadata"].get("deletionTimestamp"):
                    return
        if asyncio.get_running_loop().time() > late:
            raise CommandError(f'ConfigMap "{name}" of a deleted job does not go; look at its ownerReferences and finalizers')
        await asyncio.sleep(_POLL_SECONDS)


async def watch_job(client: Client, namespace: str, name: str, emit: Callable[[Line], None]) -> JobView:
    """Emit each change of the job until it is over, and return it. Raises `CommandError` when it is deleted."""
    known: JobView | None = None
    async with contextlib.aclosing(follow(client, namespace, name)) as views:  # type: ignore[type-var]
        async for found in views:
            for line in changes(known, found):
                emit(line)
            known = found
            if found.over:
                return found
    raise AssertionError("following a job does not end by itself")
