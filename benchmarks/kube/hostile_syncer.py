"""`python -m benchmarks.kube.hostile_syncer FOLDER=ADDRESS...`: what a hostile tenant may run in place of syncers.

Each syncer serves on its address with the certificate in its folder, and streams reports of 10.3 MiB (16,384 units) as fast as the operator
reads them. One process serves all of them, with the lowest priority: in a cluster they would run on machines of their own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from diloco.contract import SYNCER_PORT
from diloco.protocol import diloco_pb2
from diloco.protocol.tls import TlsFiles, server_credentials

UNITS = 16_384
HOUR = 3600.0
REFUSED = 40
"""Number of reasons for which contributions of each unit were refused."""


def report() -> bytes:
    """A valid report."""
    units = [
        diloco_pb2.UnitReport(
            unit=f"v6e-{number}",
            attempt=1,
            state=diloco_pb2.UnitReport.CONTRIBUTING,
            refused={f"reason-{reason:02d}": number for reason in range(REFUSED)},
        )
        for number in range(UNITS)
    ]
    return diloco_pb2.Report(incarnation=b"flood", t=1, steps=1_000_000, seeded=True, units=units).SerializeToString()


def serve(folder: Path, address: str, message: bytes) -> grpc.Server:
    def watch(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            yield message

    service = diloco_pb2.DESCRIPTOR.services_by_name["Syncer"].full_name
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Watch": grpc.unary_stream_rpc_method_handler(watch)}),)
    )
    server.add_secure_port(f"{address}:{SYNCER_PORT}", server_credentials(TlsFiles(folder)))
    server.start()
    return server


if __name__ == "__main__":
    os.nice(19)
    reports = report()
    servers = [serve(Path(folder), address, reports) for folder, _, address in (each.partition("=") for each in sys.argv[1:])]
    sys.stdout.write(f"{len(reports)}\n")
    sys.stdout.flush()
    time.sleep(HOUR)
