"""Codings of a fragment's values."""

import ml_dtypes
import numpy as np
import pytest
from diloco.algorithm import codec
from diloco.algorithm.codec import (
    CodecError,
    Coding,
    NonFiniteError,
    coding_for,
    decode,
    encode,
    leave_rounding_error,
    outer_gradient,
    payload_bytes,
    value_of,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

finite_vectors = nps.arrays(np.float32, st.integers(0, 1500), elements=st.floats(-(2.0**100), 2.0**100, width=32))


def normal(n: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


@given(finite_vectors)
def test_float32_is_exact_and_shares_memory(x: NDArray[np.float32]) -> None:
    payload = encode(Coding.FLOAT32, x)
    assert np.array_equal(decode(Coding.FLOAT32, payload, x.size), x)
    if x.size:
        assert np.shares_memory(np.frombuffer(payload, np.float32), x)


@pytest.mark.usefixtures("level")
@given(finite_vectors)
def test_bfloat16_rounds_as_the_reference_does(x: NDArray[np.float32]) -> None:
    reference = x.astype(ml_dtypes.bfloat16)  # round to nearest, ties to even
    assert bytes(encode(Coding.BFLOAT16_DELTA, x)) == reference.tobytes()
    assert np.array_equal(decode(Coding.BFLOAT16_DELTA, reference.tobytes(), x.size), reference.astype(np.float32))


def test_bfloat16_ties_go_to_the_even_neighbour() -> None:
    # bfloat16 has 7 fraction bits: neighbours of 1 are 2^-7 apart. 1 + 2^-8 lies between 1 (even) and 1 + 2^-7 (odd), 1 + 3*2^-8
    # between 1 + 2^-7 (odd) and 1 + 2^-6 (even).
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert decode(Coding.BFLOAT16_DELTA, encode(Coding.BFLOAT16_DELTA, x), 2).tolist() == [1.0, 1 + 2**-6]


@given(finite_vectors)
def test_int4_is_within_half_a_level_of_its_block(x: NDArray[np.float32]) -> None:
    decoded = decode(Coding.INT4_DELTA, encode(Coding.INT4_DELTA, x), x.size)
    for start in range(0, x.size, codec.BLOCK):
        block, back = x[start : start + codec.BLOCK].astype(float), decoded[start : start + codec.BLOCK].astype(float)
        largest = np.abs(block).max()
        # levels are largest/7 apart, so nothing is farther than largest/14; blocks too small for a normal scale become zero
        assert np.abs(block - back).max() <= largest / 14 * (1 + 1e-5) + 7 * np.finfo(np.float32).tiny


def test_int4_by_hand() -> None:
    # absmax 7 -> scale 1 -> levels 7 -7 0 3 (3.4 rounds down), stored + 8: 15, 1, 8, 11; two to a byte, the first in the low half.
    x = np.array([7, -7, 0, 3.4], np.float32)
    assert bytes(encode(Coding.INT4_DELTA, x)) == np.float32(1).tobytes() + bytes([15 | 1 << 4, 8 | 11 << 4])
    assert decode(Coding.INT4_DELTA, encode(Coding.INT4_DELTA, x), 4).tolist() == [7, -7, 0, 3]


def int4_in_numpy(x: NDArray[np.float32]) -> bytes:
    """The format as its description reads, element by element: the reference for the compiled loops."""
    blocks = -(-x.size // 256)
    padded = np.zeros(256 * blocks, np.float32)
    padded[: x.size] = x
    scale = (np.abs(padded.reshape(blocks, 256)).max(axis=1, initial=0) / np.float32(7)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 0
    divisor = np.where(scale > 0, scale, np.float32(np.inf))
    levels = (np.rint(padded.reshape(blocks, 256) / divisor[:, None]) + 8).astype(np.uint8).reshape(-1, 2)
    return scale.astype("<f4").tobytes() + (levels[:, 0] | levels[:, 1] << 4).tobytes()[: (x.size + 1) // 2]


def int4_back_in_numpy(payload: bytes, n: int) -> NDArray[np.float32]:
    """The reference of decoding."""
    blocks = -(-n // 256)
    scale, pairs = np.frombuffer(payload, "<f4", blocks), np.frombuffer(payload, np.uint8, offset=4 * blocks)
    levels = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)[:n].astype(np.float32) - 8
    decoded: NDArray[np.float32] = levels * np.repeat(scale, 256)[:n]
    return decoded


any_finite = nps.arrays(np.float32, st.integers(0, 1500), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@pytest.mark.usefixtures("level")
@given(any_finite)
def test_int4_is_bit_for_bit_the_reference(x: NDArray[np.float32]) -> None:
    payload = bytes(encode(Coding.INT4_DELTA, x))
    assert payload == int4_in_numpy(x)
    assert decode(Coding.INT4_DELTA, payload, x.size).tobytes() == int4_back_in_numpy(payload, x.size).tobytes()


@pytest.mark.usefixtures("level")
def test_int4_rounds_ties_as_the_reference_at_every_place_of_a_block() -> None:
    # scale 1: halves lie between two levels, and the even one is taken
    x = np.tile(np.array([7, 0.5, 1.5, -0.5, -1.5, 2.5, -6.5, 6.5, -7, -0.0], np.float32), 77)
    assert bytes(encode(Coding.INT4_DELTA, x)) == int4_in_numpy(x)
    assert decode(Coding.INT4_DELTA, int4_in_numpy(x), x.size)[:10].tolist() == [7, 0, 2, 0, -2, 2, -6, 6, -7, 0]


@pytest.mark.usefixtures("level")
@given(st.binary(min_size=4 + 32, max_size=4 + 32), st.integers(63, 64))
def test_any_int4_payload_is_decoded_as_by_the_reference_or_refused(payload: bytes, n: int) -> None:
    with np.errstate(all="ignore"):
        expected = int4_back_in_numpy(payload, n)
    if np.isfinite(np.frombuffer(payload, "<f4", 1)).all() and np.isfinite(expected).all():
        assert decode(Coding.INT4_DELTA, payload, n).tobytes() == expected.tobytes()
    else:
        with pytest.raises(NonFiniteError):
            decode(Coding.INT4_DELTA, payload, n)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", [Coding.BFLOAT16_DELTA, Coding.INT4_DELTA])
@pytest.mark.parametrize("n", [0, 1, 255, 256, 1025])
def test_what_is_done_in_one_pass_equals_its_steps(coding: Coding, n: int) -> None:
    x, base = normal(n), normal(n, 1)
    payload = encode(coding, x, base)
    assert bytes(payload) == bytes(encode(coding, x - base))
    decoded = decode(coding, payload, n)
    assert value_of(coding, payload, base).tobytes() == (base + decoded).tobytes()
    assert outer_gradient(coding, payload, base).tobytes() == (-decoded).tobytes()
    room = np.empty(n, np.float32)
    assert outer_gradient(coding, payload, base, room) is room
    assert room.tobytes() == (-decoded).tobytes()
    rest = x - base
    leave_rounding_error(coding, payload, rest)
    assert rest.tobytes() == ((x - base) - decoded).tobytes()
    assert outer_gradient(Coding.FLOAT32, encode(Coding.FLOAT32, x), base).tobytes() == (base - x).tobytes()


def test_an_outer_gradient_beyond_float32_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="what they give is not"):
        outer_gradient(Coding.FLOAT32, encode(Coding.FLOAT32, np.full(2, -3e38, np.float32)), np.full(2, 3e38, np.float32))


def test_a_payload_may_lie_at_any_address() -> None:
    x = normal(300)
    for coding in Coding:
        payload = b"?" + bytes(encode(coding, x))
        assert np.array_equal(decode(coding, memoryview(payload)[1:], 300), decode(coding, payload[1:], 300))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 511, 513, 2047, 2049, 16641])
def test_sizes_around_blocks_and_chunks(coding: Coding, n: int) -> None:
    x = normal(n)
    payload = encode(coding, x)
    assert payload.nbytes == payload_bytes(coding, n)
    decoded = decode(coding, bytes(payload), n)
    assert decoded.shape == (n,)
    assert decoded.dtype == np.float32
    # every element is where it was: a coarse coding keeps the correlation
    if n > 200:
        assert np.corrcoef(x, decoded)[0, 1] > 0.98


@pytest.mark.parametrize("coding", Coding)
def test_coding_twice_changes_nothing(coding: Coding) -> None:
    once = decode(coding, encode(coding, normal(1000)), 1000)
    twice = decode(coding, encode(coding, once), 1000)
    assert np.allclose(twice, once, rtol=1e-6, atol=0)


def test_payload_sizes_of_the_codings() -> None:
    # 1000 values: 4 and 2 bytes each; int4: 4 scales of 4 bytes and 500 bytes of pairs
    assert [payload_bytes(c, 1000) for c in Coding] == [4000, 2000, 516]


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("change", [-1, 1])
def test_payload_of_another_size_is_refused(coding: Coding, change: int) -> None:
    data = bytes(payload_bytes(coding, 300) + change)
    with pytest.raises(CodecError, match=f"payload has {len(data)} bytes, 300 values in {coding.name}"):
        decode(coding, data, 300)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_neither_coded_nor_decoded(coding: Coding, bad: float) -> None:
    x = normal(300)
    x[299] = bad
    with pytest.raises(NonFiniteError):
        encode(coding, x)
    payloads = {
        Coding.FLOAT32: x.tobytes(),
        Coding.BFLOAT16_DELTA: x.astype(ml_dtypes.bfloat16).tobytes(),
        Coding.INT4_DELTA: np.array([1, bad], np.float32).tobytes() + bytes(150),
    }
    with pytest.raises(NonFiniteError):
        decode(coding, payloads[coding], 300)


def test_delta_too_large_for_bfloat16_is_refused_instead_of_becoming_infinite() -> None:
    with pytest.raises(NonFiniteError, match="too large"):
        encode(Coding.BFLOAT16_DELTA, np.array([np.finfo(np.float32).max], np.float32))


def test_value_of_adds_deltas_to_the_base_and_leaves_the_base_alone() -> None:
    base = np.array([1, 2], np.float32)
    delta = encode(Coding.BFLOAT16_DELTA, np.array([0.5, -0.5], np.float32))
    assert value_of(Coding.BFLOAT16_DELTA, delta, base).tolist() == [1.5, 1.5]
    assert value_of(Coding.FLOAT32, encode(Coding.FLOAT32, np.array([7, 8], np.float32)), base).tolist() == [7, 8]
    assert base.tolist() == [1, 2]
    with pytest.raises(NonFiniteError):
        value_of(Coding.BFLOAT16_DELTA, encode(Coding.BFLOAT16_DELTA, np.full(2, 3e38, np.float32)), np.full(2, 3e38, np.float32))


def test_only_float32_vectors_are_coded() -> None:
    with pytest.raises(CodecError, match="float64"):
        encode(Coding.FLOAT32, np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="no base"):
        encode(Coding.FLOAT32, normal(3), normal(3))
    with pytest.raises(CodecError, match="shape"):
        encode(Coding.FLOAT32, np.zeros((3, 1), np.float32))


def test_each_compression_has_its_coding() -> None:
    assert [coding_for(c) for c in ("None", "BFloat16", "Int4")] == [Coding.FLOAT32, Coding.BFLOAT16_DELTA, Coding.INT4_DELTA]
    assert [c.delta for c in Coding] == [False, True, True]
