"""The last moment at which a request can be kept back: right before it has bytes on the wire, and before each further part of it.

A process may be stopped between any two instructions and go on a minute later. So a request is asked about when it has its connection, to
refuse it early and with its own error, and again by the socket itself, with nothing left between that question and the kernel: aiohttp
takes a tenth of a millisecond from the first to the second, for headers and TLS, and a long body goes out in many parts.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.connector import AddrInfoType, Connection

from diloco_operator.kube.client import ApiError

type BeforeSend = Callable[[str], None]
"""`before_send(method)` when a request has its connection and its turn, after whatever it had to wait for, and again before each part of
it. It raises an `ApiError` if nothing may go out (any more)."""


class SendGuard:
    """What the connections of one client ask before something goes out."""

    def __init__(self, *, before_send: BeforeSend | None, delivery_timeout: float | None) -> None:
        """`delivery_timeout`: seconds after which the kernel gives a connection up if what was sent is not acknowledged. Without it the
        kernel goes on trying for minutes, also for a process that has ended long since."""
        self._before_send = before_send
        self._delivery_timeout = delivery_timeout
        self._sockets: WeakValueDictionary[int, SendGuardedSocket] = WeakValueDictionary()

    def socket(self, address: AddrInfoType) -> socket.socket:
        """One for a new connection to `address`."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if self._before_send is not None:
            made = SendGuardedSocket(made, self._before_send)
            self._sockets[made.fileno()] = made
        if self._delivery_timeout is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._delivery_timeout * 1000))
        return made

    @property
    def request_class(self) -> type[aiohttp.ClientRequest]:
        """Of the requests that go out over these sockets."""
        if self._before_send is None:
            return aiohttp.ClientRequest
        before_send, sockets = self._before_send, self._sockets

        class GuardedRequest(aiohttp.ClientRequest):
            """`send` writes to the socket before it awaits anything that could make it wait."""

            async def send(self, conn: Connection) -> aiohttp.ClientResponse:
                before_send(self.method)
                transport = conn.transport
                if transport is not None and not transport.is_closing():  # else nothing goes out
                    sockets[transport.get_extra_info("socket").fileno()].method = self.method
                return await super().send(conn)

        return GuardedRequest


class SendGuardedSocket(socket.socket):
    """Asks before each part of a request. To its event loop a refusal is a connection that was aborted: it closes it and says so to whoever
    waits for the answer."""

    def __init__(self, plain: socket.socket, before_send: BeforeSend) -> None:
        """Takes the place of `plain`."""
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._before_send = before_send
        self.method = ""
        """Of the last request that was given this connection; "" before the first, while it is made."""

    def send(self, *args: object, **options: object) -> int:
        self._ask()
        return super().send(*args, **options)  # type: ignore[arg-type]

    def sendmsg(self, *args: object, **options: object) -> int:
        self._ask()
        return super().sendmsg(*args, **options)  # type: ignore[arg-type]

    def _ask(self) -> None:
        if not self.method:
            return
        try:
            self._before_send(self.method)
        except ApiError as error:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"kept back: {error}") from error
