"""Requests over HTTP: connections, rotating credentials, and servers that ask for a later retry. It knows nothing of objects.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp
from aiohttp.connector import AddrInfoType
from yarl import URL

from diloco_operator.kube.client import Unavailable
from diloco_operator.kube.rest.config import ClientConfig
from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.credentials import Credentials
from diloco_operator.kube.rest.errors import error_of_answer, retry_after
from diloco_operator.timeouts import CREDENTIALS, REQUESTS

log = logging.getLogger(__name__)

type OnRequest = Callable[[str, str, str], None]
"""`on_request(method, code, host)` is called after each request on the wire. code is the HTTP status, or "<error>" if no answer came (the
label values of rest_client_requests_total)."""

type OnDate = Callable[[str, float], None]
"""`on_date(date, asked)` is called after each answer with a Date header: its value, and this machine's time when the request began."""

CONNECTIONS = 256
"""The most connections for requests: with HTTP/1.1 each running request needs one. They are far more than the executor's 64, so none waits
here. Watches have connections of their own, without a limit: else one would wait for another to end."""
_NO_LIMIT = 0
_MAX_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class _ActiveCredentials:
    credentials: Credentials
    tls: ssl.SSLContext | bool


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    timeout: float | None
    """Seconds until the answer must be complete; None for no limit."""
    query: Mapping[str, str | int] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    """Media types, the best first."""
    honor_retry_after: bool = True
    """Wait and repeat when the server answers 429 with a Retry-After."""
    watch: bool = False
    """The answer lasts, and must take no connection from others."""

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


class Transport:
    """Sends requests to the server of `config`. Lives in one event loop; made by `opened`."""

    def __init__(
        self,
        config: ClientConfig,
        session: aiohttp.ClientSession,
        watches: aiohttp.ClientSession,
        on_request: OnRequest | None,
        on_date: OnDate | None,
        user_agent: str,
    ) -> None:
        self._config = config
        self._session = session
        self._watches = watches
        self._on_request = on_request
        self._on_date = on_date
        self._user_agent = user_agent
        self._active: _ActiveCredentials | None = None
        self._next_read = 0.0
        self._next_renewal = 0.0
        self._renewing = asyncio.Lock()
        self._warned: set[str] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls,
        config: ClientConfig,
        *,
        on_request: OnRequest | None,
        user_agent: str,
        delivery_timeout: float | None = None,
        on_date: OnDate | None = None,
    ) -> AsyncIterator[Transport]:
        """Yield a transport. Raises `ConfigError` without credentials. Nothing is sent to the server yet."""

        def session(limit: int) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(
                limit=limit, keepalive_timeout=REQUESTS.idle, socket_factory=lambda address: _socket(address, delivery_timeout)
            )
            # Ignore the environment: aiohttp's rules for proxies are not kubectl's, and ~/.netrc must not replace a token.
            return aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

        async with session(CONNECTIONS) as requests, session(_NO_LIMIT) as watches:
            transport = cls(config, requests, watches, on_request, on_date, user_agent)
            await transport._current()
            yield transport

    @contextlib.asynccontextmanager
    async def answer(self, request: HttpRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer, if its status is below 300. Read it inside the context; if it is not read to its end, its connection is closed.

        Raises the `ApiError` that the server answered; `Unavailable` if the connection fails, also while the answer is read.
        """
        what = f"{request.method} {request.path}"
        try:
            response = await self._accepted(request)
            try:
                yield response
            finally:
                response.close() if not response.content.at_eof() else response.release()
        except TimeoutError:
            raise Unavailable(504, "Timeout", f"{what}: no complete answer within {request.timeout} s") from None
        except aiohttp.ClientError as error:
            raise Unavailable(503, "ServiceUnavailable", f"{what}: {str(error) or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, *, query: Sequence[tuple[str, str]], protocol: str, silence: float
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yield a WebSocket that speaks `protocol`. `silence`: seconds without a message after which it counts as broken; reading then
        raises TimeoutError. Raises `Unavailable`, or the `ApiError` of a refusal; aiohttp does not show the server's text."""
        active = await self._current()
        credentials = active.credentials
        url = f"{path}?{urlencode(query)}"
        headers = {"User-Agent": self._user_agent}
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        try:
            async with self._session.ws_connect(
                URL(credentials.server + url, encoded=True),
                protocols=(protocol,),
                headers=headers,
                timeout=aiohttp.ClientWSTimeout(ws_receive=silence, ws_close=REQUESTS.connect),
                ssl=active.tls,
                server_hostname=credentials.tls.server_name or None,
                proxy=credentials.proxy or None,
                max_msg_size=0,
            ) as socket:
                if socket.protocol != protocol:
                    raise Unavailable(502, "BadGateway", f"{path}: the server does not speak {protocol}")
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise error_of_answer(error.status, f"{path}: the server refused the connection".encode()) from error
        except aiohttp.ClientError as error:
            raise Unavailable(503, "ServiceUnavailable", f"{path}: {str(error) or type(error).__name__}") from error

    async def _accepted(self, request: HttpRequest) -> aiohttp.ClientResponse:
        """Return an answer with a status below 300."""
        waited, renewed = 0.0, False
        while True:
            active = await self._current()
            response = await self._sent(request, active)
            if response.status < 300:
                return response
            async with response:
                error = error_of_answer(response.status, await response.read())
                wait = retry_after(response.headers.get("Retry-After"))
            if response.status == 401 and not renewed and await self._renew(active):
                renewed = True  # a request without valid credentials has no effect, so every method can be repeated
            elif response.status == 429 and request.honor_retry_after and wait is not None and waited + wait <= REQUESTS.retry_after:
                await asyncio.sleep(wait)  # likewise: a request that API priority and fairness rejects has no effect
                waited += max(wait, 0.1)
            else:
                raise error

    async def _sent(self, request: HttpRequest, active: _ActiveCredentials) -> aiohttp.ClientResponse:
        credentials = active.credentials
        target = URL(credentials.server + request.target, encoded=True)
        headers = {"Accept": request.accept, "User-Agent": self._user_agent}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        session = self._watches if request.watch else self._session
        code, asked = "<error>", time.time()
        try:
            response = await session.request(
                request.method,
                target,
                data=request.body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=request.timeout, sock_connect=REQUESTS.connect),
                ssl=active.tls,
                server_hostname=credentials.tls.server_name or None,
                proxy=credentials.proxy or None,
                allow_redirects=False,  # a write would become a GET, and the token would go to another server
            )
            code = str(response.status)
        finally:
            if self._on_request is not None:
                self._on_request(request.method, code, target.authority)
        if self._on_date is not None and (date := response.headers.get("Date")):
            self._on_date(date, asked)
        self._log_warnings(response)
        return response

    def _log_warnings(self, response: aiohttp.ClientResponse) -> None:
        """Log each warning of the server once, for example about a deprecated version or an unknown field."""
        for header in response.headers.getall("Warning", ()):
            text = header.partition('"')[2].rpartition('"')[0] or header
            if text not in self._warned and len(self._warned) < _MAX_WARNINGS:
                self._warned.add(text)
                log.warning("the API server warns: %s", text)

    # --- credentials --------------------------------------------------------------------------------------------------
    async def _current(self) -> _ActiveCredentials:
        loop = asyncio.get_running_loop()
        if self._active is None or loop.time() >= self._next_read:
            async with self._renewing:
                if self._active is None or loop.time() >= self._next_read:
                    self._active = await self._reread(self._active)
        return self._active

    async def _reread(self, active: _ActiveCredentials | None) -> _ActiveCredentials:
        """Read the credentials again. If they cannot be read, the old ones stay in use; without old ones this raises `ConfigError`."""
        loop = asyncio.get_running_loop()
        expires = active.credentials.expires if active is not None else None
        try:
            fresh = await self._read(active, fresh=expires is not None and time.time() >= expires - CREDENTIALS.renew_before)
        except ConfigError as error:
            if active is None:
                raise
            log.warning("the old credentials stay in use: %s", error)
            self._next_read = loop.time() + CREDENTIALS.retry
            return active
        self._next_read = loop.time() + CREDENTIALS.reread
        if fresh.credentials.expires is not None:  # do not call a plugin in a tight loop if its credentials expire at once
            left = fresh.credentials.expires - CREDENTIALS.renew_before - time.time()
            self._next_read = loop.time() + min(CREDENTIALS.reread, max(left, CREDENTIALS.retry))
        return fresh

    async def _renew(self, rejected: _ActiveCredentials) -> bool:
        """Look for other credentials than the rejected ones. Return whether there are some."""
        loop = asyncio.get_running_loop()
        async with self._renewing:
            if self._active is not rejected:
                return True
            if loop.time() < self._next_renewal:
                return False
            self._next_renewal = loop.time() + CREDENTIALS.retry
            try:
                fresh = await self._read(rejected, fresh=True)
            except ConfigError as error:
                log.warning("the server rejected the credentials, and there are no others: %s", error)
                return False
            if fresh.credentials == rejected.credentials:
                return False
            self._active = fresh
            return True

    async def _read(self, active: _ActiveCredentials | None, *, fresh: bool) -> _ActiveCredentials:
        credentials = await self._config.credentials(fresh=fresh)
        if active is not None and credentials == active.credentials:
            return active
        if active is not None and credentials.tls == active.credentials.tls:
            return _ActiveCredentials(credentials, active.tls)
        try:
            return _ActiveCredentials(credentials, credentials.tls.context())
        except OSError as error:
            raise ConfigError(f"{self._config.source}: the certificates cannot be used: {error}") from error


def _socket(address: AddrInfoType, delivery_timeout: float | None) -> socket.socket:
    """Make a socket for a connection to `address`. The kernel drops it if data is not acknowledged for `delivery_timeout` seconds."""
    family, kind, protocol, _, _ = address
    new_socket = socket.socket(family, kind, protocol)
    if delivery_timeout is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(delivery_timeout * 1000))
    return new_socket
