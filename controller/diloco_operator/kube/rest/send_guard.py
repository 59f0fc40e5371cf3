"""The last check before a request: right before its first byte goes out, and before each further part of it.

A process may be stopped between any two instructions and go on a minute later. So a request is checked twice. The first check comes when it
has its connection, and stops it early with its own error. The second is made by the socket itself, with nothing left between it and the
kernel: between the two aiohttp spends a tenth of a millisecond on headers and TLS, and a long body goes out in many parts.

See docs/decisions/0090-lease-and-clocks.md.
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
"""`before_send(method)` is called when a request has its connection, after all waiting, and again before each part of it. It raises an
`ApiError` if nothing may be sent (any more)."""


class SendGuard:
    """The check that all connections of one client make before they send."""

    def __init__(self, *, before_send: BeforeSend | None, delivery_timeout: float | None) -> None:
        """Guard what is sent; `delivery_timeout`: seconds after which the kernel drops a connection whose data is not acknowledged. Without
        it the kernel retries for minutes, even after the process has ended."""
        self._before_send = before_send
        self._delivery_timeout = delivery_timeout
        self._sockets: WeakValueDictionary[int, SendGuardedSocket] = WeakValueDictionary()

    def socket(self, address: AddrInfoType) -> socket.socket:
        """Return a socket for a new connection to `address`."""
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
        """The class of the requests that go out over these sockets."""
        if self._before_send is None:
            return aiohttp.ClientRequest
        before_send, sockets = self._before_send, self._sockets

        class GuardedRequest(aiohttp.ClientRequest):
            """`send` writes to the socket before it awaits anything that could block."""

            async def send(self, conn: Connection) -> aiohttp.ClientResponse:
                before_send(self.method)
                transport = conn.transport
                if transport is not None and not transport.is_closing():  # else nothing is sent
                    sockets[transport.get_extra_info("socket").fileno()].method = self.method
                return await super().send(conn)

        return GuardedRequest


class SendGuardedSocket(socket.socket):
    """Checks before each part of a request. If the check fails, the event loop sees an aborted connection: it closes it and reports that to
    the caller."""

    def __init__(self, plain: socket.socket, before_send: BeforeSend) -> None:
        """Take the place of `plain`."""
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._before_send = before_send
        self.method = ""
        """The method of the last request on this connection; "" before the first, while the connection is made."""

    def send(self, *args: object, **options: object) -> int:
        self._check()
        return super().send(*args, **options)  # type: ignore[arg-type]

    def sendmsg(self, *args: object, **options: object) -> int:
        self._check()
        return super().sendmsg(*args, **options)  # type: ignore[arg-type]

    def _check(self) -> None:
        if not self.method:
            return
        try:
            self._before_send(self.method)
        except ApiError as error:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"not sent: {error}") from error
