"""Joins of learners as bare gRPC: one client sends the bytes of a model to a server, and the others get as many.

    python -m benchmarks.sizes.bare_joins LAGS MESSAGES BYTES       the server, in the environment of a syncer; its loop is watched

[loop-lag] divides by the lag of this server's loop. The server ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from diloco import contract
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.window import CHUNKS, MOST_BYTES

from benchmarks.bare_exchange import exchange_over, serve
from benchmarks.exchange_rig import ExchangeRig
from benchmarks.sizes.watched_syncer import watch


def messages(mebibytes: int) -> tuple[int, int]:
    """(number of messages, bytes of each) in which a model goes over the wire: chunks of the largest size that a window allows."""
    size = MOST_BYTES // CHUNKS
    return (mebibytes << 20) // size, size


async def joins(rig: ExchangeRig, address: str, clients: int) -> None:
    """Let the first client send a model, and then let the others get it all at once, each on its own connection."""
    count, size = messages(rig.workload.mebibytes)
    data = bytes(size)

    async def sent() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield data

    async def empty() -> AsyncIterator[bytes]:
        for _ in range(0):
            yield data

    async def join(unit: str, requests: AsyncIterator[bytes]) -> None:
        options = client_options(Keepalive(), contract.syncer_host_name(rig.job.name, rig.job.namespace))
        credentials = rig.certificates.learner(unit).read().channel_credentials()
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            async for _ in exchange_over(channel)(requests, wait_for_ready=True):
                pass

    await join("bare-0", sent())
    async with asyncio.TaskGroup() as tasks:
        for index in range(1, clients):
            tasks.create_task(join(f"bare-{index}", empty()))


async def serve_joins(lags: Path, count: int, size: int) -> None:
    """Answer until killed, and watch the loop."""
    data = bytes(size)

    async def join(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        seeds = False
        async for _message in requests:
            seeds = True
        for _turn in range(0 if seeds else count):
            yield data

    await asyncio.gather(watch(lags), serve(join))


if __name__ == "__main__":
    asyncio.run(serve_joins(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
