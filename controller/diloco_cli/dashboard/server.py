"""Serves the dashboard on this machine, in the event loop of the command.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from diloco_operator.kube.client import Client

from diloco_cli.dashboard.app import Pages, application
from diloco_cli.dashboard.source import Source
from diloco_cli.dashboard.updates import Updates
from diloco_cli.pod_logs import PodLogs

ADDRESS = "127.0.0.1"
_GRACE = 1
"""Seconds that open answers get to finish when the server ends."""


class PortTaken(Exception):
    """The dashboard cannot listen on the port. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A running dashboard."""

    url: str
    """Its address, with the token."""
    source: Source


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command handles Ctrl-C, not uvicorn


@asynccontextmanager
async def serving(client: Client, logs: PodLogs, namespace: str, port: int = 0) -> AsyncIterator[Dashboard]:
    """Serve the jobs of a namespace ("" for all) while the context lasts, on a port (0 for any free one). Raises PortTaken."""
    listening = _listen(port)
    with listening:
        token = secrets.token_urlsafe(24)
        port = listening.getsockname()[1]
        source = Source(client, logs, namespace, time.time, time.monotonic)
        pages = Pages(source, f"/{token}")
        updates = Updates(pages.sections)
        source.on_change(updates.changed)
        app = application(pages, updates, token, port)
        config = uvicorn.Config(
            app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE
        )
        server = _Server(config)
        async with source.following():
            tasks = [asyncio.create_task(work) for work in (updates.run(), server.serve([listening]))]
            try:
                yield Dashboard(f"http://{ADDRESS}:{port}/{token}/", source)
            finally:
                updates.close()
                server.should_exit = True
                await tasks[-1]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((ADDRESS, port), reuse_port=False)
    except OSError as error:
        raise PortTaken(f"port {port} of {ADDRESS} cannot be had: {error.strerror or error}; choose another with --port") from error
