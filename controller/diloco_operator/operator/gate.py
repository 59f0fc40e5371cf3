"""Bounds the connections of an endpoint: how many there are, how long each may take to send its request, and how long it may stay.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from diloco_operator.timeouts import EndpointTimeouts

log = logging.getLogger(__name__)


CONNECTIONS = 64
"""The most connections of one endpoint at once. A further one takes the place of the oldest that has sent no request yet. If all have sent
one, the further one is closed."""


@dataclass(eq=False, slots=True)
class _Connection:
    raw: socket.socket
    opened: float
    deadline: asyncio.Timeout
    handler: asyncio.Protocol
    task: asyncio.Task[None] | None = field(default=None)


class Gate:
    """Accepts the connections of one listener."""

    def __init__(self, connections: int, timeouts: EndpointTimeouts, tls: ssl.SSLContext | None = None) -> None:
        self._connections = connections
        self._timeouts = timeouts
        self._tls = tls
        self._waiting: dict[asyncio.Protocol, _Connection] = {}
        """The connections that have sent no request yet, the oldest first, by aiohttp's handler."""
        self._all: set[_Connection] = set()

    @contextlib.asynccontextmanager
    async def open(self, listener: socket.socket, server: Callable[[], asyncio.Protocol] | None) -> AsyncIterator[None]:
        """Accept connections inside the context, which owns `listener`. `server` makes the protocol of a connection."""
        assert server is not None, "the runner is set up"
        listener.setblocking(False)
        accepting = asyncio.create_task(self._accept(listener, server), name="accept")
        try:
            yield
        finally:
            accepting.cancel()
            tasks = [accepting, *(each.task for each in self._all if each.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()

    @web.middleware
    async def note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that the connection has sent its request, and may now wait for the answer."""
        connection = self._waiting.pop(request.protocol, None)
        if connection is not None:
            connection.deadline.reschedule(connection.opened + self._timeouts.connection)
        return await handler(request)

    async def _accept(self, listener: socket.socket, server: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                raw, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(self._timeouts.accept_retry)
                continue
            if len(self._all) >= self._connections and not self._drop_oldest():
                raw.close()
                continue
            opened = loop.time()
            connection = _Connection(raw, opened, asyncio.timeout_at(opened + self._timeouts.request), server())
            self._all.add(connection)
            self._waiting[connection.handler] = connection
            connection.task = loop.create_task(self._serve(connection))
            connection.task.add_done_callback(partial(self._end, connection))

    def _drop_oldest(self) -> bool:
        """Drop the oldest connection without a request. Return whether there was one."""
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None:
            return False
        self._forget(oldest)
        if oldest.task is not None:
            oldest.task.cancel()
        return True

    def _end(self, connection: _Connection, _: asyncio.Task[None]) -> None:
        self._forget(connection)
        connection.raw.close()  # not in the task: if it was cancelled before its first step, it runs no code

    def _forget(self, connection: _Connection) -> None:
        self._all.discard(connection)
        self._waiting.pop(connection.handler, None)

    async def _serve(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        link = _Link(connection.handler, loop.create_future())
        transport: asyncio.Transport | None = None
        try:
            async with connection.deadline:
                transport, _ = await loop.connect_accepted_socket(lambda: link, connection.raw, ssl=self._tls)
                await link.lost
        except (TimeoutError, OSError):  # the client is too slow, or does not speak TLS: there is nothing to answer
            pass
        finally:
            if transport is not None:
                transport.abort()


class _Link(asyncio.Protocol):
    """Passes a connection to aiohttp's handler. `lost` is done once the connection is lost."""

    def __init__(self, handler: asyncio.Protocol, lost: asyncio.Future[None]) -> None:
        self._handler = handler
        self.lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)
