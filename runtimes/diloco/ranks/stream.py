"""One connection of a side channel: mutual TLS, each message behind its length.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final, Self

from diloco.protocol.tls import TlsError, TlsFiles, identities

MOST_MEETING_BYTES: Final = 64 << 20
"""The most bytes of a rank's first message, which has its pieces."""
MOST_BYTES: Final = 2 << 20
"""The most bytes of a later message. A part of one array of a state has half of them."""
MOST_UNSENT_BYTES: Final = MOST_MEETING_BYTES + (4 << 20)
"""Bytes that may wait for a peer that does not read."""
_HANDSHAKE_TIMEOUT: Final = 5.0
_LENGTH: Final = 4


class StreamError(Exception):
    """The connection cannot go on. The message says why."""


class Stream:
    """A connection whose peer has proved its identity. Used on the event loop that made it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._quiet = True

    @classmethod
    async def accept(cls, raw: socket.socket, files: TlsFiles, identity: str) -> Self:
        """Accept the server's end of a connection. Raises StreamError for a peer that is not `identity`, TlsError if the own files cannot
        be used. `raw` is closed then, and if the call is cancelled."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            context = files.context(ssl.PROTOCOL_TLS_SERVER)
            context.verify_mode = ssl.CERT_REQUIRED
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, raw, ssl=context, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT, ssl_shutdown_timeout=1.0
            )
        except OSError as error:
            raw.close()
            raise StreamError(f"no TLS connection with the identity of this unit: {error}") from error
        except (TlsError, asyncio.CancelledError):
            raw.close()
            raise
        return cls._checked(reader, asyncio.StreamWriter(transport, protocol, reader, loop), identity)

    @classmethod
    async def connect(cls, host: str, port: int, files: TlsFiles, identity: str) -> Self:
        """Raises StreamError if there is no peer, or it is not `identity`, TlsError if the own files cannot be used."""
        context = files.context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # `_checked` compares the identity in its place
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="", ssl_shutdown_timeout=1.0)
        except TimeoutError as error:
            raise StreamError("no answer") from error
        except OSError as error:
            raise StreamError(str(error)) from error
        return cls._checked(reader, writer, identity)

    @classmethod
    def _checked(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: str) -> Self:
        shown = identities(writer.get_extra_info("peercert") or {})
        if shown != [identity]:
            writer.transport.abort()
            raise StreamError(f"the other end is {', '.join(shown) or 'without a name'}, not {identity}")
        return cls(reader, writer)

    async def read(self, most: int = MOST_BYTES) -> bytes:
        """Return the next message; b"" is a sign of life. Raises StreamError if the connection has ended, or the message has more than
        `most` bytes."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH))
            if length > most:
                raise StreamError(f"a message of {length} bytes, more than {most}")
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise StreamError("the connection was closed") from error
        except OSError as error:
            raise StreamError(f"the connection broke: {error}") from error

    def write(self, *messages: bytes) -> None:
        """Send messages in one go. Never waits; a peer that does not read is cut off at MOST_UNSENT_BYTES."""
        self._quiet = False
        if self._writer.is_closing():
            return
        self._writer.write(b"".join(len(message).to_bytes(_LENGTH) + message for message in messages))
        if self._writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self.cut()

    def sign_of_life(self) -> None:
        """Send an empty message, unless something was written since the last call."""
        if self._quiet:
            self.write(b"")
        self._quiet = True

    async def close(self) -> None:
        """End the connection once everything is sent. Waits a second at most."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.cut()

    def cut(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()
