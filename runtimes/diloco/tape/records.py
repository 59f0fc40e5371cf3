"""The file format of a tape: records one after the other. Each has a head for people; a merge's record also has values.

    4 bytes   b"DLT1"
    u32       bytes of the head
    u64       bytes of the values; 0 if there are none
    u32       CRC-32 of these 16 bytes
    head      a JSON object in UTF-8
    values    float32
    u32       CRC-32 of head and values

Numbers are little-endian. A file is only appended to, so a process or machine that dies can harm only its end. A last record that is not
complete is *torn*: it never counted. Any other record that cannot be read is damage, and raises an error that names file and offset.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import json
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
type Head = Mapping[str, Any]
"""The content of a record without its values: JSON without NaN and infinities."""

_MAGIC: Final = b"DLT1"
_SIZES: Final = struct.Struct("<4sIQ")
_CHECK: Final = struct.Struct("<I")
_PREFIX: Final = _SIZES.size + _CHECK.size
_MOST_HEAD: Final = 1 << 28
"""The most bytes of a head. A merge of a thousand units has some hundred thousand."""
_PART: Final = 1 << 24
"""Bytes that are checked at a time."""


class TapeError(Exception):
    """A tape cannot be read. The message names file and offset, and says what to do."""


class TapeGone(TapeError):
    """The file no longer exists."""


@dataclass(frozen=True, slots=True)
class Record:
    head: dict[str, Any]
    offset: int
    """Where the record begins in the file, in bytes."""
    size: int
    """Bytes of the record in the file."""
    values: Bytes | None = field(default=None, repr=False)
    """None if the record has no values, or they were not asked for."""


def encode_head(head: Head) -> bytes:
    """The head's bytes in the file. Raises ValueError for NaN and infinities."""
    return json.dumps(head, separators=(",", ":"), allow_nan=False).encode()


def write_record(file: BinaryIO, head: Head, values: memoryview | None = None) -> int:
    """Append a record, and return its size in bytes. The caller flushes or syncs the file. Raises OSError."""
    text = encode_head(head)
    bulk = memoryview(b"") if values is None else values.cast("B")
    sizes = _SIZES.pack(_MAGIC, len(text), bulk.nbytes)
    file.write(sizes + _CHECK.pack(zlib.crc32(sizes)) + text)
    file.write(bulk)
    file.write(_CHECK.pack(_checksum(text, bulk)))
    return _PREFIX + len(text) + bulk.nbytes + _CHECK.size


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises TapeError for a pipe or a device, which may never end, and OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TapeError(f"{path} cannot be read: it is no regular file")
    return path.open("rb")


def begins_as_tape(path: Path) -> bool:
    """Whether the file may belong to a tape: it begins with a record, a part of one, or the zeros of one that was never written. Raises
    TapeError."""
    try:
        with open_regular(path) as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise TapeError(f"{path} cannot be read: {error.strerror or error}") from error
    return _MAGIC.startswith(beginning) or not any(beginning)


class RecordFile:
    """Reads one file from its beginning. After that, `torn` is the offset of the torn record, or None if there is none."""

    def __init__(self, path: Path, *, values: bool) -> None:
        """`values`: read values too. Otherwise only heads are read, and of a record with values only the sizes are checked."""
        self._path = path
        self._values = values
        self.torn: int | None = None

    def __iter__(self) -> Iterator[Record]:
        """Yield the records up to the end, or to a torn one. Raises TapeError for damage, and if the file cannot be opened or read."""
        try:
            with open_regular(self._path) as file:
                yield from self._read(file)
        except FileNotFoundError as error:
            raise TapeGone(f"{self._path} is gone") from error
        except OSError as error:
            raise TapeError(f"{self._path} cannot be read: {error.strerror or error}") from error

    def at(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if it is torn. Raises TapeError."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(offset)
                return self._record(file, offset, end)
        except OSError as error:
            raise TapeError(f"{self._path} cannot be read: {error.strerror or error}") from error

    def _read(self, file: BinaryIO) -> Iterator[Record]:
        end = file.seek(0, 2)
        offset = file.seek(0)
        while offset < end:
            record = self._record(file, offset, end)
            if record is None:
                self.torn = offset
                return
            yield record
            offset += record.size
            file.seek(offset)

    def _record(self, file: BinaryIO, offset: int, end: int) -> Record | None:
        """Return the record at `offset`, where `file` is; None if it is torn. `end`: bytes of the file."""
        prefix = file.read(_PREFIX)
        if len(prefix) < _PREFIX:
            return None
        magic, head_bytes, value_bytes = _SIZES.unpack_from(prefix)
        if magic != _MAGIC or zlib.crc32(prefix[: _SIZES.size]) != _CHECK.unpack_from(prefix, _SIZES.size)[0] or head_bytes > _MOST_HEAD:
            if not any(prefix) and _zeros(file):  # the machine lost power when the file had its length and not yet its bytes
                return None
            raise self._damage(offset, "no record begins there")
        size = _PREFIX + head_bytes + value_bytes + _CHECK.size
        if offset + size > end:
            return None
        text = file.read(head_bytes)
        values = None
        if self._values or not value_bytes:
            values = np.empty(value_bytes, np.uint8)
            file.readinto(memoryview(values))  # type: ignore[attr-defined]  # every binary file that `open` gives has it
            if _checksum(text, memoryview(values)) != _CHECK.unpack(file.read(_CHECK.size))[0]:
                if offset + size == end:  # the last record: its bytes did not all reach the disk
                    return None
                raise self._damage(offset, "its bytes have changed")
        try:
            head = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damage(offset, f"its head is not JSON: {error}") from error
        if not isinstance(head, dict):
            raise self._damage(offset, "its head is not an object")
        return Record(head, offset, size, values if value_bytes else None)

    def _damage(self, offset: int, what: str) -> TapeError:
        return TapeError(
            f"{self._path} is damaged at offset {offset}: {what}. What follows it cannot be taken. Put a good copy back in its place; or "
            f"cut it there (truncate -s {offset}), and remove the later files beside it, to go on from the merge before it."
        )


def read_record(path: Path, offset: int) -> Record:
    """Return the record at `offset` of a file, with its values. Raises TapeError if it is torn or damaged."""
    reader = RecordFile(path, values=True)
    record = reader.at(offset)
    if record is None:
        raise TapeError(f"{path} ends within the record at offset {offset}")
    return record


def checksum(values: memoryview | Bytes) -> int:
    """CRC-32 of an array."""
    return _checksum(b"", memoryview(values).cast("B"))


def _checksum(text: bytes, values: memoryview) -> int:
    crc = zlib.crc32(text)
    for start in range(0, values.nbytes, _PART):
        crc = zlib.crc32(values[start : start + _PART], crc)
    return crc


def _zeros(file: BinaryIO) -> bool:
    while part := file.read(_PART):
        if part.count(0) != len(part):
            return False
    return True
