"""A TCP relay on loopback with a limited rate, which counts bytes and can be cut. It runs in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

PIECE = 16 << 10
"""Bytes relayed at a time."""
BUFFER = 64 << 10
"""Bytes that the kernel buffers for the relay. Few, because large buffers would hide how narrow the link is."""

TIMEOUT = 120.0
"""Seconds to wait for the relay's thread, which answers at once unless it is broken."""
LATE = 0.05
"""On a busy machine the relay may be this many seconds late, and then catch up."""


@dataclass
class Direction:
    """One direction of the link, for all connections together."""

    bytes_per_second: float = math.inf
    bytes: int = 0
    """Bytes relayed so far."""
    _free_at: float = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` bytes have gone over the link."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now - LATE, self._free_at) + count / self.bytes_per_second
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        self.bytes += count


class NarrowLink:
    """Relays from `address` to a target. `up` is the direction to the target, `down` the one back. Both rates may change at any time."""

    def __init__(self, target: str) -> None:
        """`target`: host:port."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.up, self.down = Direction(), Direction()
        self._cut = False
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._port: Future[int] = Future()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._port.result(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(TIMEOUT)

    @property
    def address(self) -> str:
        """The address at which the relay listens."""
        return f"127.0.0.1:{self._port.result()}"

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `heal`."""
        self._call(self._cut_now())

    def heal(self) -> None:
        """Accept connections again."""
        self._cut = False

    def _call(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(TIMEOUT)

    async def _cut_now(self) -> None:
        self._cut = True
        for connection in self._connections:
            connection.cancel()

    async def _serve(self) -> None:
        listener = _small_buffer(socket.socket())
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(self._accept, sock=listener, limit=PIECE)
        self._port.set_result(listener.getsockname()[1])
        async with server:
            await self._stopped.wait()
            connections = list(self._connections)
            await self._cut_now()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.closing(writer):
            if self._cut:
                return
            self._connections.add(task)
            try:
                far = _small_buffer(socket.socket())
                far.setblocking(False)
                await self._loop.sock_connect(far, self._target)
                far_reader, far_writer = await asyncio.open_connection(sock=far, limit=PIECE)
                with contextlib.closing(far_writer):
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_relay(reader, far_writer, self.up))
                        both.create_task(_relay(far_reader, writer, self.down))
            except (OSError, asyncio.CancelledError):
                pass  # the connection ends for both sides
            finally:
                self._connections.discard(task)
                writer.transport.abort()


def _small_buffer(made: socket.socket) -> socket.socket:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER // 2)  # the kernel doubles it
    return made


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            await way.take(len(data))
            writer.write(data)
            await writer.drain()
    writer.close()
