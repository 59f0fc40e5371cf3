"""All objects of a kind, page by page."""

from __future__ import annotations

from diloco_operator.kube.client import Client, Gone, NotFound, Obj, Resource

_PAGE = 500
"""Objects of one answer of the API server."""


async def list_all(
    client: Client, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "", most: int = 0
) -> list[Obj]:
    """Return all objects. If `most` is not 0, the list ends with the page that reaches it. `labels` and `fields` are selectors. Raises what
    the client does."""
    objects: list[Obj] = []
    token, limit = "", _PAGE
    while True:
        try:
            page = await client.list(resource, namespace, label_selector=labels, field_selector=fields, limit=limit, continue_token=token)
        except Gone:
            if not limit:
                raise
            objects, token, limit = [], "", 0  # the objects changed faster than the pages came: ask for all in one answer
            continue
        objects += page.items
        token = page.continue_token
        if not token or (most and len(objects) >= most):
            return objects


async def list_optional(client: Client, resource: Resource, *, labels: str = "", fields: str = "") -> list[Obj]:
    """Return all objects of a kind that not every cluster serves; none if it does not."""
    try:
        return await list_all(client, resource, labels=labels, fields=fields)
    except NotFound:
        return []
