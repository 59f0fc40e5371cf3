"""[engine] The syncer's path without the network: contributions through parse, decode, merge, outer step and coding, on two threads.

Eight learners answer every pull. While one thread parses and decodes contributions of the next fragment, the other does so too or merges
the fragment before, as the syncer's threads do. The value is the rate of the slower of the two delta codings. It counts the float32 bytes
of the values in the contributions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median

import numpy as np
from diloco.algorithm.codec import Coding, encode, payload_bytes
from diloco.algorithm.effects import Close
from diloco.algorithm.events import Offer
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.shard import CheckedPush, Shard, Update
from diloco.contract import Training
from diloco.protocol.chunks import DataChunk, from_learner, to_wire
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import Assembler, split

from benchmarks.figure import Figure, rounded

LIMIT = 2.5
LEARNERS = 8
CORES = 2
FRAGMENTS = 2
TENSORS = 4
"""Tensors of each fragment."""


class Path:
    """The arrays of a job, and the messages that its learners send."""

    def __init__(self, side: int, training: Training) -> None:
        """`side`: each tensor has `side` times `side` values."""
        layout = Layout(TensorSpec(f"w{i}", (side, side)) for i in range(TENSORS * FRAGMENTS))
        self.shard = Shard(make_fragments(layout, FRAGMENTS), training)
        self.size = self.shard.fragments[0].size
        rng = np.random.default_rng(0)
        assert self.shard.seed([rng.standard_normal(self.size, dtype=np.float32) for _ in range(FRAGMENTS)]) is None
        delta = rng.standard_normal(self.size, dtype=np.float32) * np.float32(1e-3)
        values = delta if self.shard.coding.delta else self.shard.value(0) + delta
        header = Chunk(kind=Chunk.PUSH, coding=int(self.shard.coding), steps=24, tokens=24_000)  # type: ignore[arg-type]
        self.messages = [to_wire(chunk) for chunk in split(header, encode(self.shard.coding, values))]

    def arrive(self, p: int, t: int) -> CheckedPush:
        """Parse and decode one contribution: from its bytes, as they come out of TLS, to its outer gradient and norms."""
        assembler = Assembler(lambda chunk: payload_bytes(Coding(chunk.coding), self.size), self.shard.memory.take)
        for message in self.messages:
            transfer = assembler.add(_chunk(message))
        assert transfer is not None
        return self.shard.decode(Offer(p, t, self.shard.coding, 0, transfer.header.steps, transfer.header.tokens), transfer.payload)

    def take(self, p: int, t: int, contributions: list[Future[CheckedPush]]) -> Close:
        """Accept the contributions and order their merge."""
        units = tuple(f"u-{m}" for m in range(LEARNERS))
        for unit, contribution in zip(units, contributions, strict=True):
            offer = Offer(p, t, self.shard.coding, 0, 24, 24_000)
            self.shard.hold(unit, offer, contribution.result())
            self.shard.accept(unit, offer)
        return Close(t, p, self.shard.versions[p], units, tuple(float(m + 1) for m in range(LEARNERS)))

    def rate(self, exchanges: int, cores: int = CORES) -> float:
        """GiB of float32 per second over `exchanges` exchanges on `cores` threads, after one exchange to warm up."""
        merging: tuple[Close, Future[Update | None]] | None = None
        start = time.perf_counter()
        with ThreadPoolExecutor(cores) as threads:
            for t in range(1, exchanges + 2):
                p = t % FRAGMENTS
                contributions = [threads.submit(self.arrive, p, t) for _ in range(LEARNERS)]
                close = self.take(p, t, contributions)
                if merging is not None:
                    self.install(*merging)
                if t == 1:
                    start = time.perf_counter()
                merging = close, threads.submit(self.shard.compute, close)
            assert merging is not None
            self.install(*merging)
        return exchanges * LEARNERS * 4 * self.size / (1 << 30) / (time.perf_counter() - start)

    def install(self, close: Close, update: Future[Update | None]) -> None:
        result = update.result()
        assert result is not None
        self.shard.hold_update(close, result)
        self.shard.install(close)


def measure(*, smoke: bool) -> Iterator[Figure]:
    side, exchanges, runs = (64, 2, 1) if smoke else (2048, 6, 5)
    rates: dict[str, list[float]] = {}
    for compression in ("BFloat16", "Int4", "None"):
        path = Path(side, Training(steps=100, fragments=FRAGMENTS, compression=compression))
        rates[compression] = [path.rate(exchanges) for _ in range(runs)]
    value = min(median(rates[compression]) for compression in ("BFloat16", "Int4"))
    details = {"mebibytes": 4 * path.size / (1 << 20), "threads": CORES, "all": {name: rounded(all_, 2) for name, all_ in rates.items()}}
    yield Figure("engine", value, "GiB of float32 a second on 2 cores", LIMIT, value >= LIMIT, runs, details)


def _chunk(message: bytes) -> DataChunk:
    chunk = from_learner(message)
    assert isinstance(chunk, DataChunk)
    return chunk
