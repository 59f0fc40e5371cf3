"""The merges of a tape taken again, from a snapshot: the same bytes in another process, and in any order that the fragments allow.

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


def about(training: Training, job_uid: str, incarnation: bytes) -> dict[str, Any]:
    """Return what each segment says of itself: all that is needed to take its merges again."""
    optimizer = training.outer_optimizer
    return {
        "job": job_uid,
        "incarnation": incarnation.hex(),
        "compression": training.compression,
        "outerOptimizer": {"learningRate": optimizer.learning_rate, "momentum": optimizer.momentum},
    }


def training_of(head: Mapping[str, Any], training: Training) -> Training:
    """`training` with what a segment's first record says. Raises StateError for a record of another format, KeyError, TypeError or
    ValueError for one that does not say it."""
    if head["format"] != FORMAT:
        raise StateError(f"it has format {head['format']}, this program reads {FORMAT}")
    optimizer = head["outerOptimizer"]
    outer = OuterOptimizer(learning_rate=float(optimizer["learningRate"]), momentum=float(optimizer["momentum"]))
    return training.model_copy(update={"compression": str(head["compression"]), "outer_optimizer": outer})


def chain_from(found: Sequence[Segment], first: int) -> list[Segment]:
    """Return the segments from number `first` on between which no record is missing."""
    chain: list[Segment] = []
    for segment in found:
        if segment.number == first + len(chain):
            chain.append(segment)
            # Behind a cut, merges are missing: what follows continues another snapshot.
            if segment.cut:
                break
    return chain


def gradient_of(record: Record) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the merged outer gradient of a merge's record, read-only. Raises StateError for a record without values."""
    if record.values is None:
        raise StateError("a merge without its values")
    # Little-endian on every machine: a tape may be replayed on another one.
    gradient = record.values.view("<f4").astype(np.float32, copy=False)
    gradient.flags.writeable = False
    return gradient


@dataclass(frozen=True, slots=True)
class Taken:
    """One merge that was taken again."""

    commit: Commit
    recorded: str
    """Checksum of the result, as the record has it."""
    found: str
    """As it is now."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the record of a merge stands."""

    path: Path
    offset: int
    fragment: int
    training: Training


class Replay:
    """The merges after one snapshot. `digest`: SHA-256 over values, momenta and remainders, once all were taken."""

    def __init__(self, folder: Path, snapshot: Path | None = None) -> None:
        """`folder`: of the tape. `snapshot`: the folder of the snapshot to begin with; None: the oldest one beside the tape that the tape
        still goes on from. Raises TapeError."""
        self.snapshot, self._first = _start(folder, snapshot)
        self._places = list(_merges(chain_from(segments(folder), self._first)))
        self.digest = ""

    def take(self, seed: int | None = None) -> Iterator[Taken]:
        """Take them as they stand on the tape; with `seed`, in another order, which keeps that of each fragment. Raises TapeError for a
        record that cannot be used."""
        redo: Redo | None = None
        state, training = _read(self.snapshot), None
        for place in self._places if seed is None else _shuffled(self._places, seed):
            if redo is None or place.training != training:
                redo = Redo(redo.state() if redo is not None else state, place.training)
                training = place.training
            record = read_record(place.path, place.offset)
            try:
                commit = Commit.from_json(record.head)
                # Merges were on their way when the snapshot was taken: it may have this one.
                if redo.covers(commit):
                    continue
                value = redo.take(commit, gradient_of(record))
            except (StateError, KeyError, TypeError, ValueError) as error:
                raise TapeError(f"the record at offset {place.offset} of {place.path} cannot be taken again: {error}") from error
            yield Taken(commit, record.head["checksum"], checksum(memoryview(value)))
        self.digest = _digest(redo.state() if redo is not None else state)


def _merges(chain: Sequence[Segment]) -> Iterator[_Place]:
    training = Training(steps=1)
    for segment in chain:
        # Heads only: the values of a whole run are more than memory holds.
        for record in RecordFile(segment.path, values=False):
            try:
                if record.head["type"] == SEGMENT:
                    training = training_of(record.head, training)
                elif record.head["type"] == "merge":
                    yield _Place(segment.path, record.offset, int(record.head["fragment"]), training)
            except (StateError, KeyError, TypeError, ValueError) as error:
                raise TapeError(f"the record at offset {record.offset} of {segment.path} cannot be read: {error}") from error


def _shuffled(places: Sequence[_Place], seed: int) -> Iterator[_Place]:
    """In another order, in which those of one fragment stand as before. With several trainings that of the tape."""
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
    """(snapshot, the first segment after it)."""
    if snapshot is not None:
        return snapshot, _first_segment(snapshot)
    root = folder.parent / "snapshots"
    found = sorted(path for path in root.iterdir() if generation_of(path.name) is not None) if root.is_dir() else []
    there = {segment.number for segment in segments(folder)}
    for path in found:
        first = _first_segment(path)
        # Snapshots outlive the values of merges before the newest one: an older one may have nothing to go on with.
        if first in there:
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
    found = hashlib.sha256()
    for array in (*state.values, *state.momentum, *state.residual):
        if array is not None:
            found.update(memoryview(array.astype("<f4", copy=False)).cast("B"))
    return found.hexdigest()
