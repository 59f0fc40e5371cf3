"""A learner that sends exactly what a test says, right or wrong."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Protocol

import grpc
import numpy as np
from builders.chunks import chunk_of, data_chunk
from builders.exchange import JOB_UID, WAIT_TIMEOUT, Place, weights
from diloco.algorithm.fragments import Fragment, make_fragments, pack
from diloco.algorithm.layout import Layout
from diloco.learner.arrays import ArrayStore
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Hello, Progress, Tensor, ToLearner, WorkWanted
from diloco.protocol.diloco_pb2_grpc import SyncerStub
from diloco.protocol.framing import Assembler, Transfer, split
from diloco.protocol.tls import TlsFiles


class Reachable(Protocol):
    """A syncer, or where a link to it begins."""

    @property
    def place(self) -> Place: ...
    @property
    def address(self) -> str: ...


class RawLearner:
    """One stream, by hand. Replies are read one by one; every read fails after WAIT_TIMEOUT."""

    def __init__(
        self,
        syncer: Reachable,
        arrays: Mapping[str, np.ndarray] | None = None,
        fragments: int = 2,
        *,
        unit: str = "raw-0",
        attempt: int = 1,
        files: TlsFiles | None = None,
    ) -> None:
        """With a certificate for `attempt` of `unit`, or another one."""
        self.unit, self.attempt = unit, attempt
        self.arrays = dict(arrays if arrays is not None else weights())
        self.layout = Layout(ArrayStore(self.arrays, embeddings=["w0"]).specs())
        self.fragments: tuple[Fragment, ...] = make_fragments(self.layout, fragments)
        self._out: queue.SimpleQueue[FromLearner | None] = queue.SimpleQueue()
        certificates = syncer.place.certificates
        self._channel = certificates.channel(syncer.address, files or certificates.learner(unit, attempt))
        self._call = SyncerStub(self._channel).Exchange(iter(self._out.get, None), timeout=WAIT_TIMEOUT)
        self.leases: list[tuple[int, int]] = []

    def __enter__(self) -> RawLearner:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """As a broken connection."""
        self._out.put(None)
        self._call.cancel()
        self._channel.close()

    def say(self, message: FromLearner) -> RawLearner:
        self._out.put(message)
        return self

    def hello(self, **changes: object) -> RawLearner:
        fields: dict[str, object] = {
            "job_uid": JOB_UID,
            "unit": self.unit,
            "attempt": self.attempt,
            "session": b"raw",
            "framework": "test",
            "tensors": [Tensor(name=x.name, shape=x.shape, embedding=x.embedding) for x in self.layout.tensors],
            "fingerprint": self.layout.fingerprint,
        }
        return self.say(FromLearner(hello=Hello(**(fields | changes))))  # type: ignore[arg-type]

    def seed(self) -> RawLearner:
        for fragment in self.fragments:
            self.transfer(Chunk(kind=Chunk.SEED, fragment=fragment.index, coding=Chunk.FLOAT32), pack(fragment, self.arrays).tobytes())
        return self

    def transfer(self, header: Chunk, payload: bytes) -> RawLearner:
        for piece in split(header, payload):
            self.say(FromLearner(chunk=chunk_of(piece)))
        return self

    def step(self, local_step: int, tokens: int = 8, step_seconds: float = 20.0) -> RawLearner:
        """`step_seconds`: three of them without a report, or a second if that is more, and the learner is silent: it is not pulled. On
        a slow machine more than a second may lie between the reports of two learners."""
        counters = [local_step] * len(self.fragments)
        return self.say(
            FromLearner(
                progress=Progress(
                    local_step=local_step,
                    steps=counters,
                    tokens=[tokens * n for n in counters],
                    step_seconds=step_seconds,
                    loss=float("nan"),
                )
            )
        )

    def want(self, samples: int) -> RawLearner:
        return self.say(FromLearner(work_wanted=WorkWanted(samples=samples)))

    def hear(self, kind: str) -> ToLearner:
        """The next reply of this kind; others are passed over (leases are kept)."""
        message: ToLearner
        for message in self._call:
            which = message.WhichOneof("message")
            if which == "work":
                self.leases.append((message.work.start, message.work.end))
            if which == kind:
                return message
        raise AssertionError(f"the stream ended before {kind} came")

    def leave(self) -> list[str]:
        """Say Bye; the kinds of all replies until the end of the stream."""
        self.say(FromLearner(bye=Bye()))
        return [str(message.WhichOneof("message")) for message in self._call]

    def receive(self, wanted: Callable[[Transfer], bool] = lambda transfer: True) -> Transfer:
        """The next complete broadcast for which `wanted` is true."""
        assembler = Assembler(lambda chunk: chunk.total)
        while True:
            transfer = assembler.add(data_chunk(self.hear("chunk").chunk))
            if transfer is not None and wanted(transfer):
                return transfer

    def ending(self) -> str:
        """What was said at the end, after `status`."""
        return self._call.details() or ""

    def status(self) -> grpc.StatusCode:
        """How the stream ended."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = self._call.code()
        return code
