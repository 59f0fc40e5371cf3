from __future__ import annotations

import hashlib
import io

import numpy as np
import safetensors.numpy
from diloco.syncer.tensor_file import checksum, write_tensors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

ARRAYS = st.one_of(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.floats(width=32)),
    hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
)
STATES = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), ARRAYS, max_size=5)


@given(STATES)
def test_the_library_reads_what_we_write(tensors: dict[str, np.ndarray]) -> None:
    file = io.BytesIO()
    written = write_tensors(file, tensors)
    data = file.getvalue()
    assert (written.bytes, written.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    read = safetensors.numpy.load(data)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert read[name].tobytes() == tensor.tobytes()


@given(STATES)
def test_equal_state_gives_equal_bytes_whatever_its_order(tensors: dict[str, np.ndarray]) -> None:
    assert write_tensors(io.BytesIO(), tensors) == write_tensors(io.BytesIO(), dict(reversed(tensors.items())))


def test_checksum_is_that_of_the_rest_of_the_file() -> None:
    file = io.BytesIO(b"skipped|counted")
    file.seek(8)
    found = checksum(file)
    assert (found.bytes, found.sha256) == (7, hashlib.sha256(b"counted").hexdigest())
