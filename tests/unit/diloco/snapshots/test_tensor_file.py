from __future__ import annotations

import hashlib
import io
import weakref

import numpy as np
import pytest
import safetensors.numpy
from diloco.snapshots.tensor_file import TensorParts, checksum, read_tensors, tensors_checksum, write_tensors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.floats(width=32))
STATES = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), ARRAYS, max_size=5)


def file_of(tensors: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    parts = TensorParts([tensors])
    written = write_tensors(file, parts.shapes, parts.take())
    data = file.getvalue()
    assert (written.bytes, written.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    return data


def assert_same(read: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> None:
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert read[name].tobytes() == tensor.tobytes()


@pytest.mark.slow
@given(STATES)
def test_the_library_reads_what_we_write(tensors: dict[str, np.ndarray]) -> None:
    assert_same(safetensors.numpy.load(file_of(tensors)), tensors)


@pytest.mark.slow
@given(STATES)
def test_we_read_what_the_library_writes(tensors: dict[str, np.ndarray]) -> None:
    data = safetensors.numpy.save(tensors, {"format": "np"})
    found = read_tensors(io.BytesIO(data), len(data))
    assert (found.wrong, found.written.sha256) == ("", hashlib.sha256(data).hexdigest())
    assert_same(dict(found.tensors), tensors)


def test_tensors_are_read_into_the_arrays_that_are_given() -> None:
    data = file_of({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.float32)})
    flat = np.zeros(7, np.float32)
    found = read_tensors(io.BytesIO(data), len(data), {"b": flat[:1].reshape(()), "a": flat[1:].reshape(2, 3)})
    assert found.wrong == ""
    assert flat.tolist() == [7, 0, 1, 2, 3, 4, 5]


def test_a_file_with_other_tensors_than_expected_is_read_to_its_end_for_the_checksum() -> None:
    data = file_of({"a": np.ones((2, 3), np.float32)})
    for into in ({}, {"a": np.zeros((3, 2), np.float32)}, {"b": np.zeros((2, 3), np.float32)}):
        found = read_tensors(io.BytesIO(data), len(data), into)
        assert found.wrong == "it holds other tensors than its manifest describes"
        assert found.written.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (b"[]", "'list' object has no attribute 'items'"),
        (b"{", "Expecting property name"),
        (b'{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}}', "'a' does not lie there as float32"),
        (b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', "'a' does not lie there as float32"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "'a' does not lie there as float32"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "describes 4 bytes of tensors, 8 are there"),
        (b'{"a":{"dtype":"F32","data_offsets":[0,8]}}', "shape"),
    ],
)
def test_what_is_no_file_of_this_form_is_named_and_still_has_its_checksum(header: bytes, wrong: str) -> None:
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    found = read_tensors(io.BytesIO(data), len(data))
    assert wrong in found.wrong
    assert (found.written.bytes, found.written.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_header_longer_than_the_file_reserves_no_memory() -> None:
    data = (1 << 60).to_bytes(8, "little") + b"{}"
    assert "header would have" in read_tensors(io.BytesIO(data), len(data)).wrong


@pytest.mark.slow
@given(STATES)
def test_the_checksum_lets_go_of_nothing(tensors: dict[str, np.ndarray]) -> None:
    parts = TensorParts([{name: tensor} for name, tensor in tensors.items()])
    before = tensors_checksum(parts)
    assert before == tensors_checksum(parts) == write_tensors(io.BytesIO(), parts.shapes, parts.take())
    assert list(parts.arrays()) == []


def test_a_part_is_let_go_once_it_is_written() -> None:
    """Memory holds one part beside what the core holds, however long the file takes."""
    arrays = [np.full(4, i, np.float32) for i in range(3)]
    alive = [weakref.ref(array) for array in arrays]
    parts = TensorParts([{f"value/{i}": array} for i, array in enumerate(arrays)])
    arrays.clear()
    left = []

    class File(io.BytesIO):
        def write(self, data: object, /) -> int:
            left.append([one() is not None for one in alive])
            return 0

    write_tensors(File(), parts.shapes, parts.take())
    assert left[-3:] == [[True, True, True], [False, True, True], [False, False, True]]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([{"a": np.zeros(2, np.int64)}], "float32 only"),
        ([{"__metadata__": np.zeros(2, np.float32)}], "reserves that name"),
        ([{"a": np.zeros(2, np.float32)}, {"a": np.zeros(2, np.float32)}], "there twice"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_before_anything_is_written(parts: list[dict[str, np.ndarray]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TensorParts(parts)


def test_checksum_is_that_of_the_rest_of_the_file() -> None:
    file = io.BytesIO(b"skipped|counted")
    file.seek(8)
    found = checksum(file)
    assert (found.bytes, found.sha256) == (7, hashlib.sha256(b"counted").hexdigest())
