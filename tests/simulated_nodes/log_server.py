"""Serves `kubectl logs` as a kubelet does, over HTTPS to the API server: `GET /containerLogs/<namespace>/<pod>/<container>`.

It answers every process that reaches this machine's loopback addresses. It only reads, and the log files of the state directory are
readable on this machine anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from diloco_local.pod_logs import start_of_last_lines

from simulated_nodes.names import FIELD_MANAGER

_POLL_SECONDS = 0.2
_BLOCK = 1 << 16
_CERTIFICATE_DAYS = 3650
_UNKNOWN = ("sinceTime", "sinceSeconds", "timestamps")
"""Options of `kubectl logs` that need the time of each line, which these logs do not have."""


class LogServer:
    """An async context manager. `runs` gives for a container (namespace, pod, name) the log of each run with the position where the run
    begins in it, oldest first; and whether the container runs now. `execute` answers `/exec/…`, see `exec_endpoint`."""

    def __init__(
        self,
        runs: Callable[[str, str, str], tuple[list[tuple[Path, int]], bool]],
        execute: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> None:
        self._runs = runs
        application = web.Application()
        application.router.add_get("/exec/{namespace}/{pod}/{container}", execute)
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        self._tls = _self_signed()
        await self._runner.setup()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def listen(self, address: str) -> int:
        """Answer at this address of the machine as well; gives the port."""
        site = web.TCPSite(self._runner, address, 0, ssl_context=self._tls)
        await site.start()
        port: int = next(taken[1] for taken in self._runner.addresses if taken[0] == address)
        return port

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if asked := [name for name in _UNKNOWN if query.get(name, "false") not in ("", "false")]:
            return web.Response(status=400, text=f"simulated nodes do not record the time of log lines; leave out {', '.join(asked)}\n")
        namespace, pod, container = (request.match_info[part] for part in ("namespace", "pod", "container"))
        runs, _ = self._runs(namespace, pod, container)
        newest = 2 if query.get("previous") == "true" else 1
        if not runs:
            return web.Response(status=404, text=f"container {container} of pod {namespace}/{pod} has no log here\n")
        if len(runs) < newest:  # the answer of a kubelet: with 404 an API server would say that there is no such pod
            return web.Response(status=400, text=f'previous terminated container "{container}" in pod "{pod}" not found\n')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        file, begin = runs[-newest]
        with file.open("rb") as opened:
            if "tailLines" in query:
                begin = max(begin, await asyncio.to_thread(start_of_last_lines, file, int(query["tailLines"])))
            opened.seek(begin)
            follow = query.get("follow") == "true"
            while left is None or left > 0:
                _, running = self._runs(namespace, pod, container)  # checked before reading, so that the last lines are not missed
                block = opened.read(_BLOCK if left is None else min(left, _BLOCK))
                if block:
                    left = None if left is None else left - len(block)
                    await response.write(block)
                elif follow and running:
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    break
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response


def _self_signed() -> ssl.SSLContext:
    """Return a self-signed certificate, as a kubelet makes one for itself. API servers do not verify it unless configured to."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, FIELD_MANAGER)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=_CERTIFICATE_DAYS))
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(prefix="diloco-") as file:  # mode 0600; ssl reads keys from files only
        file.write(private + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context
