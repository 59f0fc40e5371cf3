"""A shard uses memory again, and its numbers are those of one that never does. `conftest.py` overwrites what is given back."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from builders.core import a_job, a_layout
from diloco.algorithm import codec, spare
from diloco.algorithm.effects import Close
from diloco.algorithm.events import Offer
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.shard import Array, Shard
from diloco.algorithm.spare import SpareMemory
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import Assembler, split

UNITS = ("a", "b", "c")
FRAGMENTS = 2
EXCHANGES = 24
HELD = 5
"""Exchanges for which readers hold what they got: as a learner's queue holds payloads, and a snapshot arrays."""


class NeverAgain(SpareMemory):
    """Always new memory."""

    def keep(self, size: int, limit: int) -> None:
        super().keep(size, 0)


@dataclass
class Reader:
    """Holds what a merge made, and what it looked like."""

    held: list[tuple[memoryview, bytes]] = field(default_factory=list)

    def take(self, *buffers: memoryview) -> None:
        self.held += [(buffer, bytes(buffer)) for buffer in buffers]

    def check(self, newest: int) -> None:
        """What is held has not changed; keep the newest ones."""
        assert all(bytes(buffer) == before for buffer, before in self.held)
        del self.held[:-newest]


def a_shard(compression: str, layout: Layout | None = None) -> Shard:
    training = a_job(fragments=FRAGMENTS, compression=compression, outer_optimizer={"learning_rate": 0.7, "momentum": 0.9})
    fragments = make_fragments(layout or a_layout(tensors=5, size=300), FRAGMENTS)
    assert len({fragment.size for fragment in fragments}) == FRAGMENTS
    shard = Shard(fragments, training)
    rng = np.random.default_rng(1)
    assert shard.seed([rng.standard_normal(fragment.size, dtype=np.float32) for fragment in shard.fragments]) is None
    return shard


def exchange(shard: Shard, t: int, reader: Reader) -> list[bytes]:
    """One exchange, from chunks to what is sent. A contribution that is discarded comes in between."""
    p, rng = t % FRAGMENTS, np.random.default_rng(t)
    coding, size = shard.coding, shard.fragments[p].size
    for unit in (*UNITS, "discarded"):
        delta = rng.standard_normal(size, dtype=np.float32) * np.float32(1e-2)
        sent = codec.encode(coding, delta if coding.delta else shard.value(p) + delta)
        assembler = Assembler(lambda _: codec.payload_bytes(coding, size), shard.memory.take)
        header = Chunk(kind=Chunk.PUSH, fragment=p, t=t, coding=coding.value)  # type: ignore[arg-type]
        for chunk in split(header, sent, 700):
            transfer = assembler.add(chunk)
        assert transfer is not None
        offer = Offer(p, t, coding, shard.versions[p], 1, 1)
        shard.hold(unit, offer, shard.decode(offer, transfer.payload))
        shard.accept(unit, offer)
    shard.discard(t, "discarded")
    close = Close(t, p, shard.versions[p], UNITS, (1.0, 2.0, 3.0))
    update = shard.compute(close)
    assert update is not None
    shard.hold_update(close, update)
    shard.install(close)
    arrays: list[Array] = [x for x in (shard.value(p), shard.momentum[p], shard.residual[p]) if x is not None]
    buffers = [update.payload, shard.whole(p), *(memoryview(x) for x in arrays)]
    reader.take(*buffers)
    reader.check(HELD * len(buffers))
    return [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_memory_that_is_used_again_changes_no_number(compression: str) -> None:
    fresh, again = a_shard(compression), a_shard(compression)
    fresh.memory = NeverAgain(fresh.memory._spare)
    readers = Reader(), Reader()
    for t in range(1, EXCHANGES + 1):
        assert exchange(again, t, readers[0]) == exchange(fresh, t, readers[1])
    assert any(again.memory._spare.values())
    assert not any(fresh.memory._spare.values())


ONE_LARGE = Layout([TensorSpec("large", (3100,)), TensorSpec("small", (300,))])
"""A fragment ten times as large as the other one."""


@pytest.mark.parametrize("layout", [None, ONE_LARGE], ids=["of about one size", "one large"])
@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_exchanges_need_no_new_memory_once_a_round_is_over(
    compression: str, layout: Layout | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, reader = a_shard(compression, layout), Reader()
    for t in range(1, FRAGMENTS * HELD + 1):
        exchange(shard, t, reader)
    made: list[int] = []

    def noted(size: int, dtype: type) -> Array:
        made.append(size)
        return np.empty(size, dtype)

    monkeypatch.setattr(spare, "np", SimpleNamespace(empty=noted, asarray=np.asarray, float32=np.float32, uint8=np.uint8))
    for t in range(FRAGMENTS * HELD + 1, EXCHANGES + 1):
        exchange(shard, t, reader)
    assert made == []
