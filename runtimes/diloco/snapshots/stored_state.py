"""The inner state of a unit at `checkpoint.uri`. Its own processes write it, in blocks of bounded size; the manifest comes last.

    <uri>/<job>/learners/v5p-0/000002-0000000240-5d0e11fa/00000-000003.bin   block 3 of rank 0: arrays one after the other, float32
    <uri>/<job>/learners/v5p-0/000002-0000000240-5d0e11fa/rest.bin           step counts, rates, what the program hands over (state_values)
    <uri>/<job>/learners/v5p-0/000002-0000000240-5d0e11fa/manifest.json      unit and step; sizes and checksums; which block has which array

The folder is named by the attempt, the local step at which the unit began to store, and the process. A folder without manifest does not
count.

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
"""Folder of the states, beside the copies of the job's snapshots."""
REST_FILE = "rest.bin"
BLOCK_BYTES = 16 << 20
"""A block is written once it has this many bytes. A process that stores its state holds about this much of it."""
LINK_SHARE = 0.25
"""Share of its time in which a process writes, so that pushes and broadcasts keep the link. Ranks of one host do not know of each other."""
_ITEM = 4
_MOST_BLOCK = BLOCK_BYTES + MOST_ARRAYS * _ITEM * PART_ELEMENTS
"""The most bytes of a block. It is written when a part has filled it, so it exceeds BLOCK_BYTES by less than one part."""
_NAME = re.compile(r"\d{6,}-\d{10,}(-[0-9a-f]{8})?")
_log = logging.getLogger(__name__)


def name_of(attempt: int, local_step: int, process: str = "") -> str:
    """The name of a state's folder. Names sort by attempt; within one process of an attempt, in the order of the states. `process` is as in
    `StoredState`."""
    return f"{attempt:06d}-{local_step:010d}" + (f"-{process}" if process else "")


def folder_of(job: JobFile, unit: str, former: str = "") -> UnitFolder:
    """Return the folder where a unit of this job stores its states. `former`: the folder of another job, whose states to read instead.
    Raises SnapshotError if there is no URI, or no driver for it."""
    uri = job.training.checkpoint.uri
    if not uri:
        raise SnapshotError(f"{FIELD} is empty: learners store their states below it")
    of_job = f"{uri.rstrip('/')}/{former}" if former else remote_snapshots(uri, job.namespace, job.name, job.uid)
    return UnitFolder(f"{of_job}/{FOLDER}/{unit}")


def writer_of(job: JobFile, unit: str, name: str, rank: int) -> BlockWriter:
    """Return a writer for a rank's part of the state `name`. Raises as `folder_of` and drivers do."""
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
        arrays = [[x.piece.tensor, x.name, x.dtype, x.piece.start, x.piece.size] for x in self.arrays]
        return [self.file, self.bytes, self.sha256, arrays]

    @classmethod
    def from_json(cls, block: Sequence[Any]) -> Self:
        """Read a result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        file, size, sha256, arrays = block
        pieces = [
            PieceArray(Piece(str(tensor), _whole_numbers(start), _whole_numbers(length)), str(name), str(dtype))
            for tensor, name, dtype, start, length in arrays
        ]
        return cls(_file_name(file), int(size), str(sha256), pieces)


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a manifest says about a stored state."""

    unit: str
    attempt: int
    t: int
    """Outer step of the marker."""
    local_step: int
    """The local step of the unit's process when it began to read its state."""
    steps: int
    """Local steps that made the state, see `steps_behind`."""
    kind: str
    """The kind of state, as in `Hello.inner_state`."""
    fingerprint: str
    """The fingerprint of the model's layout."""
    rest: tuple[int, str]
    """Bytes and SHA-256 of the small rest."""
    blocks: Sequence[Block]
    process: str = ""
    """Eight random hexadecimal digits, which tell two processes of one attempt apart. Empty in a state that an older version has stored."""

    @property
    def name(self) -> str:
        return name_of(self.attempt, self.local_step, self.process)

    def to_manifest(self) -> bytes:
        meta: dict[str, Any] = {
            "unit": self.unit,
            "attempt": self.attempt,
            "localStep": self.local_step,
            "steps": self.steps,
            "innerState": self.kind,
            "fingerprint": self.fingerprint,
            "rest": list(self.rest),
            "blocks": [block.to_json() for block in self.blocks],
            "process": self.process,
        }
        return manifest_bytes({"t": self.t, "bytes": sum(block.bytes for block in self.blocks), "meta": meta})

    @classmethod
    def from_manifest(cls, name: str, manifest: Mapping[str, Any]) -> Self:
        """Return the state in the folder `name`. `manifest`: a result of `parse_manifest`. Raises Unusable, also if the manifest belongs to
        another folder."""
        try:
            meta = manifest["meta"]
            size, sha256 = meta["rest"]
            state = cls(
                str(meta["unit"]),
                int(meta["attempt"]),
                int(manifest["t"]),
                int(meta["localStep"]),
                int(meta.get("steps", 0)),  # an older version may have written the manifest, without steps
                str(meta["innerState"]),
                str(meta["fingerprint"]),
                (int(size), str(sha256)),
                [Block.from_json(block) for block in meta["blocks"]],
                str(meta.get("process", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unusable(f"{MANIFEST_FILE} is no manifest of a unit's state: {type(error).__name__}: {error}") from error
        if state.name != name:
            raise Unusable(f"{MANIFEST_FILE} is that of {state.name}")
        return state


def check_fits(state: StoredState, unit: str, kind: str, layout: Layout) -> None:
    """Raise StateError unless this is the whole state of this unit, kind and model: each array must have as many elements as its tensor."""
    shapes = {spec.name: spec.shape for spec in layout.tensors}
    when = f"what the unit has stored at outer step {state.t}"
    if state.unit != unit:
        raise StateError(f"{when} is of unit {state.unit}")
    if state.kind != kind:
        raise StateError(f"{when} is the state of {state.kind}")
    if state.fingerprint != layout.fingerprint:
        raise StateError(f"{when} is of another model")
    stored: Counter[tuple[str, str]] = Counter()
    for block in state.blocks:
        if not all(x.name and x.piece.tensor in shapes and x.piece.is_inside(shapes[x.piece.tensor]) for x in block.arrays):
            raise StateError(f"{when} holds something else than what the optimizer keeps: {block.file}")
        if block.bytes != _ITEM * elements(block.arrays) or block.bytes > _MOST_BLOCK:
            raise StateError(f"{when} says that {block.file} has {block.bytes} bytes, which its arrays do not have")
        for array in block.arrays:
            stored[array.piece.tensor, array.name] += array.piece.elements
    for (tensor, name), count in stored.items():
        if count != math.prod(shapes[tensor]):
            raise StateError(f"{when} has {count} elements of {name} of {tensor}, whose shape is {list(shapes[tensor])}")


class UnitFolder:
    """The stored states of one unit. Blocking. Drivers raise their own classes, see `RemoteFolders`."""

    def __init__(self, uri: str) -> None:
        """`uri`: the folder of the unit. Raises SnapshotError if there is no driver for it."""
        self.uri = uri
        self._folders = RemoteFolders(uri)

    def newest(self) -> StoredState | None:
        """Return the newest state whose manifest can be read; None if nothing is stored. Raises Unusable if states are stored and no
        manifest can be read."""
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

    def read(self, state: StoredState, file: str, size: int, sha256: str, heard: Callable[[], None] | None = None) -> bytes:
        """Return a file of a state. `size`, `sha256`: what the manifest says. `heard`: called each time that a piece of it has come. Raises
        Unusable if size or checksum differ."""
        data = self._folders.read(state.name, file, size, heard)
        compare_checksum(file, Written(len(data), hashlib.sha256(data).hexdigest()), Written(size, sha256))
        return data

    def read_rest(self, state: StoredState, heard: Callable[[], None] | None = None) -> bytes:
        """The small rest. `heard`: as in `read`. Raises Unusable."""
        size, sha256 = state.rest
        if size > MOST_REST_BYTES:
            raise Unusable(f"{REST_FILE} has {size} bytes, and {MOST_REST_BYTES} at most are read")
        return self.read(state, REST_FILE, size, sha256, heard)

    def write(self, name: str, file: str, data: bytes | bytearray) -> None:
        self._folders.write(name, file, data)

    def finish(self, state: StoredState, rest: bytes) -> None:
        """Make a state visible whose blocks are written, and remove the states before it. Those of a later attempt of the unit stay."""
        manifest = state.to_manifest()
        if len(manifest) > MOST_MANIFEST:
            raise SnapshotError(f"the manifest of the state would have {len(manifest)} bytes, and {MOST_MANIFEST} at most are read")
        self._folders.write(state.name, REST_FILE, rest)
        self._folders.write(state.name, MANIFEST_FILE, manifest)
        # Learners outside the cluster all have the same attempt, and each process counts its steps from 0. So a complete state of more
        # steps is of a process before this one. Without manifest it stays: its process may still write it, and would make it visible with
        # holes.
        self._remove(
            x for x in self._names() if x < state.name or (x > state.name and _attempt(x) == state.attempt and self._folders.holds(x))
        )

    def begin(self, name: str) -> None:
        """Remove earlier states without manifest: storing them failed, and their blocks take room."""
        self._remove(earlier for earlier in self._names() if earlier < name and not self._folders.holds(earlier))

    def _remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self._folders.remove(name)
        except Exception as error:  # noqa: BLE001 - drivers raise their own classes, and old states do no harm
            _log.warning("older states in %s could not be removed, the next one tries again: %s", self.uri, words(error))

    def _names(self, *, reverse: bool = False) -> list[str]:
        return sorted((name for name in self._folders.names() if _NAME.fullmatch(name)), reverse=reverse)


class BlockWriter:
    """Writes one process's part of a state, in blocks, for at most LINK_SHARE of the time. Belongs to one background thread."""

    def __init__(
        self,
        folder: UnitFolder,
        name: str,
        rank: int,
        pause: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`name`: the state's. `pause` sleeps for some seconds; `now` is a clock in seconds."""
        self._folder = folder
        self._name = name
        self._rank = rank
        self._pause = pause
        self._now = now
        self._blocks: list[Block] = []
        self._arrays: list[PieceArray] = []
        self._data = bytearray()

    def add(self, arrays: Sequence[PieceArray], values: NDArray[np.float32]) -> None:
        """Add arrays. `values`: their values, float32, one array after the other. Raises StateError for NaN or infinity, and the errors of
        drivers."""
        if not np.isfinite(values).all():
            raise StateError("the optimizer's state is not finite")
        self._data += memoryview(np.ascontiguousarray(values, "<f4")).cast("B")
        self._arrays.extend(arrays)
        if len(self._data) >= BLOCK_BYTES:
            self._write()

    def finish(self) -> list[Block]:
        """Write the last block, and return all blocks. Raises the errors of drivers."""
        if self._data:
            self._write()
        return self._blocks

    def _write(self) -> None:
        # The buffer is handed over, not copied: a copy of 16 MiB would hold up the steps of other threads.
        data, arrays = self._data, self._arrays
        self._data, self._arrays = bytearray(), []
        file = f"{self._rank:05d}-{len(self._blocks):06d}.bin"
        begun = self._now()
        self._folder.write(self._name, file, data)
        self._blocks.append(Block(file, len(data), hashlib.sha256(data).hexdigest(), arrays))
        self._pause((self._now() - begun) * (1 / LINK_SHARE - 1))


def blocks_to_bytes(blocks: Sequence[Block]) -> bytes:
    """Encode blocks, for a rank to report them to its leader."""
    return json.dumps([block.to_json() for block in blocks], separators=(",", ":")).encode()


def blocks_from_bytes(data: bytes | bytearray) -> list[Block]:
    """Decode a result of `blocks_to_bytes`."""
    return [Block.from_json(block) for block in json.loads(data)]


def _attempt(name: str) -> int:
    return int(name.partition("-")[0])


def _whole_numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _file_name(text: Any) -> str:
    if not re.fullmatch(r"\d+-\d+\.bin", str(text)):
        raise ValueError(f"{text!r} names no block")
    return str(text)
