"""What the joins of learners would be if they were only gRPC: one client sends the bytes of a model to a server, the others get as many.

    python -m benchmarks.sizes.bare_joins LAGS MESSAGES BYTES       the server, in the environment of a syncer; its loop is watched

[loop-lag] divides by how late the loop of this server is. It ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from diloco import contract
from diloco.protocol.channel import Keepalive, client_options, server_options
from diloco.protocol.tls import TlsFiles, server_credentials
from diloco.protocol.window import CHUNKS, MOST_BYTES

from benchmarks.exchange_rig import ExchangeRig
from benchmarks.sizes.watched_syncer import watch

_SERVICE, _METHOD = "bench.BareJoins", "Join"


def messages(mebibytes: int) -> tuple[int, int]:
    """Return as how many messages of how many bytes a model goes over the wire: chunks of the largest size for which a window opens."""
    size = MOST_BYTES // CHUNKS
    return (mebibytes << 20) // size, size


async def joins(rig: ExchangeRig, address: str, clients: int) -> None:
    """Let the first client send a model, and then the others get it at once, each on a connection of its own."""
    count, size = messages(rig.workload.mebibytes)
    data = bytes(size)

    async def sent() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield data

    async def nothing() -> AsyncIterator[bytes]:
        for _ in range(0):
            yield data

    async def join(unit: str, requests: AsyncIterator[bytes]) -> None:
        options = client_options(Keepalive(), contract.syncer_host_name(rig.job.name, rig.job.namespace))
        credentials = rig.certificates.learner(unit).read().channel_credentials()
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            opened: Callable[..., Any] = channel.stream_stream(
                f"/{_SERVICE}/{_METHOD}", request_serializer=bytes, response_deserializer=bytes
            )
            async for _ in opened(requests, wait_for_ready=True):
                pass

    await join("bare-0", sent())
    async with asyncio.TaskGroup() as tasks:
        for index in range(1, clients):
            tasks.create_task(join(f"bare-{index}", nothing()))


def _handler(count: int, size: int) -> grpc.GenericRpcHandler:
    data = bytes(size)

    async def join(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        seeds = False
        async for _message in requests:
            seeds = True
        for _turn in range(0 if seeds else count):
            yield data

    return grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: grpc.stream_stream_rpc_method_handler(join)})


async def serve(lags: Path, count: int, size: int) -> None:
    """Answer until killed."""
    server = grpc.aio.server(options=server_options(Keepalive()))
    server.add_generic_rpc_handlers((_handler(count, size),))
    credentials = server_credentials(TlsFiles(Path(os.environ[contract.ENV_TLS_DIR])))
    server.add_secure_port(f"127.0.0.1:{os.environ[contract.ENV_LISTEN_PORT]}", credentials)
    await server.start()
    await asyncio.gather(watch(lags), server.wait_for_termination())


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
