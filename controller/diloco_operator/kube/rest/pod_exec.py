"""A program in a running container, with its input and output, over a WebSocket: `kubectl exec` without a terminal.

Every message begins with a byte that names its channel. The last one on the error channel is a Status with the program's end.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import enum
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from diloco_operator.kube.client import Unavailable

PROTOCOL = "v4.channel.k8s.io"


class Channel(enum.IntEnum):
    """The first byte of a message."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    END = 3


@dataclass(frozen=True, slots=True)
class Ended:
    code: int | None
    """The program's exit status. None if it could not be started, or its container went away."""
    message: str


class PodExec:
    """One running program. Read `output` to its end; then `ended` says how it ended."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, path: str) -> None:
        self._socket = socket
        self._path = path
        self.ended: Ended | None = None
        """None while the program runs, or if the connection broke before its end."""

    async def output(self) -> AsyncIterator[tuple[Channel, bytes]]:
        """Yield what the program writes to stdout and stderr, as it comes. Raises `Unavailable` if nothing came for too long."""
        while True:
            try:
                message = await self._socket.receive()
            except TimeoutError:
                raise Unavailable(504, "Timeout", f"{self._path}: nothing came for too long") from None
            if message.type is not aiohttp.WSMsgType.BINARY:
                return  # closed, broken, or a message that the protocol does not have
            data: bytes = message.data
            if not data:
                continue
            if data[0] == Channel.END:
                self.ended = _ended(data[1:])
            elif data[0] in (Channel.STDOUT, Channel.STDERR) and len(data) > 1:
                yield Channel(data[0]), data[1:]

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(bytes([Channel.STDIN]) + data)


def _ended(text: bytes) -> Ended:
    try:
        status = json.loads(text)
        if status.get("status") == "Success":
            return Ended(0, "")
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
        return Ended(codes[0] if codes else None, str(status.get("message") or ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Ended(None, text[:300].decode(errors="replace"))
