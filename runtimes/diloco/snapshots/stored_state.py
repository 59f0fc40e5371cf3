"""The inner state of a unit at `checkpoint.uri`, as its own processes write it: blocks of bounded size, and a manifest that comes last.

    <uri>/<job>/learners/v5p-0/000002-0000000240/00000-000003.bin    block 3 of rank 0: arrays one after the other, float32
    <uri>/<job>/learners/v5p-0/000002-0000000240/rest.bin            step counts, rates, what the program hands over (state_values)
    <uri>/<job>/learners/v5p-0/000002-0000000240/manifest.json       whose it is and of when; sizes and checksums; what is in which block

The folder is named by the attempt and the local step at which the unit began to store. Without a manifest it is nothing yet, or any more.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.contract import JobFile, remote_snapshots
from diloco.object_stores import words
from diloco.protocol.state_parts import MOST_ARRAYS, PART_ELEMENTS, PieceArray, StateError, elements
from diloco.protocol.state_values import MOST_BYTES as MOST_REST_BYTES
from diloco.snapshots.remote_folders import FIELD, RemoteFolders
from diloco.snapshots.store import MANIFEST_FILE, MOST_MANIFEST, SnapshotError, Unusable, compare_checksum, manifest_bytes, parse_manifest
from diloco.snapshots.tensor_file import Written

FOLDER = "learners"
"""Where the states are, beside the copies of the job's snapshots."""
REST_FILE = "rest.bin"
BLOCK_BYTES = 16 << 20
"""A block is written once it has so many bytes: what a process holds of a state that it stores."""
LINK_SHARE = 0.25
"""Share of its time in which a process writes, so that pushes and broadcasts keep the link. Ranks of one host do not know of each other."""
_ITEM = 4
_MOST_BLOCK = BLOCK_BYTES + MOST_ARRAYS * _ITEM * PART_ELEMENTS
"""Bytes of a block at most: one is written when a part has filled it, so it is larger by less than that part."""
_NAME = re.compile(r"\d{6,}-\d{10,}")
_log = logging.getLogger(__name__)


def name_of(attempt: int, local_step: int) -> str:
    """Name the folder of a state. Names are ordered as their states are, within one job."""
    return f"{attempt:06d}-{local_step:010d}"


def folder_of(job: JobFile, unit: str, former: str = "") -> UnitFolder:
    """Return the folder with what a unit of this job stores. `former`: the folder of another job in the place of this one's. Raises
    SnapshotError if there is no URI, or no driver for it."""
    uri = job.training.checkpoint.uri
    if not uri:
        raise SnapshotError(f"{FIELD} is empty: learners store their states below it")
    of_job = f"{uri.rstrip('/')}/{former}" if former else remote_snapshots(uri, job.namespace, job.name, job.uid)
    return UnitFolder(f"{of_job}/{FOLDER}/{unit}")


def writer_of(job: JobFile, unit: str, name: str, rank: int) -> BlockWriter:
    """Return what writes a rank's part of the state `name`. Raises as `folder_of` and drivers do."""
    folder = folder_of(job, unit)
    if rank == 0:
        folder.begin(name)
    return BlockWriter(folder, name, rank)


@dataclass(frozen=True, slots=True)
class Block:
    """One file: arrays of a state, one after the other, float32 in canonical order."""

    file: str
    bytes: int
    sha256: str
    arrays: Sequence[PieceArray]

    def to_json(self) -> list[Any]:
        """Return it for a manifest."""
        arrays = [[one.piece.tensor, one.name, one.dtype, one.piece.start, one.piece.size] for one in self.arrays]
        return [self.file, self.bytes, self.sha256, arrays]

    @classmethod
    def from_json(cls, block: Sequence[Any]) -> Self:
        """Return what `to_json` gave. Raises KeyError, TypeError or ValueError for what is none."""
        file, size, sha256, arrays = block
        found = [
            PieceArray(Piece(str(tensor), _whole_numbers(start), _whole_numbers(length)), str(name), str(dtype))
            for tensor, name, dtype, start, length in arrays
        ]
        return cls(_file_name(file), int(size), str(sha256), found)


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a manifest says: which unit the state is of, and of when."""

    unit: str
    attempt: int
    t: int
    """Outer step of the marker."""
    local_step: int
    """The local step of the unit's process when it began to read its state."""
    steps: int
    """Local steps behind it, see `steps_behind`."""
    kind: str
    """As in `Hello.inner_state`."""
    fingerprint: str
    """The fingerprint of the model's layout."""
    rest: tuple[int, str]
    """Bytes and SHA-256 of the small rest."""
    blocks: Sequence[Block]

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return name_of(self.attempt, self.local_step)

    def to_manifest(self) -> bytes:
        """Return the content of the manifest."""
        meta: dict[str, Any] = {
            "unit": self.unit,
            "attempt": self.attempt,
            "localStep": self.local_step,
            "steps": self.steps,
            "innerState": self.kind,
            "fingerprint": self.fingerprint,
            "rest": list(self.rest),
            "blocks": [block.to_json() for block in self.blocks],
        }
        return manifest_bytes({"t": self.t, "bytes": sum(block.bytes for block in self.blocks), "meta": meta})

    @classmethod
    def from_manifest(cls, name: str, manifest: Mapping[str, Any]) -> Self:
        """Return the state in the folder `name`. `manifest`: the result of `parse_manifest`. Raises Unusable, also for that of another
        folder."""
        try:
            meta = manifest["meta"]
            size, sha256 = meta["rest"]
            found = cls(
                str(meta["unit"]),
                int(meta["attempt"]),
                int(manifest["t"]),
                int(meta["localStep"]),
                int(meta.get("steps", 0)),  # a version that did not say it may have stored it
                str(meta["innerState"]),
                str(meta["fingerprint"]),
                (int(size), str(sha256)),
                [Block.from_json(block) for block in meta["blocks"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unusable(f"{MANIFEST_FILE} is no manifest of a unit's state: {type(error).__name__}: {error}") from error
        if found.name != name:
            raise Unusable(f"{MANIFEST_FILE} is that of {found.name}")
        return found


def check_fits(state: StoredState, unit: str, kind: str, layout: Layout) -> None:
    """Raise StateError unless this is the whole state of this unit, kind and model: each array has as many elements as its tensor."""
    shapes = {spec.name: spec.shape for spec in layout.tensors}
    when = f"what the unit has stored at outer step {state.t}"
    if state.unit != unit:
        raise StateError(f"{when} is of unit {state.unit}")
    if state.kind != kind:
        raise StateError(f"{when} is the state of {state.kind}")
    if state.fingerprint != layout.fingerprint:
        raise StateError(f"{when} is of another model")
    come: Counter[tuple[str, str]] = Counter()
    for block in state.blocks:
        if not all(one.name and _is_inside(one.piece, shapes.get(one.piece.tensor)) for one in block.arrays):
            raise StateError(f"{when} holds something else than what the optimizer keeps: {block.file}")
        if block.bytes != _ITEM * elements(block.arrays) or block.bytes > _MOST_BLOCK:
            raise StateError(f"{when} says that {block.file} has {block.bytes} bytes, which its arrays do not have")
        for one in block.arrays:
            come[one.piece.tensor, one.name] += one.piece.elements
    for (tensor, name), count in come.items():
        if count != math.prod(shapes[tensor]):
            raise StateError(f"{when} has {count} elements of {name} of {tensor}, whose shape is {list(shapes[tensor])}")


class UnitFolder:
    """What one unit stores. Blocking; what a driver raises has a class of its own, see `RemoteFolders`."""

    def __init__(self, uri: str) -> None:
        """Open the folder of the unit. Raises SnapshotError if there is no driver for it."""
        self.uri = uri
        self._folders = RemoteFolders(uri)

    def newest(self) -> StoredState | None:
        """Return the newest state whose manifest can be read; None: nothing is stored. Raises Unusable if none of what is there can be."""
        why: Unusable | None = None
        for name in self._names(reverse=True):
            if self._folders.holds(name):
                try:
                    return self.state(name)
                except Unusable as reason:
                    _log.warning("the stored state %s/%s cannot be used: %s", self.uri, name, reason)
                    why = why or reason
        if why is not None:
            raise why
        return None

    def state(self, name: str) -> StoredState:
        """Return the state with this name. Raises Unusable."""
        return StoredState.from_manifest(name, parse_manifest(self._folders.read(name, MANIFEST_FILE, MOST_MANIFEST)))

    def read(self, state: StoredState, file: str, size: int, sha256: str) -> bytes:
        """Return a file of a state, whose size and checksum are those of the manifest. Raises Unusable."""
        data = self._folders.read(state.name, file, size)
        compare_checksum(file, Written(len(data), hashlib.sha256(data).hexdigest()), Written(size, sha256))
        return data

    def read_rest(self, state: StoredState) -> bytes:
        """Return the small rest. Raises Unusable."""
        size, sha256 = state.rest
        if size > MOST_REST_BYTES:
            raise Unusable(f"{REST_FILE} has {size} bytes, and {MOST_REST_BYTES} at most are read")
        return self.read(state, REST_FILE, size, sha256)

    def write(self, name: str, file: str, data: bytes | bytearray) -> None:
        """Write one file of a state that is stored."""
        self._folders.write(name, file, data)

    def finish(self, state: StoredState, rest: bytes) -> None:
        """Make a state visible, whose blocks are written, and remove those before it. A later attempt of the unit keeps its own."""
        manifest = state.to_manifest()
        if len(manifest) > MOST_MANIFEST:
            raise SnapshotError(f"the manifest of the state would have {len(manifest)} bytes, and {MOST_MANIFEST} at most are read")
        self._folders.write(state.name, REST_FILE, rest)
        self._folders.write(state.name, MANIFEST_FILE, manifest)
        self._remove(self._names_before(state.name))

    def begin(self, name: str) -> None:
        """Remove what was begun before this state and has no manifest: a try that failed, whose blocks take the room of this one."""
        self._remove(each for each in self._names_before(name) if not self._folders.holds(each))

    def _names_before(self, name: str) -> list[str]:
        return [each for each in self._names() if each < name]

    def _remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self._folders.remove(name)
        except Exception as error:  # noqa: BLE001 - drivers raise classes of their own: the newest state is what counts
            _log.warning("older states in %s could not be removed, the next one tries again: %s", self.uri, words(error))

    def _names(self, *, reverse: bool = False) -> list[str]:
        return sorted((name for name in self._folders.names() if _NAME.fullmatch(name)), reverse=reverse)


class BlockWriter:
    """Writes what one process has of a state, in blocks, at most for LINK_SHARE of the time. Belongs to one background thread."""

    def __init__(
        self,
        folder: UnitFolder,
        name: str,
        rank: int,
        pause: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Write to the state `name`. `pause` waits for so many seconds; `now`: seconds."""
        self._folder = folder
        self._name = name
        self._rank = rank
        self._pause = pause
        self._now = now
        self._blocks: list[Block] = []
        self._arrays: list[PieceArray] = []
        self._data = bytearray()

    def add(self, arrays: Sequence[PieceArray], values: NDArray[np.float32]) -> None:
        """Add arrays: `values`, float32, are those of one after the other. Raises StateError for what is not finite, and as drivers do."""
        if not np.isfinite(values).all():
            raise StateError("the optimizer's state is not finite")
        self._data += memoryview(np.ascontiguousarray(values, "<f4")).cast("B")
        self._arrays.extend(arrays)
        if len(self._data) >= BLOCK_BYTES:
            self._write()

    def finish(self) -> list[Block]:
        """Write the last block, and return all of them. Raises as drivers do."""
        if self._data:
            self._write()
        return self._blocks

    def _write(self) -> None:
        # Handed over, not copied: a copy of 16 MiB would hold up the steps that other threads take.
        data, arrays = self._data, self._arrays
        self._data, self._arrays = bytearray(), []
        file = f"{self._rank:05d}-{len(self._blocks):06d}.bin"
        begun = self._now()
        self._folder.write(self._name, file, data)
        self._blocks.append(Block(file, len(data), hashlib.sha256(data).hexdigest(), arrays))
        self._pause((self._now() - begun) * (1 / LINK_SHARE - 1))


def blocks_to_bytes(blocks: Sequence[Block]) -> bytes:
    """Return blocks as a rank tells its leader of them."""
    return json.dumps([block.to_json() for block in blocks], separators=(",", ":")).encode()


def blocks_from_bytes(data: bytes | bytearray) -> list[Block]:
    """Return what `blocks_to_bytes` was given."""
    return [Block.from_json(block) for block in json.loads(data)]


def _is_inside(piece: Piece, shape: tuple[int, ...] | None) -> bool:
    return (
        shape is not None
        and len(piece.start) == len(piece.size) == len(shape)
        and all(
            first >= 0 and count > 0 and first + count <= length
            for first, count, length in zip(piece.start, piece.size, shape, strict=True)
        )
    )


def _whole_numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _file_name(text: Any) -> str:
    if not re.fullmatch(r"\d+-\d+\.bin", str(text)):
        raise ValueError(f"{text!r} names no block")
    return str(text)
