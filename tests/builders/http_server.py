"""An HTTP server on loopback that answers by script, for a client of an API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from aiohttp import web

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scripted:
    """`handler` answers everything; `requests` are kept as (method, path with query, headers, body)."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        return await self.handler(request)

    def kubeconfig(self, folder: Path, user: dict[str, Any] | None = None) -> Path:
        """A kubeconfig that leads here."""
        content = {
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(content))
        return path


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Scripted]:
    """A server until the context ends; then it closes every connection at once."""
    scripted = Scripted(handler)
    server = web.Server(cast("Any", scripted._answer), handler_cancellation=True)  # a watch that is left ends here, too
    runner = web.ServerRunner(server, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield scripted
    finally:
        await runner.cleanup()


def status(code: int, reason: str, message: str = "why", **details: Any) -> web.Response:
    """A Kubernetes Status."""
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=code)


async def stream(request: web.Request, *pieces: bytes, then: asyncio.Event | None = None) -> web.StreamResponse:
    """An answer in pieces, each written on its own; it ends when `then` is set, at once without one."""
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    if then is not None:
        await then.wait()
    return response
