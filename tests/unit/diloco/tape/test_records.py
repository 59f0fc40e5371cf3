"""The file format of a tape: what is whole is read, what is torn never counted, what is damaged is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diloco.tape.records import RecordFile, TapeError, TapeGone, checksum, write_record

GRADIENT = np.arange(5, dtype=np.float32)


def three_records(path: Path) -> list[int]:
    """A light one, one with values, a light one. Where each begins, and the end."""
    sizes = [0]
    with path.open("wb") as file:
        for head, values in (({"n": 1}, None), ({"n": 2, "type": "merge"}, memoryview(GRADIENT)), ({"n": 3}, None)):
            sizes.append(sizes[-1] + write_record(file, head, values))
    return sizes


def numbers(path: Path, *, values: bool = True) -> list[int]:
    return [record.head["n"] for record in RecordFile(path, values=values)]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    sizes = three_records(path)
    records = list(RecordFile(path, values=True))
    assert [(record.head["n"], record.offset, record.size) for record in records] == [
        (n, start, end - start) for n, start, end in zip((1, 2, 3), sizes, sizes[1:], strict=False)
    ]
    assert [record.values is None for record in records] == [True, False, True]
    assert records[1].values is not None
    assert records[1].values.view("<f4").tolist() == GRADIENT.tolist()
    assert numbers(path, values=False) == [1, 2, 3]


def test_a_file_that_ends_anywhere_within_a_record_ends_before_it(tmp_path: Path) -> None:
    path, cut = tmp_path / "x", tmp_path / "cut"
    sizes = three_records(path)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        cut.write_bytes(content[:length])
        whole = sum(end <= length for end in sizes[1:])
        for values in (True, False):
            reader = RecordFile(cut, values=values)
            assert [record.head["n"] for record in reader] == [1, 2, 3][:whole]
            assert reader.torn == (None if length in sizes else sizes[whole])


def test_the_last_record_with_other_bytes_is_torn(tmp_path: Path) -> None:
    """A machine that lost power may have written its end and not its middle."""
    path = tmp_path / "x"
    sizes = three_records(path)
    content = bytearray(path.read_bytes())
    content[sizes[2] + 25] ^= 1
    path.write_bytes(content)
    reader = RecordFile(path, values=True)
    assert [record.head["n"] for record in reader] == [1, 2]
    assert reader.torn == sizes[2]


def test_room_without_bytes_at_the_end_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "x"
    sizes = three_records(path)
    path.write_bytes(path.read_bytes() + bytes(100))
    reader = RecordFile(path, values=True)
    assert len(list(reader)) == 3
    assert reader.torn == sizes[3]


@pytest.mark.parametrize(("at", "what"), [(0, "no record begins there"), (8, "no record begins there"), (40, "its bytes have changed")])
def test_damage_before_the_end_names_file_and_offset(tmp_path: Path, at: int, what: str) -> None:
    path = tmp_path / "x"
    sizes = three_records(path)
    content = bytearray(path.read_bytes())
    content[sizes[1] + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(TapeError, match=rf"x is damaged at offset {sizes[1]}: {what}.*truncate -s {sizes[1]}"):
        numbers(path)


def test_values_that_nobody_wants_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    sizes = three_records(path)
    content = bytearray(path.read_bytes())
    content[sizes[2] - 6] ^= 1
    path.write_bytes(content)
    assert numbers(path, values=False) == [1, 2, 3]


def test_a_file_that_is_gone_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TapeGone):
        numbers(tmp_path / "x")
    with pytest.raises(TapeError, match="cannot be read: it is no regular file"):
        numbers(tmp_path)


def test_the_checksum_is_that_of_zlib() -> None:
    # CRC-32 of b"123456789" is the check value of every description of CRC-32.
    assert checksum(np.frombuffer(b"123456789", np.uint8)) == 0xCBF43926


def test_numbers_that_json_has_not_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file, pytest.raises(ValueError, match="not JSON compliant"):
        write_record(file, {"loss": float("nan")})
    assert not (tmp_path / "x").read_bytes()
