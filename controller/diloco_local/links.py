"""Links between clusters of one machine: TCP relays with the rate and the delay of a link between distant places.

All relays of a link share its rate in each direction. A connection is set up at once, and what goes over it comes later by the delay.
Kernel buffers are small and queues bounded, so a sender that is faster than the link waits, as on a real one. Packets are not lost.

See docs/decisions/0287-links-between-local-clusters.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

_PIECE = 16 << 10
"""Bytes relayed at a time."""
_PIECES = 4096
"""The most pieces of a connection that are on their way in one direction: 64 MiB."""
_BUFFER = 64 << 10
"""Bytes that the kernel buffers for a relay. Few, because large buffers would hide how narrow the link is."""
_SEGMENT = 1448
"""Bytes of the largest TCP segment of a relay."""
_TIMEOUT = 120.0
"""Seconds to wait for the thread of the relays, which answers at once unless it is broken."""
_LATE = 0.05
"""On a busy machine a relay may be this many seconds late, and then catch up."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """How a link is in each direction."""

    bandwidth: float = math.inf
    """Bits a second."""
    latency: float = 0.0
    """Seconds from one end to the other: half of the round trip."""


UNLIMITED = LinkShape()


@dataclass(eq=False)
class Direction:
    """One direction of a link, for all connections together. It is used by one thread, but the rate may be set from any."""

    bytes_per_second: float = math.inf
    beyond: Direction | None = None
    """The same direction of a further link that all bytes take too, and that other links may share."""
    bytes: int = 0
    """Bytes carried so far."""
    _free_at: float = 0.0

    def take(self, count: int, now: float) -> float:
        """Carry `count` bytes behind all that it carries already. Returns when the last one has left this end."""
        self._free_at = max(now - _LATE, self._free_at) + count / self.bytes_per_second
        self.bytes += count
        return max(self._free_at, self.beyond.take(count, now) if self.beyond is not None else now)


class Link:
    """Made by `Links.add`. `up` is the direction to the targets, `down` the one back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shape: LinkShape, beyond: Link | None) -> None:
        self.latency = shape.latency
        self.up: Direction = Direction(shape.bandwidth / 8, beyond.up if beyond is not None else None)
        self.down: Direction = Direction(shape.bandwidth / 8, beyond.down if beyond is not None else None)
        self._cut = False
        self._loop = loop
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def relay(self, target: str | Callable[[], str | None], listen: str = "127.0.0.1:0") -> str:
        """Carry connections from the address `listen` to `target` from now on. Both are `host:port`. A function is asked for each
        connection, in another thread; the connection ends if there is no target. Returns where it listens. Raises OSError if that is
        taken."""
        return _result(self._loop, self._listen(target if callable(target) else lambda: target, _parsed(listen)))

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `heal`."""
        _result(self._loop, self._cut_now())

    def heal(self) -> None:
        self._cut = False

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        await self._cut_now()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _cut_now(self) -> None:
        self._cut = True
        for connection in self._connections:
            connection.cancel()

    async def _listen(self, target: Callable[[], str | None], listen: tuple[str, int]) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(reader, writer, target)

        listener = _small_buffer(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(listen)
        self._servers.append(await asyncio.start_server(accept, sock=listener, limit=_PIECE))
        return "{}:{}".format(*listener.getsockname())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Callable[[], str | None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._cut and (address := await asyncio.to_thread(target)) is not None:
                await self._connect(reader, writer, _parsed(address))
        except* OSError:
            pass  # the connection ends for both sides
        except* asyncio.CancelledError:
            writer.transport.abort()  # the link was cut
        finally:
            self._connections.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
        with contextlib.ExitStack() as unless_connected:
            far = unless_connected.enter_context(_small_buffer(socket.socket()))
            far.setblocking(False)
            await self._loop.sock_connect(far, target)
            far_reader, far_writer = await asyncio.open_connection(sock=far, limit=_PIECE)
            unless_connected.pop_all()
        with contextlib.closing(far_writer):
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, far_writer, self.up))
                both.create_task(self._carry(far_reader, writer, self.down))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        """Return once all that comes from `reader` has arrived. Raises OSErrors, in a group, if an end has gone."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._send(reader, on_the_way, way))
            both.create_task(self._deliver(on_the_way, writer))

    async def _send(self, reader: asyncio.StreamReader, on_the_way: asyncio.Queue[tuple[float, bytes]], way: Direction) -> None:
        while True:
            data = await reader.read(_PIECE)
            now = self._loop.time()
            gone_at = way.take(len(data), now)
            if gone_at > now:
                await asyncio.sleep(gone_at - now)
            await on_the_way.put((gone_at + self.latency, data))
            if not data:
                return

    async def _deliver(self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Return after the piece without bytes, which is the last one."""
        while True:
            arrives_at, data = await on_the_way.get()
            if (left := arrives_at - self._loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


class Links:
    """A context manager with the thread in which all relays run, so that a busy program does not delay what they carry."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            _result(self._loop, link.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()

    def add(self, shape: LinkShape = UNLIMITED, beyond: Link | None = None) -> Link:
        """Make a link. Everything that it carries goes over the link `beyond` as well."""
        link = Link(self._loop, shape, beyond)
        self._links.append(link)
        return link


def _result[Result](loop: asyncio.AbstractEventLoop, what: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(what, loop).result(_TIMEOUT)


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _small_buffer(made: socket.socket) -> socket.socket:
    # As on a real network. A segment of loopback has 64 KiB, more than the buffer takes: the kernel would hold each back for 40 to 200 ms.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER // 2)  # the kernel doubles it
    return made
