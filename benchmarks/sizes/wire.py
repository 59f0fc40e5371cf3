"""[wire] A push and the broadcast after it, through the real ends of a learner's stream, against a bare gRPC stream.

`Connection` and `Service` run with TLS over loopback, in two processes, with coding in FLOAT32, chunks, checks and all. The bare stream
sends as many messages of the same size there and back over the same TLS; they are made beforehand, and are not read. Both take turns.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np
from builders.certificates import JobCertificates
from builders.child_processes import die_with_parent
from builders.ports import held_port
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout
from diloco.contract import JobFile, Training, syncer_host_name
from diloco.learner.arrays import ArrayStore
from diloco.learner.config import LearnerConfig
from diloco.learner.inbox import Inbox, Received, Welcomed
from diloco.learner.incarnations import Incarnations
from diloco.learner.member import make_parts
from diloco.learner.peers import Peers
from diloco.learner.program import Program
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.chunks import to_wire
from diloco.protocol.diloco_pb2 import Chunk, Hello, Tensor
from diloco.protocol.framing import split
from diloco.protocol.tls import TlsFiles

from benchmarks import ROOT
from benchmarks.figure import Figure, rounded
from benchmarks.wire_syncer import BARE, JOB_UID

LIMIT = 0.8
MIB = 1 << 20
UNIT = "u-0"
TIMEOUT = 240.0
JOB = JobFile(name="bench", namespace="default", uid=JOB_UID, training=Training(steps=1, fragments=1, sync_interval=1, overlap_steps=0))


class Learner:
    """A real connection, and a model of one fragment."""

    def __init__(self, address: str, tls: TlsFiles, mebibytes: int) -> None:
        self._store = ArrayStore({"w": np.ones((mebibytes * MIB // 4 // 256, 256), np.float32)})
        layout = Layout(self._store.specs())
        self.fragments: tuple[Fragment, ...] = make_fragments(layout, 1)
        self._inbox = Inbox(0)
        tensors = [Tensor(name=x.name, shape=x.shape) for x in layout.tensors]
        hello = Hello(job_uid=JOB_UID, unit=UNIT, attempt=1, session=b"session", tensors=tensors, fingerprint=layout.fingerprint)
        config = LearnerConfig(
            JOB, tls, UNIT, 1, 0, 1, 1, address, leader_address="", pod_ip="", locality="", cluster="", relative_speed=1.0
        )
        program = Program(self._store, layout, self.fragments)
        parts = make_parts(config, hello, program, self._inbox, Incarnations(), Peers())
        self._connection = parts.link
        self._connection.start()
        self._generation = self._wait(Welcomed).generation
        self._wait(Received)
        self._t = 0

    def exchange(self) -> float:
        """Push, and return the seconds until the broadcast after it arrives."""
        self._t += 1
        staged = self._store.stage(["w"])
        start = time.perf_counter()
        header = Chunk(kind=Chunk.PUSH, fragment=0, t=self._t, coding=Chunk.FLOAT32, steps=1, tokens=1)
        self._connection.push(self._generation, header, staged)
        self._wait(Received)
        return time.perf_counter() - start

    def close(self) -> None:
        self._connection.close(None)

    def _wait[T](self, wanted: type[T]) -> T:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            self._inbox.wait(1.0)
            for event in self._inbox.drain():
                if isinstance(event, wanted):
                    return event
        raise TimeoutError(f"no {wanted.__name__} within {TIMEOUT:.0f} s")


class BareStream:
    """A stream on which messages of one size go there and back."""

    def __init__(self, channel: grpc.Channel, messages: int, size: int) -> None:
        self._data, self._messages = bytes(size), messages
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        opened: Callable[[Iterator[bytes]], Any] = channel.stream_stream(BARE, request_serializer=bytes, response_deserializer=bytes)
        self._call = opened(iter(self._out.get, None))

    def exchange(self) -> float:
        """Send all messages, and return the seconds from the first message to the last answer."""
        start = time.perf_counter()
        for _ in range(self._messages):
            self._out.put(self._data)
        for _ in range(self._messages):
            next(self._call)
        return time.perf_counter() - start

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()


@contextmanager
def ends(directory: Path, mebibytes: int) -> Iterator[tuple[Learner, BareStream]]:
    """Yield a learner and a bare stream. Both are connected to a process with the syncer's end."""
    certificates = JobCertificates(directory, JOB)
    port = held_port()
    address = f"127.0.0.1:{port}"
    chunks = list(split(Chunk(kind=Chunk.PUSH, coding=Chunk.FLOAT32, steps=1, tokens=1), bytes(mebibytes * MIB)))
    size = len(to_wire(chunks[0]))
    command = ["-m", "benchmarks.wire_syncer", str(certificates.syncer().folder), address, str(mebibytes), str(len(chunks)), str(size)]
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, preexec_fn=die_with_parent)
    try:
        tls = certificates.learner(UNIT)
        options = client_options(Keepalive(), syncer_host_name(JOB.name, JOB.namespace))
        with grpc.secure_channel(address, tls.read().channel_credentials(), options=options) as channel:
            grpc.channel_ready_future(channel).result(TIMEOUT)
            learner, bare = Learner(address, tls, mebibytes), BareStream(channel, len(chunks), size)
            yield learner, bare
            learner.close()
            bare.close()
    finally:
        process.kill()
        process.wait()


def measure(*, smoke: bool) -> Iterator[Figure]:
    mebibytes, runs = (2, 2) if smoke else (64, 11)
    with tempfile.TemporaryDirectory() as directory, ends(Path(directory), mebibytes) as (learner, bare):
        # The first exchange of each warms up.
        learner.exchange()
        bare.exchange()
        times = [(learner.exchange(), bare.exchange()) for _ in range(runs)]
    ratios = [bare / real for real, bare in times]
    value = median(ratios)
    mean = median(real for real, _ in times)
    details = {"mebibytes": mebibytes, "all": rounded(ratios, 2), "gibibytes_per_second": round(2 * mebibytes / 1024 / mean, 2)}
    yield Figure("wire", value, "rate ÷ rate of a bare stream", LIMIT, value >= LIMIT, runs, details)
