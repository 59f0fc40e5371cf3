"""Chunks that pass protobuf by: the same bytes and the same content as by protobuf."""

from typing import Any

import pytest
from diloco.protocol.chunks import DataChunk, acknowledged_in, from_learner, to_learner, to_wire, with_acknowledged
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Progress, Pull, Taken, ToLearner
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

headers = st.builds(
    Chunk,
    kind=st.sampled_from([Chunk.SEED, Chunk.PUSH, Chunk.BROADCAST]),
    fragment=st.integers(0, 2**32 - 1),
    t=st.integers(-(2**63), 2**63 - 1),
    coding=st.sampled_from([Chunk.FLOAT32, Chunk.INT4_DELTA]),
    base=st.integers(-1, 2**63 - 1),
    total=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
    steps=st.integers(0, 2**64 - 1),
    tokens=st.integers(0, 2**64 - 1),
    acknowledged=st.one_of(st.none(), st.builds(Taken, bytes=st.integers(0, 2**64 - 1), held=st.floats(0, 1))),
)
data = st.one_of(st.binary(max_size=300), st.sampled_from([bytes(127), bytes(128), b"?" * 20_000]))


def with_data(header: Chunk, data: bytes) -> Chunk:
    chunk = Chunk(data=data)
    chunk.MergeFrom(header)
    return chunk


@given(headers, data)
def test_protobuf_reads_what_is_written(header: Chunk, data: bytes) -> None:
    raw = to_wire(DataChunk(header, memoryview(data)))
    assert FromLearner.FromString(raw) == FromLearner(chunk=with_data(header, data))
    assert ToLearner.FromString(raw) == ToLearner(chunk=with_data(header, data))
    assert len(raw) == FromLearner(chunk=with_data(header, data)).ByteSize()


@given(headers, data)
def test_what_protobuf_writes_is_read(header: Chunk, data: bytes) -> None:
    for read, whole in ((from_learner, FromLearner(chunk=with_data(header, data))), (to_learner, ToLearner(chunk=with_data(header, data)))):
        chunk = read(whole.SerializeToString())
        assert isinstance(chunk, DataChunk)
        assert chunk.header == header
        assert bytes(chunk.data) == data


def test_the_data_is_a_view_of_the_message() -> None:
    raw = to_wire(DataChunk(Chunk(kind=Chunk.PUSH), memoryview(b"data")))
    chunk = from_learner(raw)
    assert isinstance(chunk, DataChunk)
    assert chunk.data.obj is raw


def test_other_messages_are_protobufs() -> None:
    progress, pull = FromLearner(progress=Progress(local_step=3)), ToLearner(pull=Pull(fragment=1, t=2))
    assert from_learner(to_wire(progress)) == progress
    assert to_learner(to_wire(pull)) == pull
    assert from_learner(b"") == FromLearner()


@pytest.mark.parametrize(
    "message",
    [
        FromLearner(progress=Progress(local_step=3)),
        FromLearner(chunk=Chunk(kind=Chunk.PUSH, cancelled=True)),
        DataChunk(Chunk(kind=Chunk.PUSH, fragment=2), memoryview(b"data")),
    ],
    ids=["progress", "cancelled", "chunk"],
)
def test_an_acknowledgement_goes_beside_any_message_and_changes_nothing_else(message: Any) -> None:
    taken = Taken(bytes=1 << 40, held=0.01)
    plain, said = from_learner(to_wire(message)), from_learner(to_wire(with_acknowledged(message, taken)))
    assert acknowledged_in(said) == taken
    assert acknowledged_in(plain) is None
    assert acknowledged_in(from_learner(to_wire(message))) is None, "the message itself is as it was"
    assert from_learner(to_wire(with_acknowledged(message, None))) == plain
    (said.header if isinstance(said, DataChunk) else said).ClearField("acknowledged")
    assert said == plain


CHUNK, DATA, FIXED = b"\x1a", b"\x42", b"\x7d"
"""Tags: chunk, its data, and a field 15 of 4 bytes that no version knows."""


@pytest.mark.parametrize(
    "raw",
    [
        CHUNK + b"\x06" + DATA + b"\x01a" + DATA + b"\x01b",  # data twice: the last one counts
        CHUNK + b"\x03" + DATA + b"\x01a" + CHUNK + b"\x03" + DATA + b"\x01b",  # a chunk in two parts
        CHUNK + b"\x08" + DATA + b"\x01b" + FIXED + b"abcd",  # a field that this version does not know
        CHUNK + b"\x83\x00" + DATA + b"\x01b",  # a length in more bytes than it needs
    ],
    ids=["twice", "parts", "unknown", "long"],
)
def test_forms_that_protobuf_allows_are_read_as_by_protobuf(raw: bytes) -> None:
    chunk = from_learner(raw)
    assert isinstance(chunk, DataChunk)
    assert bytes(chunk.data) == FromLearner.FromString(raw).chunk.data == b"b"


@given(st.binary(max_size=40).map(lambda more: CHUNK + more))
def test_any_bytes_are_read_as_by_protobuf_or_refused(raw: bytes) -> None:
    try:
        expected = FromLearner.FromString(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            from_learner(raw)
        return
    found = from_learner(raw)
    if isinstance(found, DataChunk):
        assert with_data(found.header, bytes(found.data)) == expected.chunk
    else:
        assert found == expected
