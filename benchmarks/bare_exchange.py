"""What gRPC alone costs a program that exchanges a model: the bytes of one outer step go to a server and come back, in each step.

    python -m benchmarks.bare_exchange      the server, in the environment of a syncer

A program with a `BareExchange` has the stream, the threads and the bytes of a learner over the same TLS, but does nothing that a learner
does with them. [callback-tax] and [rank-tax] divide by the steps of such a program, so that the time that gRPC and its threads cost on a
machine with few cores is in both.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from diloco import contract
from diloco.contract import JobFile, syncer_host_name
from diloco.protocol.channel import Keepalive, client_options, server_options
from diloco.protocol.chunks import to_wire
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import split
from diloco.protocol.tls import TlsFiles, server_credentials

_SERVICE, _METHOD = "bench.Bare", "Exchange"

type Handler = Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext[bytes, bytes]], AsyncIterator[bytes]]


def exchange_over(channel: Any) -> Callable[..., Any]:
    """The server's one method, which takes and gives messages as bytes. `channel`: gRPC's, for threads or for asyncio."""
    opened: Callable[..., Any] = channel.stream_stream(f"/{_SERVICE}/{_METHOD}", request_serializer=bytes, response_deserializer=bytes)
    return opened


async def serve(handler: Handler) -> None:
    """Answer where a syncer would listen, until killed."""
    server = grpc.aio.server(options=server_options(Keepalive()))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {_METHOD: grpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    credentials = server_credentials(TlsFiles(Path(os.environ[contract.ENV_TLS_DIR])))
    server.add_secure_port(f"127.0.0.1:{os.environ[contract.ENV_LISTEN_PORT]}", credentials)
    await server.start()
    await server.wait_for_termination()


class BareExchange:
    """A stream to the server, and a thread that reads what comes back. It ends with the process."""

    def __init__(self, elements: int) -> None:
        """Each step exchanges the bytes of a model with this many values in BFloat16. The process needs a learner's environment."""
        job = JobFile.model_validate_json(Path(os.environ[contract.ENV_JOB_FILE]).read_text(encoding="utf-8"))
        payload = bytes(2 * elements // job.training.sync_interval)
        self._messages = [to_wire(chunk) for chunk in split(Chunk(kind=Chunk.PUSH, coding=Chunk.BFLOAT16_DELTA), payload)]
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        options = client_options(Keepalive(), syncer_host_name(job.name, job.namespace))
        credentials = TlsFiles(Path(os.environ[contract.ENV_TLS_DIR])).read().channel_credentials()
        self._channel = grpc.secure_channel(os.environ[contract.ENV_SYNCER_ADDRESS], credentials, options=options)
        threading.Thread(target=self._run, name="bare-exchange", daemon=True).start()

    def step(self) -> None:
        """Send the bytes of a step, without waiting."""
        for message in self._messages:
            self._out.put(message)

    def _run(self) -> None:
        for _ in exchange_over(self._channel)(iter(self._out.get, None), wait_for_ready=True):
            pass


async def _echo(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    async for message in requests:
        yield message


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(_echo)))
