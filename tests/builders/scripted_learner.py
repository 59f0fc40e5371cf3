"""A learner that sends exactly what a test says, right or wrong, over real connections: for tests of the syncer."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import grpc
import numpy as np
from builders.chunks import chunk_of, data_chunk
from builders.exchange import JOB_UID, WAIT_TIMEOUT, Place, weights
from builders.shardings import Owned, Sharding
from builders.wire import exchange
from diloco.algorithm.codec import Coding, coding_for, encode, value_of
from diloco.algorithm.cut import value_of_cut
from diloco.algorithm.fragments import Fragment, make_fragments, pack
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Portion, portion, whole
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Hello, Progress, Pull, Tensor, ToLearner, Welcome, WorkWanted
from diloco.protocol.framing import Assembler, Transfer, split
from diloco.protocol.piece_maps import piece_maps
from diloco.protocol.tls import TlsFiles


class Reachable(Protocol):
    """A syncer, or where a link to it begins."""

    @property
    def place(self) -> Place: ...
    @property
    def address(self) -> str: ...


class ScriptedLearner:
    """One process of a unit: a stream, by hand. Replies are read one by one; every read fails after WAIT_TIMEOUT.

    With a sharding it is the leader of a unit of as many ranks, whose streams it has: `streams`, with its own. They hold nothing but
    their portions. Without one it is a unit of one process, which knows nothing of ranks.
    """

    def __init__(
        self,
        syncer: Reachable,
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        unit: str = "u-0",
        attempt: int = 1,
        files: TlsFiles | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """With a certificate for `attempt` of `unit`, or another one."""
        self.syncer, self.unit, self.attempt = syncer, unit, attempt
        training = syncer.place.job.training
        self.coding = coding_for(training.compression)
        """The coding of its answers: the job's, unless a test sets another."""
        self.arrays = dict(arrays if arrays is not None else weights())
        self.layout = Layout(ArrayStore(self.arrays, embeddings=["w0"]).specs())
        self.fragments: tuple[Fragment, ...] = make_fragments(self.layout, training.fragments)
        self._out: queue.SimpleQueue[FromLearner | None] = queue.SimpleQueue()
        certificates = syncer.place.certificates
        self._channel = certificates.channel(syncer.address, files or certificates.learner(unit, attempt))
        self._call = exchange(self._channel)(iter(self._out.get, None), timeout=WAIT_TIMEOUT)
        self.owned: Owned | None = sharding(self.layout) if sharding is not None else None
        self.ranks = len(self.owned or [[]])
        self.streams = [self, *(self._stream() for _ in range(1, self.ranks))]
        self.portions: list[list[Portion]] = [
            [portion(fragment, pieces) for fragment in self.fragments] for pieces in self.owned or [list(map(whole, self.layout.tensors))]
        ]
        self.held: list[dict[int, tuple[int, Float32Array]]] = [{} for _ in range(self.ranks)]
        """Per rank and fragment: version, and values of the portion."""
        self.checksums: list[dict[int, int]] = [{} for _ in range(self.ranks)]
        """Per rank and fragment what came with the last broadcast."""
        self.steps = 0
        """Local steps that were reported."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.cut()

    def cut(self) -> None:
        """As a broken connection."""
        self._out.put(None)
        self._call.cancel()
        self._channel.close()

    def reopen(self, rank: int) -> ScriptedLearner:
        """A new stream in the place of a rank's former one."""
        self.streams[rank].cut()
        self.streams[rank] = self._stream()
        return self.streams[rank]

    def _stream(self) -> ScriptedLearner:
        return ScriptedLearner(self.syncer, self.arrays, unit=self.unit, attempt=self.attempt)

    # --- one message ------------------------------------------------------------------------------------------------------

    def say(self, message: FromLearner) -> Self:
        self._out.put(message)
        return self

    def hello(self, **changes: object) -> Self:
        fields: dict[str, object] = {
            "job_uid": JOB_UID,
            "unit": self.unit,
            "attempt": self.attempt,
            "session": b"scripted",
            "framework": "test",
            "tensors": [Tensor(name=x.name, shape=x.shape, embedding=x.embedding) for x in self.layout.tensors],
            "fingerprint": self.layout.fingerprint,
        }
        if self.owned is not None:
            fields |= {"ranks": self.ranks, "owned": piece_maps(self.layout, self.owned)}
        return self.say(FromLearner(hello=Hello(**(fields | changes))))  # type: ignore[arg-type]

    def hello_of(self, rank: int, **changes: object) -> ScriptedLearner:
        """Say hello as another rank than the leader, and return that rank's stream."""
        fields: dict[str, object] = {"rank": rank, "ranks": self.ranks, "process": b"p%d" % rank, "tensors": [], "fingerprint": ""}
        return self.streams[rank].hello(**(fields | changes))

    def transfer(self, header: Chunk, payload: bytes) -> Self:
        for piece in split(header, payload):
            self.say(FromLearner(chunk=chunk_of(piece)))
        return self

    def step(self, local_step: int, tokens: int = 8, step_seconds: float = 20.0) -> Self:
        """`step_seconds`: three of them without a report, or a second if that is more, and the quorum no longer waits for the learner. On
        a slow machine more than a second may lie between the reports of two learners."""
        self.steps = local_step
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

    def want(self, samples: int) -> Self:
        return self.say(FromLearner(work_wanted=WorkWanted(samples=samples)))

    def hear(self, kind: str) -> ToLearner:
        """The next reply of this kind; others are passed over."""
        message: ToLearner
        for message in self._call:
            if message.WhichOneof("message") == kind:
                return message
        raise AssertionError(f"the stream ended before {kind} came")

    def pulled(self) -> Pull:
        return self.hear("pull").pull

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

    # --- what a unit does, in all of its ranks ------------------------------------------------------------------------------

    def welcomed(self, **changes: object) -> Welcome:
        """Say hello as the leader, and return the welcome."""
        welcome: Welcome = self.hello(**changes).hear("welcome").welcome
        self.incarnation = welcome.incarnation
        return welcome

    def welcomed_rank(self, rank: int, **changes: object) -> Welcome:
        return self.hello_of(rank, **changes).hear("welcome").welcome

    def join(self) -> Self:
        """All ranks, the leader first."""
        self.welcomed()
        for rank in range(1, self.ranks):
            self.welcomed_rank(rank)
        return self

    def seed(self, ranks: Sequence[int] | None = None) -> Self:
        """All ranks, or these, send their portions, and hold version 0 of them."""
        for rank in range(self.ranks) if ranks is None else ranks:
            stream = self.streams[rank]
            for p, own in enumerate(self.portions[rank]):
                value = own.cut(pack(own.fragment, self.arrays))
                self.held[rank][p] = 0, value
                if own.size:
                    stream.transfer(Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), value.tobytes())
        return self

    def offer(self, pull: Pull, rank: int = 0, **changes: object) -> Chunk:
        """What is said of an answer before its bytes: one step of 8 tokens for each outer step so far."""
        version, _ = self.held[rank].get(pull.fragment, (0, None))
        header = Chunk(kind=Chunk.PUSH, fragment=pull.fragment, t=pull.t, coding=self.coding.value)  # type: ignore[arg-type]
        usual = {"base": version, "steps": 1, "tokens": 8, "steps_done": pull.t, "tokens_done": 8 * pull.t}
        for name, value in (usual | changes).items():
            setattr(header, name, value)
        return header

    def push(self, pull: Pull, theta: Float32Array | None = None, *, ranks: Sequence[int] | None = None, **changes: object) -> Self:
        """All ranks, or these, answer with their portions of the fragment that has been trained to `theta`; None: to `arrays`."""
        if theta is None:
            theta = pack(self.fragments[pull.fragment], self.arrays)
        for rank in range(self.ranks) if ranks is None else ranks:
            own = self.portions[rank][pull.fragment]
            if own.size:
                payload = encode(self.coding, own.cut(theta), self.held[rank][pull.fragment][1] if self.coding.delta else None)
                self.streams[rank].transfer(self.offer(pull, rank, **changes), bytes(payload))
        return self

    def adopt(self, count: int = 1, ranks: Sequence[int] | None = None) -> Self:
        """The next broadcasts of all ranks, or of these."""
        for rank in range(self.ranks) if ranks is None else ranks:
            for _ in range(count):
                self._adopt(rank, self.streams[rank].receive())
        return self

    def _adopt(self, rank: int, transfer: Transfer) -> None:
        header, own = transfer.header, self.portions[rank][transfer.header.fragment]
        if header.coding == Chunk.FLOAT32:
            value = np.frombuffer(transfer.payload, np.float32)
        else:
            version, base = self.held[rank][header.fragment]
            assert version == header.base
            coding = Coding(header.coding)
            value = value_of(coding, transfer.payload, base) if self.owned is None else value_of_cut(coding, transfer.payload, own, base)
        assert value.shape == (own.size,)
        self.held[rank][header.fragment] = header.t, value
        self.checksums[rank][header.fragment] = header.checksum

    def value(self, p: int) -> Float32Array:
        """What all ranks together hold of a fragment."""
        together = np.full(self.fragments[p].size, np.nan, np.float32)
        for rank in range(self.ranks):
            self.portions[rank][p].place(self.held[rank][p][1], together)
        return together

    def trained(self, pull: Pull) -> Float32Array:
        """What the unit has made of a fragment: the same for every sharding."""
        noise = np.random.default_rng([*self.unit.encode(), pull.fragment, pull.t]).standard_normal(self.fragments[pull.fragment].size)
        moved: Float32Array = (self.value(pull.fragment) + 0.01 * noise).astype(np.float32)
        return moved


def a_round(learners: Sequence[ScriptedLearner], number: int) -> Pull:
    """All take local step `number`, answer the pull, and adopt the merge."""
    for learner in learners:
        learner.step(number)
    pulls = [learner.pulled() for learner in learners]
    for learner, pull in zip(learners, pulls, strict=True):
        learner.push(pull, learner.trained(pull))
    for learner in learners:
        learner.adopt()
    return pulls[0]
