"""Requests over HTTP: connections, credentials that rotate, a server that asks for patience. Knows nothing of objects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from diloco_operator.kube.client import Unavailable
from diloco_operator.kube.rest.config import Config
from diloco_operator.kube.rest.config_error import ConfigError
from diloco_operator.kube.rest.credentials import Credentials
from diloco_operator.kube.rest.errors import error_of_answer, retry_after
from diloco_operator.kube.rest.send_guard import BeforeSend, SendGuard
from diloco_operator.timeouts import CREDENTIALS, REQUESTS

log = logging.getLogger(__name__)

type OnRequest = Callable[[str, str, str], None]
"""`on_request(method, code, host)` after each request on the wire: code is the HTTP status, or "<error>" where no answer came (the label
values of rest_client_requests_total)."""

type OnDate = Callable[[str, float], None]
"""`on_date(date, asked)` after each answer that has a Date: the header, and this machine's time when the request was begun."""

CONNECTIONS = 256
"""HTTP/1.1: every request under way and every watch has its own. Far more than the executor's 64, so that nothing queues here unseen."""
_MAX_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class _ActiveCredentials:
    credentials: Credentials
    tls: ssl.SSLContext | bool


class Transport:
    """Sends requests to the server of `config`. Lives in one event loop; made by `opened`."""

    def __init__(
        self, config: Config, session: aiohttp.ClientSession, on_request: OnRequest | None, on_date: OnDate | None, user_agent: str
    ) -> None:
        self._config = config
        self._session = session
        self._on_request = on_request
        self._on_date = on_date
        self._user_agent = user_agent
        self._held: _ActiveCredentials | None = None
        self._next_look = 0.0
        self._next_renewal = 0.0
        self._renewing = asyncio.Lock()
        self._warned: set[str] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls,
        config: Config,
        *,
        on_request: OnRequest | None,
        user_agent: str,
        before_send: BeforeSend | None = None,
        delivery_timeout: float | None = None,
        on_date: OnDate | None = None,
    ) -> AsyncIterator[Transport]:
        """Raises `ConfigError` where there are no credentials. Asks the server nothing yet."""
        # Of the environment nothing is trusted: aiohttp's rules for proxies are not kubectl's, and ~/.netrc must not replace a token.
        send_guard = SendGuard(before_send=before_send, delivery_timeout=delivery_timeout)
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=REQUESTS.idle, socket_factory=send_guard.socket)
        async with aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), request_class=send_guard.request_class
        ) as session:
            transport = cls(config, session, on_request, on_date, user_agent)
            await transport._current()
            yield transport

    @contextlib.asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float | None,
        honor_retry_after: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, if its status is below 300; it is read inside the context, and its connection is closed if not to the end.

        `accept`: media types, the best first. `timeout`: seconds for all of it, None: no limit. `honor_retry_after`: wait and repeat when
        the server answers 429 with a Retry-After.
        Raises the `ApiError` that the server answered; `Unavailable` where the connection fails, also while the answer is read.
        """
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=REQUESTS.connect)
        url = f"{path}?{urlencode(query)}" if query else path
        try:
            headers = {"Accept": accept, "User-Agent": self._user_agent} | ({} if body is None else {"Content-Type": content_type})
            response = await self._accepted(method, url, body, headers, limits, honor_retry_after=honor_retry_after)
            try:
                yield response
            finally:
                response.close() if not response.content.at_eof() else response.release()
        except TimeoutError:
            raise Unavailable(504, "Timeout", f"{method} {path}: no answer, or not the whole of it, within {timeout} s") from None
        except aiohttp.ClientError as error:
            raise Unavailable(503, "ServiceUnavailable", f"{method} {path}: {str(error) or type(error).__name__}") from error

    async def _accepted(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str], limits: aiohttp.ClientTimeout, *, honor_retry_after: bool
    ) -> aiohttp.ClientResponse:
        """An answer with a status below 300."""
        waited, renewed = 0.0, False
        while True:
            held = await self._current()
            response = await self._sent(held, method, url, body, headers, limits)
            if response.status < 300:
                return response
            async with response:
                error = error_of_answer(response.status, await response.read())
                wait = retry_after(response.headers.get("Retry-After"))
            if response.status == 401 and not renewed and await self._renewed(held):
                renewed = True  # nothing was carried out, so asking again is safe for every method
            elif response.status == 429 and honor_retry_after and wait is not None and waited + wait <= REQUESTS.retry_after:
                await asyncio.sleep(wait)  # likewise: a request that is turned away by priority and fairness was not carried out
                waited += max(wait, 0.1)
            else:
                raise error

    async def _sent(
        self, held: _ActiveCredentials, method: str, url: str, body: bytes | None, headers: dict[str, str], limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        credentials = held.credentials
        target = URL(credentials.server + url, encoded=True)
        if credentials.authorization:
            headers = headers | {"Authorization": credentials.authorization}
        code, asked = "<error>", time.time()
        try:
            response = await self._session.request(
                method,
                target,
                data=body,
                headers=headers,
                timeout=limits,
                ssl=held.tls,
                server_hostname=credentials.tls.server_name or None,
                proxy=credentials.proxy or None,
                allow_redirects=False,  # a write would become a GET, and the token would go to somebody else
            )
            code = str(response.status)
        finally:
            if self._on_request is not None:
                self._on_request(method, code, target.authority)
        if self._on_date is not None and (date := response.headers.get("Date")):
            self._on_date(date, asked)
        self._pass_on_warnings(response)
        return response

    def _pass_on_warnings(self, response: aiohttp.ClientResponse) -> None:
        """What the server wants said to people (a deprecated version, an unknown field), once each."""
        for header in response.headers.getall("Warning", ()):
            text = header.partition('"')[2].rpartition('"')[0] or header
            if text not in self._warned and len(self._warned) < _MAX_WARNINGS:
                self._warned.add(text)
                log.warning("the API server warns: %s", text)

    # --- credentials --------------------------------------------------------------------------------------------------
    async def _current(self) -> _ActiveCredentials:
        loop = asyncio.get_running_loop()
        if self._held is None or loop.time() >= self._next_look:
            async with self._renewing:
                if self._held is None or loop.time() >= self._next_look:
                    self._held = await self._looked_at_again(self._held)
        return self._held

    async def _looked_at_again(self, held: _ActiveCredentials | None) -> _ActiveCredentials:
        """Without any credentials an error is raised; else the old ones do for a while longer."""
        loop = asyncio.get_running_loop()
        expires = held.credentials.expires if held is not None else None
        try:
            fresh = await self._read(held, fresh=expires is not None and time.time() >= expires - CREDENTIALS.renew_before)
        except ConfigError as error:
            if held is None:
                raise
            log.warning("going on with the old credentials: %s", error)
            self._next_look = loop.time() + CREDENTIALS.retry
            return held
        self._next_look = loop.time() + CREDENTIALS.reread
        if fresh.credentials.expires is not None:  # a plugin that gives what ends at once is not asked in a tight loop
            left = fresh.credentials.expires - CREDENTIALS.renew_before - time.time()
            self._next_look = loop.time() + min(CREDENTIALS.reread, max(left, CREDENTIALS.retry))
        return fresh

    async def _renewed(self, refused: _ActiveCredentials) -> bool:
        """Whether there are other credentials than those that the server refused."""
        loop = asyncio.get_running_loop()
        async with self._renewing:
            if self._held is not refused:
                return True
            if loop.time() < self._next_renewal:
                return False
            self._next_renewal = loop.time() + CREDENTIALS.retry
            try:
                fresh = await self._read(refused, fresh=True)
            except ConfigError as error:
                log.warning("the server refused the credentials, and there are no others: %s", error)
                return False
            if fresh.credentials == refused.credentials:
                return False
            self._held = fresh
            return True

    async def _read(self, held: _ActiveCredentials | None, *, fresh: bool) -> _ActiveCredentials:
        credentials = await self._config.credentials(fresh=fresh)
        if held is not None and credentials == held.credentials:
            return held
        if held is not None and credentials.tls == held.credentials.tls:
            return _ActiveCredentials(credentials, held.tls)
        try:
            return _ActiveCredentials(credentials, credentials.tls.context())
        except OSError as error:
            raise ConfigError(f"{self._config.source}: the certificates cannot be used: {error}") from error
