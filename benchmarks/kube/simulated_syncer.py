"""A syncer that reports every unit as contributing. It uses the certificate that the operator made for the job's real syncer."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
from builders.wire import serve
from diloco.contract import SYNCER_PORT, TLS_IDENTITY_FILE, TLS_ROOTS_FILE
from diloco.protocol import diloco_pb2
from diloco.protocol.tls import TlsFiles, server_credentials
from diloco_operator.api import names

from benchmarks.kube.rig import Rig, running


class _AllContribute:
    def __init__(self, attempts: Mapping[str, int], steps: int) -> None:
        units = [
            diloco_pb2.UnitReport(unit=unit, attempt=attempt, state=diloco_pb2.UnitReport.CONTRIBUTING)
            for unit, attempt in attempts.items()
        ]
        self._report = diloco_pb2.Report(incarnation=b"bench", t=1, steps=steps, seeded=True, units=units)

    async def watch(
        self, request: diloco_pb2.WatchRequest, context: grpc.aio.ServicerContext[diloco_pb2.WatchRequest, diloco_pb2.Report]
    ) -> AsyncIterator[diloco_pb2.Report]:
        while True:
            yield self._report
            await asyncio.sleep(request.interval_seconds)


@asynccontextmanager
async def simulated_syncer(bench: Rig, namespace: str, job: str, address: str) -> AsyncIterator[None]:
    """Serve as the job's syncer on `address`, one of 127.0.0.0/8, with all learners contributing, and mark the syncer's pod as running."""
    pods = await bench.pods(namespace)
    labels = [pod["metadata"]["labels"] for pod in pods]
    attempts = {each[names.LABEL_UNIT]: int(each[names.LABEL_ATTEMPT]) for each in labels if each[names.LABEL_JOB] == job}
    job_object = await bench.client.get(names.DILOCO_JOBS, namespace, job)
    secret = await bench.client.get(names.SECRETS, namespace, names.syncer_secret_name(job))
    with tempfile.TemporaryDirectory() as folder:
        for name in (TLS_ROOTS_FILE, TLS_IDENTITY_FILE):
            (Path(folder) / name).write_bytes(base64.b64decode(secret["data"][name]))
        server = grpc.aio.server()
        serve(server, watch=_AllContribute(attempts, job_object["spec"]["training"]["steps"]).watch)
        server.add_secure_port(f"{address}:{SYNCER_PORT}", server_credentials(TlsFiles(Path(folder))))
        await server.start()
        try:
            pod = await bench.client.get(names.PODS, namespace, names.syncer_pod_name(job))
            await bench.mark([pod], lambda pod: running(pod) | {"podIP": address, "podIPs": [{"ip": address}]})
            yield
        finally:
            await server.stop(None)
