"""All objects of a kind, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from diloco_operator.kube.client import Client, Gone, NotFound, Obj, ObjList, Resource

_PAGE = 500
"""Objects of one answer of the API server."""


async def pages(
    client: Client, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "", size: int, timeout: float | None = None
) -> AsyncIterator[ObjList]:
    """Yield the pages of a list. `timeout`: seconds for each page, None for the client's own. Raises what the client does, and
    `TimeoutError`."""
    token = ""
    while True:
        async with asyncio.timeout(timeout):
            page = await client.list(resource, namespace, label_selector=labels, field_selector=fields, limit=size, continue_token=token)
        yield page
        token = page.continue_token
        if not token:
            return


async def list_all(
    client: Client, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "", most: int = 0
) -> list[Obj]:
    """Return all objects. If `most` is not 0, the list ends with the page that reaches it. `labels` and `fields` are selectors. Raises what
    the client does."""
    objects: list[Obj] = []
    try:
        async for page in pages(client, resource, namespace, labels=labels, fields=fields, size=_PAGE):
            objects += page.items
            if most and len(objects) >= most:
                break
    except Gone:  # the objects changed faster than the pages came: ask for all in one answer
        return (await client.list(resource, namespace, label_selector=labels, field_selector=fields)).items
    return objects


async def list_optional(client: Client, resource: Resource, *, labels: str = "", fields: str = "") -> list[Obj]:
    """Return all objects of a kind that not every cluster serves; none if it does not."""
    try:
        return await list_all(client, resource, labels=labels, fields=fields)
    except NotFound:
        return []
