"""A TCP relay on loopback that can fall silent: its connections then stay open and nothing comes through, as when a firewall forgets them.
`diloco_local.links` has one that is slow, or breaks its connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Link:
    """Relays to one address. Made by `link_to`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._ends: set[asyncio.StreamWriter] = set()
        self._silenced: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent = False
        self.port = 0
        self.dropped = 0
        """Bytes that came over silenced connections and went nowhere."""

    def silence(self) -> None:
        """Over the connections of now nothing comes any more, in either direction, ever; nor over later ones that begin before `heal`."""
        self._silenced |= self._ends
        self._silent = True

    def heal(self) -> None:
        """Connections that begin from now on are relayed."""
        self._silent = False

    async def has_dropped(self) -> bool:
        """Whether something came over a silenced connection and went nowhere."""
        return self.dropped > 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._ends |= {writer, far_writer}
        if self._silent:
            self._silenced |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._relay(reader, far_writer))
                both.create_task(self._relay(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                self._ends.discard(end)
                end.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if writer in self._silenced:
                    self.dropped += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        if writer not in self._silenced:
            writer.close()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def link_to(host: str, port: int) -> AsyncIterator[Link]:
    """A link whose `port` on 127.0.0.1 leads to the address, until the context ends."""
    link = Link(host, port)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        link.stop()
