"""The server for [wire]: the syncer's Service with an engine that only answers, and a bare gRPC stream beside it.

    python -m benchmarks.wire_syncer TLS_FOLDER ADDRESS MEBIBYTES MESSAGES BYTES

ADDRESS is `host:port`. The model is one fragment of MEBIBYTES. The engine answers every complete push with one broadcast of the same size.
The bare stream answers every MESSAGES messages with as many of BYTES bytes. The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
from diloco.algorithm.codec import Coding, encode
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, server_options
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, Entry, FragmentNames, FromLearner, PartState, Report, ToLearner, Welcome
from diloco.protocol.framing import Transfer
from diloco.protocol.tls import TlsFiles, server_credentials
from diloco.syncer.config import Timeouts
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.learner_stream import HelloReceived, LearnerStream, StreamEvent
from diloco.syncer.streams.outgoing import CodedVersion
from diloco.syncer.streams.service import Service
from diloco.syncer.streams.sessions import UnitSession
from numpy.typing import NDArray

JOB_UID = "bench"
MIB = 1 << 20
BARE = "/bench.Wire/Exchange"


class AnsweringJob:
    """Answers each push with a broadcast of the same fragment."""

    def __init__(self, n: int) -> None:
        """`n` is the number of values in the fragment."""
        self._value = np.zeros(n, np.float32)

    def connect(self) -> LearnerStream:
        return LearnerStream(1)

    def expected_bytes(self, stream: LearnerStream, chunk: Chunk) -> int:
        return self._value.nbytes

    def memory(self, size: int) -> NDArray[np.uint8]:
        return np.empty(size, np.uint8)

    def submit(self, event: StreamEvent) -> None:
        if isinstance(event, HelloReceived):
            stream, names = event.stream, [tensor.name for tensor in event.hello.tensors]
            stream.session = UnitSession(event.hello.unit, event.hello.attempt, event.hello.session, "", stream.number)
            stream.slots.release()
            stream.join_decided.set()
            welcome = Welcome(incarnation=b"bench", steps=1, fragments=[FragmentNames(names=names)], acknowledges=True)
            stream.outgoing.urgent(ToLearner(welcome=welcome))
            self._broadcast(stream, 0)

    def received(self, stream: LearnerStream, message: FromLearner | DataChunk) -> None:
        """Needs nothing: `push` answers a complete push."""

    def sent(self, stream: LearnerStream, chunk: DataChunk) -> None:
        """Needs nothing."""

    def acknowledged(self, stream: LearnerStream, count: int) -> None:
        """Needs nothing."""

    def report(self) -> Report:
        return Report()

    def told(self, part: str, state: PartState) -> None: ...

    def entries(self, after: int) -> tuple[list[Entry], bool]:
        return [], False

    async def push(self, stream: LearnerStream, transfer: Transfer) -> None:
        self._broadcast(stream, transfer.header.t)

    def _broadcast(self, stream: LearnerStream, t: int) -> None:
        stream.outgoing.broadcast(CodedVersion(0, t, -1, Coding.FLOAT32, b"", encode(Coding.FLOAT32, self._value)))


def bare(messages: int, size: int) -> grpc.GenericRpcHandler:
    """A stream of plain bytes. After every `messages` messages it sends as many of `size` bytes."""
    answer = bytes(size)

    async def exchange(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        count = 0
        async for _message in requests:
            count += 1
            if count == messages:
                count = 0
                for _turn in range(messages):
                    yield answer

    _, service, method = BARE.split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(exchange)})


async def serve(tls: TlsFiles, address: str, mebibytes: int, messages: int, size: int) -> None:
    server = grpc.aio.server(options=server_options(Keepalive()))
    job = AnsweringJob(mebibytes * MIB // 4)
    rpc.serve(Service(job, JOB_UID, Changes(), Timeouts().hello), server)
    server.add_generic_rpc_handlers((bare(messages, size),))
    server.add_secure_port(address, server_credentials(tls))
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tls", type=Path)
    parser.add_argument("address")
    parser.add_argument("mebibytes", type=int)
    parser.add_argument("messages", type=int)
    parser.add_argument("bytes", type=int)
    given = parser.parse_args()
    asyncio.run(serve(TlsFiles(given.tls), given.address, given.mebibytes, given.messages, given.bytes))


if __name__ == "__main__":
    main()
