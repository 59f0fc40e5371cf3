"""Lists the snapshots below a folder or a URI, and the states that units have stored beside them, and whether each is whole.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diloco.export.places import ExportError, Folder, errors_of_drivers, folders_of, job_of, manifest_of, opened, shown, subfolders
from diloco.object_stores import exists
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, Unusable, compare_checksum, compare_size, file_size, step_of, tensors_of
from diloco.snapshots.stored_state import FOLDER, REST_FILE, StoredState
from diloco.snapshots.tensor_file import Written, checksum


class State(enum.StrEnum):
    """What is known about a snapshot or a stored state."""

    COMPLETE = "complete"
    """All files are there. The manifest's own checksum and the files' sizes are right."""
    WHOLE = "whole"
    """Complete, and the files' checksums are right."""
    DAMAGED = "damaged"
    UNFINISHED = "unfinished"
    """There is no manifest: an upload is under way, or was interrupted."""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    snapshot: str
    """Name of its folder. The first number in it counts saves."""
    folder: str
    """The path or URI of the folder with this snapshot."""
    job: str
    """Name of the job that wrote it; "" if not known."""
    step: int
    """Outer step."""
    tokens: int | None
    """Tokens committed until then; None if not known."""
    bytes: int
    """Bytes of its tensors."""
    saved: float | None
    """When it was saved, in seconds since the epoch; None if not known."""
    state: State
    why: str
    """What is wrong with it; "" if nothing is known to be wrong."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A stored state of one unit's optimizer, see `checkpoint.learners`."""

    unit: str
    folder: str
    """The path or URI of the state."""
    job: str
    """Name of the job whose snapshots are beside it; "?" if not known."""
    step: int
    """Outer step of the snapshot that it was stored after."""
    local_step: int
    """Local step of the unit's process."""
    kind: str
    """Classes of the optimizers and of other objects that the program hands over, as the unit says."""
    bytes: int
    """Bytes of its tensors, as its manifest says."""
    saved: float | None
    """When it was stored, in seconds since the epoch; None if not known."""
    state: State
    why: str
    """What is wrong with it; "" if nothing is known to be wrong."""


def list_states(where: str, *, job: str = "", check: bool = False, reading: Callable[[], None] = lambda: None) -> Iterator[StateEntry]:
    """Yield the states that units have stored beside the snapshots in `where`, or beside those of one job. Arguments and errors are those
    of `list_snapshots`. If `where` is one snapshot, there are none, because states are no part of a snapshot."""
    fs, path = opened(where)
    with errors_of_drivers(where):
        for folder in folders_of(fs, where, path):
            named = job_of(fs, folder)
            states = f"{folder.path}/{FOLDER}"
            if path.startswith(f"{folder.path}/") or (job and named != job) or not fs.isdir(states):
                continue
            for unit in subfolders(fs, states):
                for name in subfolders(fs, f"{states}/{unit}"):
                    entry = _state_listed(fs, f"{states}/{unit}/{name}", unit, named, reading if check else None)
                    if entry is not None:
                        yield entry


def _state_listed(fs: Any, path: str, unit: str, job: str, reading: Callable[[], None] | None) -> StateEntry | None:
    """Return the entry of a stored state; None if it is not finished yet, or was removed meanwhile."""
    if not exists(fs, f"{path}/{MANIFEST_FILE}"):
        return None
    stored: StoredState | None = None
    state, why = State.COMPLETE, ""
    try:
        stored = StoredState.from_manifest(path.rpartition("/")[2], manifest_of(fs, path))
        for file, size, sha256 in [(REST_FILE, *stored.rest), *((block.file, block.bytes, block.sha256) for block in stored.blocks)]:
            _check_file(fs, path, file, Written(size, sha256), reading)
            if reading is not None:
                state = State.WHOLE
    except Unusable as reason:
        if not exists(fs, f"{path}/{MANIFEST_FILE}"):
            return None
        state, why = State.DAMAGED, str(reason)
    return StateEntry(
        unit=unit,
        folder=shown(fs, path),
        job=job,
        step=stored.t if stored is not None else 0,
        local_step=stored.local_step if stored is not None else 0,
        kind=stored.kind if stored is not None else "",
        bytes=sum(block.bytes for block in stored.blocks) if stored is not None else 0,
        saved=_saved(fs, path),
        state=state,
        why=why,
    )


def _check_file(fs: Any, path: str, file: str, expected: Written, reading: Callable[[], None] | None) -> None:
    """Raise Unusable unless a file has this size and this checksum. If `reading` is None, the file is not read and only its size is
    checked."""
    compare_size(file, file_size(fs, path, file), expected.bytes)
    if reading is not None:
        try:
            with fs.open(f"{path}/{file}", "rb") as opened:
                compare_checksum(file, checksum(opened, reading), expected)
        except FileNotFoundError as error:
            raise Unusable(f"{file} is missing") from error


def list_snapshots(
    where: str, *, job: str = "", check: bool = False, reading: Callable[[], None] = lambda: None
) -> Iterator[SnapshotEntry]:
    """Yield the snapshots in `where` (a path or a URI), or only those of `job`, folder by folder, the newest first.

    `check`: read each snapshot and compare its checksum; `reading` is called after each MiB. Raises ExportError, also if there are no
    snapshots.
    """
    fs, path = opened(where)
    count = 0
    with errors_of_drivers(where):
        folders = folders_of(fs, where, path)
        for folder in folders:
            if job and job_of(fs, folder) != job:
                continue
            for name in sorted({*folder.snapshots, *folder.unfinished}, reverse=True):
                entry = _listed(fs, folder, name, reading if check else None)
                if not _gone(fs, f"{folder.path}/{name}", entry.state):
                    count += 1
                    yield entry
    if not count:
        of_job = f" of job {job}" if job else ""
        raise ExportError(f"there are no snapshots{of_job} in {where}: a job writes its first one when its first learner has joined")


def _listed(fs: Any, folder: Folder, name: str, reading: Callable[[], None] | None) -> SnapshotEntry:
    path = f"{folder.path}/{name}"
    size = 0
    manifest: Mapping[str, Any] = {}
    state, why = State.UNFINISHED, ""
    with contextlib.suppress(Unusable):  # `_check_file` below reports it
        size = file_size(fs, path, TENSORS_FILE)
    if name in folder.snapshots:
        try:
            manifest = manifest_of(fs, path)
            _check_file(fs, path, TENSORS_FILE, tensors_of(manifest), reading)
            state = State.COMPLETE if reading is None else State.WHOLE
        except Unusable as reason:
            state, why = State.DAMAGED, str(reason)
    meta = manifest.get("meta") or {}
    named = meta.get("job")
    return SnapshotEntry(
        snapshot=name,
        folder=shown(fs, folder.path),
        job=str(named.get("name", "")) if isinstance(named, dict) else "",
        step=step_of(name) or 0,
        tokens=_tokens(meta),
        bytes=size,
        saved=_saved(fs, path),
        state=state,
        why=why,
    )


def _gone(fs: Any, path: str, state: State) -> bool:
    """Whether a snapshot that seems damaged was only removed since its folder was listed, because its job has saved a newer one."""
    return state in (State.DAMAGED, State.UNFINISHED) and not exists(fs, path)


def _saved(fs: Any, path: str) -> float | None:
    """When the manifest in a folder was written, in seconds since the epoch; None if there is none, or it was removed."""
    try:
        return float(fs.modified(f"{path}/{MANIFEST_FILE}").timestamp())
    except FileNotFoundError:
        return None


def _tokens(meta: Mapping[str, Any]) -> int | None:
    """The committed tokens of all units in the ledger; None if the ledger is missing or malformed."""
    try:
        return sum(int(tokens) for _, tokens, _ in meta["ledger"]["units"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
