"""A syncer that sends exactly what a test says, over real connections: for tests of the learner."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
import numpy as np
from builders.chunks import chunk_of, data_chunk
from builders.exchange import WAIT_TIMEOUT, Place
from builders.wire import serve
from diloco.algorithm.codec import Coding, encode
from diloco.algorithm.fragments import Fragment, make_fragments, pack
from diloco.algorithm.layout import Layout
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import Float32Array
from diloco.protocol.channel import Keepalive, server_options
from diloco.protocol.diloco_pb2 import (
    Chunk,
    Done,
    FragmentNames,
    FromLearner,
    Hello,
    Pull,
    Refused,
    ToLearner,
    Welcome,
    Work,
)
from diloco.protocol.framing import Assembler, Transfer, split
from diloco.protocol.tls import server_credentials

INCARNATION = b"first"


class ScriptedStream:
    """One stream of a learner, from its Hello on. The test sends and reads; every read fails after WAIT_TIMEOUT."""

    def __init__(self, hello: Hello, fragments: tuple[Fragment, ...]) -> None:
        self.hello = hello
        self.fragments = fragments
        self.received: queue.SimpleQueue[FromLearner | None] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[ToLearner | grpc.StatusCode | None] = queue.SimpleQueue()

    def send(self, message: ToLearner) -> Self:
        self.outgoing.put(message)
        return self

    def welcome(
        self, *, resumed: bool = False, t: int = 0, seed_wanted: bool = False, incarnation: bytes = INCARNATION, steps: int = 1000
    ) -> Self:
        names = [FragmentNames(names=[tensor.name for tensor in fragment.tensors]) for fragment in self.fragments]
        return self.send(
            ToLearner(welcome=Welcome(incarnation=incarnation, t=t, steps=steps, seed_wanted=seed_wanted, fragments=names, resumed=resumed))
        )

    def broadcast(self, fragment: int, t: int, values: Mapping[str, Float32Array], merged: int = 0) -> Self:
        """Version `t` of a fragment in FLOAT32. `merged`: as on the wire."""
        return self._broadcast(Chunk(fragment=fragment, t=t, coding=Chunk.FLOAT32, merged=merged), pack(self.fragments[fragment], values))

    def broadcast_all(self, t: int, values: Mapping[str, Float32Array]) -> Self:
        """Version `t` of every fragment."""
        for fragment in self.fragments:
            self.broadcast(fragment.index, t, values)
        return self

    def update(self, fragment: int, t: int, base: int, delta: float) -> Self:
        """Version `t` of a fragment as a delta against version `base`: every value changes by `delta`."""
        change = np.full(self.fragments[fragment].size, delta, np.float32)
        return self._broadcast(Chunk(fragment=fragment, t=t, coding=Chunk.BFLOAT16_DELTA, base=base), change)

    def lease(self, start: int, end: int) -> Self:
        return self.send(ToLearner(work=Work(lease=1, start=start, end=end)))

    def pull(self, fragment: int, t: int) -> Self:
        return self.send(ToLearner(pull=Pull(fragment=fragment, t=t)))

    def done(self, t: int) -> Self:
        return self.send(ToLearner(done=Done(t=t)))

    def refuse(self, code: Refused.Code, message: str) -> Self:
        self.send(ToLearner(refused=Refused(code=code, message=message)))
        return self.end()

    def end(self, code: grpc.StatusCode | None = None) -> Self:
        """End the stream; without `code` as a server that has nothing more to send."""
        self.outgoing.put(code)
        return self

    def hear(self, kind: str) -> FromLearner:
        """The next message of this kind; others are passed over."""
        deadline = time.monotonic() + WAIT_TIMEOUT  # of all: a learner that says nothing else is still alive every few seconds
        while (message := self._next(deadline - time.monotonic(), kind)) is not None:
            if message.WhichOneof("message") == kind:
                return message
        raise AssertionError(f"the stream ended before {kind} came")

    def hear_transfer(self) -> Transfer:
        """The next complete PUSH or SEED."""
        assembler = Assembler(lambda chunk: chunk.total)
        while (transfer := assembler.add(data_chunk(self.hear("chunk").chunk))) is None:
            pass
        return transfer

    def rest(self) -> list[FromLearner]:
        """Everything that comes until the learner ends the stream."""
        return list(iter(lambda: self.received.get(timeout=WAIT_TIMEOUT), None))

    def _next(self, seconds: float, kind: str) -> FromLearner | None:
        try:
            return self.received.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise AssertionError(f"no {kind} came within {WAIT_TIMEOUT:.0f} s") from None

    def _broadcast(self, header: Chunk, values: Float32Array) -> Self:
        header.kind = Chunk.BROADCAST
        for piece in split(header, encode(Coding(header.coding), values)):
            self.send(ToLearner(chunk=chunk_of(piece)))
        return self


class ScriptedSyncer:
    """Accepts streams, and leaves everything that is said on them to the test."""

    def __init__(self, place: Place, arrays: Mapping[str, Float32Array]) -> None:
        layout = Layout(ArrayStore(arrays, embeddings=["w0"]).specs())
        self.fragments = make_fragments(layout, place.job.training.fragments)
        self._streams: queue.SimpleQueue[ScriptedStream] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=server_options(Keepalive()))
        serve(self._server, exchange=self._exchange)
        port = self._server.add_secure_port("127.0.0.1:0", server_credentials(place.certificates.syncer()))
        self.address = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(WAIT_TIMEOUT)
        self._pool.shutdown()

    def accept(self) -> ScriptedStream:
        """The next stream whose Hello has come."""
        return self._streams.get(timeout=WAIT_TIMEOUT)

    def hears_of_a_stream_within(self, seconds: float) -> bool:
        try:
            self._streams.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def _exchange(self, request_iterator: Iterator[FromLearner], context: grpc.ServicerContext) -> Iterator[ToLearner]:
        stream = ScriptedStream(next(request_iterator).hello, self.fragments)
        self._pool.submit(_read, request_iterator, stream)
        self._streams.put(stream)
        while isinstance(message := stream.outgoing.get(timeout=2 * WAIT_TIMEOUT), ToLearner):
            yield message
        if message is not None:
            context.abort(message, "as the test says")


def _read(requests: Iterator[FromLearner], stream: ScriptedStream) -> None:
    try:
        for message in requests:
            stream.received.put(message)
    except grpc.RpcError:
        pass
    finally:
        # The learner has ended the stream, or it broke.
        stream.received.put(None)
        stream.outgoing.put(None)
