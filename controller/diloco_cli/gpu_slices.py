"""Lists the ResourceSlices with which DRA offers GPUs, for commands that also work without them."""

from __future__ import annotations

from collections.abc import Callable

from diloco_operator.api.names import GPU_SLICES, RESOURCE_SLICES
from diloco_operator.kube.client import Client, Forbidden, Obj
from diloco_operator.kube.listing import list_optional

from diloco_cli.checks.nodes import UNSEEN


async def gpu_slices(client: Client, note: Callable[[str], object]) -> list[Obj]:
    """List the ResourceSlices of GPUs. If the user may not, tell `note` and return none."""
    try:
        return await list_optional(client, RESOURCE_SLICES, fields=GPU_SLICES)
    except Forbidden:
        note(UNSEEN)
        return []
