"""What the process serves over HTTP: /healthz and /readyz for the kubelet, /metrics for Prometheus."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

log = logging.getLogger(__name__)

METRICS, HEALTH = "/metrics", "/healthz and /readyz"


class CannotListen(Exception):
    """An address cannot be used: its port is taken, or it is none of this machine."""

    def __init__(self, what: str, address: Address, error: OSError) -> None:
        # asyncio's own text repeats the address.
        reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
        super().__init__(f"cannot serve {what} at {address}: {reason}")
        self.what = what


type Ready = Callable[[], Sequence[str]]
"""Reasons why the process is not ready, one line each; none: it is ready."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0: any free port; the log names it."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """From `host:port`, `[::]:port` or `:port` (every address). `0`: None. Raises ValueError."""
        if text == "0":
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text!r} is not an address: write host:port, such as 0.0.0.0:8080, or 0 for none")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))  # noqa: S104 - what was asked for


def health_app(ready: Ready) -> web.Application:
    """/healthz: an answer shows that the event loop runs. /readyz: `ready`."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problems = list(ready())
        return web.Response(text="".join(f"{line}\n" for line in problems) or "ok\n", status=503 if problems else 200)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def metrics_app(registry: CollectorRegistry) -> web.Application:
    """/metrics, in the format that the scraper requests."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


@contextlib.asynccontextmanager
async def serving(app: web.Application, address: Address | None, what: str) -> AsyncIterator[None]:
    """Serve `app` inside the context. Raises `CannotListen`."""
    if address is None:
        yield
        return
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address.host, address.port).start()
        except OSError as error:
            raise CannotListen(what, address, error) from error
        for host, port, *_ in runner.addresses:
            log.info("serving %s at %s", what, Address(host, port))
        yield
    finally:
        await runner.cleanup()
