"""Repeats the merges of a tape, from a snapshot on. The bytes are the same in any process, and in any order that keeps each fragment's.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diloco.algorithm.commit import Commit, Redo
from diloco.algorithm.layout import LayoutError
from diloco.algorithm.state import CoreState, StateError
from diloco.contract import OuterOptimizer, Training
from diloco.snapshots.store import Unusable, check_snapshot, generation_of, read_snapshot
from diloco.tape.records import Record, RecordFile, TapeError, checksum, read_record
from diloco.tape.segments import FORMAT, SEGMENT, Segment, segments


def segment_head(training: Training, job_uid: str, incarnation: bytes) -> dict[str, Any]:
    """The content of each segment's first record: all that is needed to repeat the segment's merges."""
    optimizer = training.outer_optimizer
    return {
        "job": job_uid,
        "incarnation": incarnation.hex(),
        "compression": training.compression,
        "outerOptimizer": {"learningRate": optimizer.learning_rate, "momentum": optimizer.momentum},
    }


def training_of(head: Mapping[str, Any], training: Training) -> Training:
    """Return `training` with compression and outer optimizer from a segment's first record. Raises StateError for a record of another
    format, KeyError, TypeError or ValueError for one that lacks them."""
    if head["format"] != FORMAT:
        raise StateError(f"it has format {head['format']}, this program reads {FORMAT}")
    optimizer = head["outerOptimizer"]
    outer = OuterOptimizer(learning_rate=float(optimizer["learningRate"]), momentum=float(optimizer["momentum"]))
    return training.model_copy(update={"compression": str(head["compression"]), "outer_optimizer": outer})


def chain_from(found: Sequence[Segment], first: int) -> list[Segment]:
    """Return the segments from number `first` on, up to the first missing record. `found`: segments in order."""
    chain: list[Segment] = []
    for segment in found:
        if segment.number == first + len(chain):
            chain.append(segment)
            # After a cut segment merges are missing. The next segment follows on another snapshot.
            if segment.cut:
                break
    return chain


def gradient_of(record: Record) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The merged outer gradient in a merge's record, read-only. Raises StateError for a record without values."""
    if record.values is None:
        raise StateError("a merge without its values")
    # Explicitly little-endian: the tape may be from another machine.
    gradient = record.values.view("<f4").astype(np.float32, copy=False)
    gradient.flags.writeable = False
    return gradient


@dataclass(frozen=True, slots=True)
class RepeatedMerge:
    """One merge that was repeated."""

    commit: Commit
    recorded: str
    """Checksum of the result in the record."""
    found: str
    """Checksum of the result now."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the record of a merge is, and how to repeat the merge."""

    path: Path
    offset: int
    fragment: int
    training: Training


class Replay:
    """The merges after one snapshot. `digest`: SHA-256 over values, momenta and remainders, once all merges were repeated; "" before."""

    def __init__(self, folder: Path, snapshot: Path | None = None) -> None:
        """`folder`: the tape's. `snapshot`: the folder of the snapshot to begin with; if None, the oldest snapshot beside the tape whose
        merges the tape still has. Raises TapeError."""
        self.snapshot, self._first = _start(folder, snapshot)
        self._places = list(_merges(chain_from(segments(folder), self._first)))
        self.digest = ""

    def repeat(self, seed: int | None = None) -> Iterator[RepeatedMerge]:
        """Repeat the merges in the order of the tape. With `seed`, use another order, which keeps the order within each fragment. Raises
        TapeError for a record that cannot be used."""
        redo: Redo | None = None
        state, training = _read(self.snapshot), None
        places = self._places if seed is None else _shuffled(self._places, seed)
        for place in places:
            if redo is None or place.training != training:
                redo = Redo(redo.state() if redo is not None else state, place.training)
                training = place.training
            record = read_record(place.path, place.offset)
            try:
                commit = Commit.from_json(record.head)
                # Some merges were on their way when the snapshot was taken, so it may contain this one already.
                if redo.covers(commit):
                    continue
                update = redo.repeat(commit, gradient_of(record))
            except (StateError, KeyError, TypeError, ValueError) as error:
                raise TapeError(f"the record at offset {place.offset} of {place.path} cannot be repeated: {error}") from error
            yield RepeatedMerge(commit, record.head["checksum"], f"{checksum(memoryview(update.value)):08x}")
        self.digest = _digest(redo.state() if redo is not None else state)


def _merges(chain: Sequence[Segment]) -> Iterator[_Place]:
    training = Training(steps=1)
    for segment in chain:
        # Only heads are read, as the values of a whole run do not fit into memory.
        for record in RecordFile(segment.path, values=False):
            try:
                if record.head["type"] == SEGMENT:
                    training = training_of(record.head, training)
                elif record.head["type"] == "merge":
                    yield _Place(segment.path, record.offset, int(record.head["fragment"]), training)
            except (StateError, KeyError, TypeError, ValueError) as error:
                raise TapeError(f"the record at offset {record.offset} of {segment.path} cannot be read: {error}") from error


def _shuffled(places: Sequence[_Place], seed: int) -> Iterator[_Place]:
    """Yield the places in a random order that keeps the order within each fragment. If the training changes on the tape, keep its order."""
    if len({repr(place.training) for place in places}) > 1:
        yield from places
        return
    choice = random.Random(seed)  # noqa: S311 - any order will do
    queues: dict[int, list[_Place]] = {}
    for place in places:
        queues.setdefault(place.fragment, []).append(place)
    waiting = [queue[::-1] for queue in queues.values()]
    while waiting:
        queue = choice.choice(waiting)
        yield queue.pop()
        if not queue:
            waiting.remove(queue)


def _start(folder: Path, snapshot: Path | None) -> tuple[Path, int]:
    """Return (snapshot, number of the first segment after it)."""
    if snapshot is not None:
        return snapshot, _first_segment(snapshot)
    root = folder.parent / "snapshots"
    snapshots = sorted(path for path in root.iterdir() if generation_of(path.name) is not None) if root.is_dir() else []
    on_tape = {segment.number for segment in segments(folder)}
    for path in snapshots:
        first = _first_segment(path)
        # The values of merges are removed once a later snapshot is durable. So the tape may not follow on an older snapshot any more.
        if first in on_tape:
            return path, first
    raise TapeError(
        f"no snapshot in {root} is one that the values of {folder} follow on. The values of merges stay until a later snapshot is written; "
        "name an earlier snapshot with --from, and the tape that was copied with it"
    )


def _first_segment(snapshot: Path) -> int:
    try:
        return int(check_snapshot(snapshot)["meta"]["tape"]["segment"])
    except Unusable as reason:
        raise TapeError(f"snapshot {snapshot} cannot be used: {reason}") from reason
    except (KeyError, TypeError, ValueError) as error:
        raise TapeError(f"snapshot {snapshot} does not say where its tape begins") from error


def _read(snapshot: Path) -> CoreState:
    states: list[CoreState] = []

    def arrays(_: Path, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        states.append(CoreState.allocate(meta["core"]))
        return {name: array for part in states[0].parts() for name, array in part.items()}

    try:
        read_snapshot(snapshot, arrays)
        return states[0].checked()
    except (Unusable, StateError, LayoutError) as error:
        raise TapeError(f"snapshot {snapshot} cannot be used: {error}") from error


def _digest(state: CoreState) -> str:
    digest = hashlib.sha256()
    for array in (*state.values, *state.momentum, *state.residual):
        if array is not None:
            digest.update(memoryview(array.astype("<f4", copy=False)).cast("B"))
    return digest.hexdigest()
