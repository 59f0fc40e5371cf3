"""The inner state of one unit as files: safetensors of what the optimizer keeps in the shape of parameters, the small rest, and a manifest.

    <folder>/tensors.safetensors     exp_avg/layers.0.weight and so on, whole tensors, float32 in canonical form
    <folder>/rest.bin                step counts, rates, what the program hands over (diloco.protocol.state_values)
    <folder>/manifest.json           sizes, checksums, whose state it is and of when

It comes in pieces of any order, and is read in parts as a peer sends them. See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.protocol.diloco_pb2 import StateBegin
from diloco.protocol.state_parts import PieceArray, StateError, cut, from_message
from diloco.safetensors_header import header_bytes
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, Unusable, check_snapshot, parse_manifest, write_manifest
from diloco.snapshots.tensor_file import checksum
from diloco.wording import plural

REST_FILE = "rest.bin"
MOST_OF_TENSOR = 8
"""Arrays that an optimizer keeps of one parameter, at most: AdamW keeps two. With it the model bounds what a unit can store."""
_ITEM = 4
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state in one folder: which unit it is of, and of when."""

    folder: Path
    unit: str
    attempt: int
    t: int
    """Outer step of the marker."""
    local_step: int
    """The local step of the unit's process when it began to read its state."""
    kind: str
    """As in `Hello.inner_state`."""
    fingerprint: str
    """The fingerprint of the model's layout."""
    arrays: Sequence[tuple[str, str, str]]
    """(Tensor, name, type in which the unit keeps it) of each array, in the order of the file."""


class StateWriter:
    """Writes one folder, which exists and is empty. Raises OSError as the operating system does, and StateError for what cannot be.

    Threads may use it one after the other. `close` may come at any time: a write that is under way ends before."""

    def __init__(self, folder: Path, begin: StateBegin, layout: Layout) -> None:
        self.folder = folder
        self._begin = begin
        arrays = from_message(layout, begin.arrays)
        shapes = {spec.name: spec.shape for spec in layout.tensors}
        if any(not one.name or one.piece.size != shapes[one.piece.tensor] for one in arrays):
            raise StateError("a state that is stored holds what the optimizer keeps, of whole tensors, and no parameters")
        self._arrays = [(one.piece.tensor, one.name, one.dtype) for one in arrays]
        if bad := next((text for _, *texts in self._arrays for text in texts if not _NAME.fullmatch(text)), None):
            raise StateError(f"{bad[:64]!r} names no array, and no type of one")
        self._places, header = _lay_out(shapes, self._arrays)
        if len(self._places) != len(self._arrays):
            raise StateError("a state that is stored holds each array once")
        if self._arrays and (most := max(Counter(tensor for tensor, *_ in self._arrays).values())) > MOST_OF_TENSOR:
            raise StateError(f"the optimizer keeps {most} arrays of one parameter; {MOST_OF_TENSOR} can be stored")
        self.left = sum(math.prod(shape) for _, shape in self._places.values())
        """Elements that have not come."""
        self.bytes = _ITEM * self.left
        """Bytes of the tensors, once all have come."""
        self._rest = ""
        """Checksum of the small rest; "": it has not come."""
        self._using = threading.Lock()
        self._file = os.open(folder / TENSORS_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write(self._file, header, 0)
        except OSError:
            self.close()
            raise

    def put(self, arrays: Sequence[PieceArray], values: NDArray[np.float32]) -> None:
        """Write pieces: `values`, float32, are those of one after the other."""
        data = memoryview(np.ascontiguousarray(values)).cast("B")
        self.left -= sum(one.piece.elements for one in arrays)
        if self.left < 0:
            raise StateError("more of the state comes than was announced when it began")
        with self._open() as file:
            for one in arrays:
                if (one.piece.tensor, one.name) not in self._places:
                    raise StateError(f"{one.name or 'a parameter'} of {one.piece.tensor} was not announced when the state began")
                for offset, size in _runs(self._places[one.piece.tensor, one.name], one.piece):
                    _write(file, data[:size], offset)
                    data = data[size:]

    def rest(self, data: memoryview) -> None:
        """Write the small rest."""
        with self._open(), (self.folder / REST_FILE).open("xb") as rest:
            rest.write(data)
            rest.flush()
            os.fsync(rest.fileno())
        self._rest = hashlib.sha256(data).hexdigest()

    def finish(self, job_uid: str) -> StoredState:
        """Make the folder durable. Raises StateError if something is missing."""
        if self.left or not self._rest:
            raise StateError(f"{plural(self.left, 'element')} of the state did not come")
        begin = self._begin
        meta: dict[str, Any] = {
            "job": job_uid,
            "unit": begin.unit,
            "attempt": begin.attempt,
            "localStep": begin.local_step,
            "innerState": begin.inner_state,
            "fingerprint": begin.fingerprint,
            "arrays": self._arrays,
            "rest": self._rest,
        }
        with self._open() as file:
            os.fsync(file)
            with (self.folder / TENSORS_FILE).open("rb") as written:
                write_manifest(self.folder, begin.t, checksum(written), meta)
        return read_state(self.folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """Yield the file, which stays open meanwhile."""
        with self._using:
            if self._file < 0:
                raise StateError("the state is not wanted any more")
            yield self._file

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._using:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def read_state(folder: Path) -> StoredState:
    """Read what the manifest of a folder says. Raises Unusable."""
    try:
        return _state_of(folder, parse_manifest((folder / MANIFEST_FILE).read_bytes()))
    except OSError as error:
        raise Unusable(f"{MANIFEST_FILE} cannot be read: {error.strerror or error}") from error


def check_state(state: StoredState) -> None:
    """Read all of a state. Raises Unusable unless it is what was stored."""
    manifest = check_snapshot(state.folder)
    if hashlib.sha256(read_rest(state)).hexdigest() != manifest["meta"]["rest"]:
        raise Unusable(f"{REST_FILE} does not have the checksum of its manifest: its bytes have changed")


def read_parts(state: StoredState, layout: Layout) -> Iterator[tuple[list[PieceArray], bytearray]]:
    """Yield the parts that a peer would send: the arrays, and their values one after the other, float32. Raises Unusable."""
    shapes = {spec.name: spec.shape for spec in layout.tensors}
    places, _ = _lay_out(shapes, state.arrays)
    of: dict[str, list[tuple[str, str]]] = {}
    for tensor, name, dtype in state.arrays:
        of.setdefault(tensor, []).append((name, dtype))
    try:
        with (state.folder / TENSORS_FILE).open("rb") as file:
            for pieces in cut(layout.tensors):
                arrays = [PieceArray(piece, name, dtype) for piece in pieces for name, dtype in of.get(piece.tensor, ())]
                if arrays:
                    payload = bytearray()
                    for one in arrays:
                        for offset, size in _runs(places[one.piece.tensor, one.name], one.piece):
                            payload += os.pread(file.fileno(), size, offset)
                    yield arrays, payload
    except OSError as error:
        raise Unusable(f"{TENSORS_FILE} cannot be read: {error.strerror or error}") from error


def read_rest(state: StoredState) -> bytes:
    """Return the small rest. Raises Unusable."""
    try:
        return (state.folder / REST_FILE).read_bytes()
    except OSError as error:
        raise Unusable(f"{REST_FILE} cannot be read: {error.strerror or error}") from error


def _state_of(folder: Path, manifest: Mapping[str, Any]) -> StoredState:
    try:
        meta = manifest["meta"]
        arrays = [(str(tensor), str(name), str(dtype)) for tensor, name, dtype in meta["arrays"]]
        return StoredState(
            folder,
            str(meta["unit"]),
            int(meta["attempt"]),
            int(manifest["t"]),
            int(meta["localStep"]),
            str(meta["innerState"]),
            str(meta["fingerprint"]),
            arrays,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unusable(f"{MANIFEST_FILE} is no manifest of a unit's state: {type(error).__name__}: {error}") from error


type _Place = tuple[int, tuple[int, ...]]
"""Where an array begins in the file, in bytes, and its shape."""


def _lay_out(shapes: Mapping[str, tuple[int, ...]], arrays: Sequence[tuple[str, str, str]]) -> tuple[dict[tuple[str, str], _Place], bytes]:
    header = header_bytes({f"{name}/{tensor}": shapes[tensor] for tensor, name, _ in arrays}, "F32", _ITEM)
    places: dict[tuple[str, str], _Place] = {}
    at = len(header)
    for tensor, name, _ in arrays:
        places[tensor, name] = at, shapes[tensor]
        at += _ITEM * math.prod(shapes[tensor])
    return places, header


def _runs(place: _Place, piece: Piece) -> Iterator[tuple[int, int]]:
    """Yield where the bytes of a piece lie: (offset, size) of one run after the other, in the order of its elements."""
    begin, shape = place
    whole = len(shape)
    while whole and piece.size[whole - 1] == shape[whole - 1]:
        whole -= 1
    inner = _ITEM * math.prod(shape[whole:])
    if not whole:
        yield begin, inner
        return
    rows = shape[: whole - 1]
    for row in np.ndindex(*piece.size[: whole - 1]):
        at = 0
        for index, start, length in zip(row, piece.start, rows, strict=False):
            at = at * length + start + index
        yield begin + (at * shape[whole - 1] + piece.start[whole - 1]) * inner, piece.size[whole - 1] * inner


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count
