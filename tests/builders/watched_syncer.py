"""A syncer that an operator process can watch: it reports the units that it is told of, with the certificate that the operator made."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from builders.wire import serve
from diloco.contract import SYNCER_PORT, TLS_IDENTITY_FILE, TLS_ROOTS_FILE
from diloco.protocol import diloco_pb2
from diloco.protocol.tls import TlsFiles, server_credentials


class WatchedSyncer:
    """`secret`: the data of the syncer's Secret. `number`: it has an address of 127.0.0.0/8 of its own among those of this process."""

    def __init__(self, folder: Path, secret: Mapping[str, str], number: int) -> None:
        folder.mkdir()
        for name in (TLS_ROOTS_FILE, TLS_IDENTITY_FILE):
            (folder / name).write_bytes(base64.b64decode(secret[name]))
        high, low = divmod(os.getpid() % 62_500, 250)
        self.address = f"127.{1 + high}.{1 + low}.{2 + number}"
        self.attempts: Mapping[str, int] = {}
        """Unit -> attempt of those that contribute."""
        self.watches = 0
        """How often an operator began to watch."""
        self._closed = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        serve(self._server, watch=self._watch)
        self._server.add_secure_port(f"{self.address}:{SYNCER_PORT}", server_credentials(TlsFiles(folder)))
        self._server.start()

    def _watch(self, request: diloco_pb2.WatchRequest, context: Any) -> Iterator[diloco_pb2.Report]:
        self.watches += 1
        while context.is_active() and not self._closed.is_set():
            contributing = diloco_pb2.UnitReport.CONTRIBUTING
            units = [
                diloco_pb2.UnitReport(unit=unit, attempt=attempt, state=contributing, steps=10, tokens=100, weight=0.5, local_step=7)
                for unit, attempt in sorted(self.attempts.items())
            ]
            yield diloco_pb2.Report(incarnation=b"watched", t=10, steps=100, tokens=1000, loss=2.0, seeded=True, units=units)
            self._closed.wait(request.interval_seconds)

    def close(self) -> None:
        self._closed.set()
        self._server.stop(None).wait()
