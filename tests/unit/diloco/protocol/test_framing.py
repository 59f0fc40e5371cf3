import numpy as np
import pytest
from builders.chunks import data_chunk
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk
from diloco.protocol.framing import (
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    OPEN_TRANSFERS,
    Assembler,
    FramingError,
    cancellation,
    is_last,
    split,
)
from hypothesis import given
from hypothesis import strategies as st


def push(fragment: int = 0, t: int = 3) -> Chunk:
    return Chunk(kind=Chunk.PUSH, fragment=fragment, t=t, coding=Chunk.FLOAT32, steps=5)


def cancelled(chunk: DataChunk) -> DataChunk:
    return data_chunk(cancellation(chunk.header))


def assembler(size: int) -> Assembler:
    return Assembler(lambda chunk: size)


@given(payload=st.binary(max_size=100), size=st.integers(1, 40))
def test_what_was_split_comes_back_whole_with_its_header(payload: bytes, size: int) -> None:
    into = assembler(len(payload))
    done = [transfer for chunk in split(push(), payload, size) if (transfer := into.add(chunk))]
    assert [bytes(transfer.payload) for transfer in done] == [payload]
    assert (done[0].header.t, done[0].header.steps) == (3, 5)


def test_an_array_is_split_without_being_converted() -> None:
    values = np.arange(5, dtype=np.float32)
    assert b"".join(chunk.data for chunk in split(push(), memoryview(values), 8)) == values.tobytes()


@given(order=st.permutations([0, 0, 0, 1, 1, 1]))
def test_transfers_of_different_fragments_may_interleave(order: list[int]) -> None:
    payloads = {0: b"aabbcc", 1: b"xxyyzz"}
    chunks = {p: split(push(p), payloads[p], 2) for p in payloads}
    into = assembler(6)
    done = [transfer for p in order if (transfer := into.add(next(chunks[p])))]
    assert {transfer.header.fragment: bytes(transfer.payload) for transfer in done} == payloads


def test_a_hole_is_refused() -> None:
    first, _, third = split(push(), b"aabbcc", 2)
    into = assembler(6)
    into.add(first)
    with pytest.raises(FramingError, match="offset 4 of 6; expected offset 2"):
        into.add(third)


def test_a_repeated_piece_is_refused() -> None:
    first, _ = split(push(), b"aabb", 2)
    into = assembler(4)
    into.add(first)
    with pytest.raises(FramingError, match="expected offset 2"):
        into.add(first)


def test_a_transfer_cannot_begin_in_the_middle() -> None:
    _, second = split(push(), b"aabb", 2)
    with pytest.raises(FramingError, match="begins at offset 2"):
        assembler(4).add(second)


def test_a_payload_of_another_length_than_the_layout_says_is_refused_before_memory_is_reserved() -> None:
    huge = Chunk(kind=Chunk.PUSH, total=1 << 60, data=b"a")
    with pytest.raises(FramingError, match="announces 1152921504606846976 bytes, the layout says 4"):
        assembler(4).add(data_chunk(huge))


def test_more_bytes_than_announced_are_refused() -> None:
    chunk = push()
    chunk.total = 4
    chunk.data = b"aaaaa"
    with pytest.raises(FramingError, match="brings 5 bytes"):
        assembler(4).add(data_chunk(chunk))


def test_an_empty_piece_cannot_keep_a_transfer_open() -> None:
    chunk = push()
    chunk.total = 4
    with pytest.raises(FramingError, match="brings 0 bytes"):
        assembler(4).add(data_chunk(chunk))


def test_a_transfer_of_another_step_cannot_go_on_in_an_open_one() -> None:
    first, _ = split(push(t=3), b"aabb", 2)
    _, second = split(push(t=4), b"aabb", 2)
    into = assembler(4)
    into.add(first)
    with pytest.raises(FramingError, match="of outer step 3"):
        into.add(second)


def test_a_cancelled_transfer_makes_room_for_another_of_its_fragment() -> None:
    first, _ = split(push(t=3), b"aabb", 2)
    into = assembler(4)
    into.add(first)
    assert into.add(cancelled(first)) is None
    done = [transfer for chunk in split(push(t=5), b"xxyy", 2) if (transfer := into.add(chunk))]
    assert [(transfer.header.t, bytes(transfer.payload)) for transfer in done] == [(5, b"xxyy")]


def test_a_cancelled_transfer_is_freed() -> None:
    first, _ = split(push(), b"aabb", 2)
    into = assembler(4)
    into.add(first)
    into.add(cancelled(first))
    assert not into._open


@pytest.mark.parametrize("other", [push(t=4), push(fragment=1), Chunk(kind=Chunk.SEED, t=3)])
def test_only_a_transfer_that_is_under_way_can_be_cancelled(other: Chunk) -> None:
    first, _ = split(push(t=3), b"aabb", 2)
    into = assembler(4)
    into.add(first)
    with pytest.raises(FramingError, match="no such transfer is under way"):
        into.add(data_chunk(cancellation(other)))


def test_a_peer_cannot_open_more_transfers_than_the_limit() -> None:
    into = assembler(4)
    firsts = [next(split(push(fragment), b"aabb", 2)) for fragment in range(OPEN_TRANSFERS + 1)]
    for chunk in firsts[:-1]:
        into.add(chunk)
    with pytest.raises(FramingError, match="begins while 2 transfers of this stream are unfinished"):
        into.add(firsts[-1])


def test_the_last_chunk_is_known_by_its_end() -> None:
    assert [is_last(chunk) for chunk in split(push(), b"aabbc", 2)] == [False, False, True]
    assert [is_last(chunk) for chunk in split(push(), b"", 2)] == [True]


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(1, 1), (LEAST_CHUNK_BYTES + 1, LEAST_CHUNK_BYTES), (8 << 20, 1 << 20), (100 << 20, MOST_CHUNK_BYTES)],
)
def test_a_chunk_is_an_eighth_of_the_payload_within_limits(size: int, chunk: int) -> None:
    assert len(next(split(push(), bytes(size))).data) == chunk
