"""As much of a kubelet as an API server asks for logs: HTTPS on this machine, one text for each container."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class SimulatedKubelet:
    port: int
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and query of every request."""


@contextlib.contextmanager
def serve_logs(certificate: Path, key: Path, logs: Mapping[str, bytes]) -> Iterator[SimulatedKubelet]:
    """Serve `logs` by `namespace/pod/container`; another one is 404. `certificate` may be any: API servers of tests do not check it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(asked.query))
            kubelet.asked.append((asked.path, query))
            text = logs.get(asked.path.removeprefix("/containerLogs/"))
            if text is not None and "tailLines" in query:
                text = b"".join(text.splitlines(keepends=True)[-int(query["tailLines"]) :])
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write(text or b"no such log")

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kubelet = SimulatedKubelet(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kubelet
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
