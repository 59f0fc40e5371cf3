"""What the process serves over HTTP: /healthz and /readyz for the kubelet, /metrics for Prometheus.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from diloco_operator.operator.gate import CONNECTIONS, Gate
from diloco_operator.operator.metrics_access import Access, MetricsAccess
from diloco_operator.operator.metrics_page import MetricsPage
from diloco_operator.timeouts import ENDPOINTS, EndpointTimeouts

log = logging.getLogger(__name__)

METRICS, HEALTH = "/metrics", "/healthz and /readyz"


class CannotListen(Exception):
    """An address cannot be used: its port is taken, or it is not an address of this machine."""

    def __init__(self, what: str, address: Address, error: OSError) -> None:
        # asyncio's own text repeats the address.
        reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
        super().__init__(f"cannot serve {what} at {address}: {reason}")
        self.what = what


type Ready = Callable[[], Sequence[str]]
"""Reasons why the process is not ready, one line each. Empty if it is."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    """A name or an address; "" for every address of the machine, IPv4 and IPv6."""
    port: int
    """0 for any free port, which the log names."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Parse `host:port`, `[::]:port`, or `:port` for every address; `0` becomes None. Raises ValueError."""
        if text == "0":
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text!r} is not an address: write host:port, such as 127.0.0.1:8080, :8080 for every address, or 0 for none")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def health_app(ready: Ready, limits: Ready = tuple) -> web.Application:
    """Make the application for probes. An answer of /healthz shows that the event loop runs. /readyz lists what `ready` finds wrong; if
    nothing, it lists the `limits` within which the program works."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problems = list(ready())
        lines = problems or ["ok", *limits()]
        return web.Response(text="".join(f"{line}\n" for line in lines), status=503 if problems else 200)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def metrics_app(page: MetricsPage, access: MetricsAccess | None = None) -> web.Application:
    """Make the application for /metrics, in the format that the scraper requests. Without `access` everyone may read it."""

    async def metrics(request: web.Request) -> web.Response:
        if access is not None:
            refusal = _REFUSALS.get(await access.check(request.headers.get("Authorization", "")))
            if refusal is not None:
                return refusal()
        body, content_type = await page.get(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


_REFUSALS: dict[Access, Callable[[], web.Response]] = {
    Access.UNAUTHENTICATED: lambda: web.Response(
        status=401, headers={"WWW-Authenticate": "Bearer"}, text="send the token of a ServiceAccount as bearer token\n"
    ),
    Access.FORBIDDEN: lambda: web.Response(status=403, text='RBAC does not let you "get" the non-resource URL /metrics\n'),
    Access.UNKNOWN: lambda: web.Response(status=503, text="the API server does not answer whether you may read this; try again\n"),
}


@contextlib.asynccontextmanager
async def serving(
    app: web.Application,
    address: Address | None,
    what: str,
    *,
    connections: int = CONNECTIONS,
    timeouts: EndpointTimeouts = ENDPOINTS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve `app` inside the context; nothing without an address. Raises `CannotListen`."""
    if address is None:
        yield
        return
    gate = Gate(connections, timeouts, tls)
    app.on_response_prepare.append(_closing)
    app.middlewares.append(gate.note_request)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            listener = _listener(address)
        except OSError as error:
            raise CannotListen(what, address, error) from error
        host, port, *_ = listener.getsockname()
        log.info("serving %s at %s", what, Address(host, port))
        async with gate.open(listener, runner.server):
            yield
    finally:
        await runner.cleanup()


def _listener(address: Address) -> socket.socket:
    """Listen where a kubelet connects: the pod's address may be of either family. `::` takes both, where the kernel has IPv6."""
    dual_stack = address.host in ("", "::") and socket.has_dualstack_ipv6()
    host = "::" if dual_stack else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, address.port), family=family, backlog=128, dualstack_ipv6=dual_stack)


async def _closing(_: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after one request: then a limit on connections limits requests."""
    response.force_close()
