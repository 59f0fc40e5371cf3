"""Which snapshots there are below a folder or a URI, which states units have stored beside them, and whether each is whole.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diloco.export.places import ExportError, Folder, errors_of_drivers, folders_of, job_of, manifest_of, opened, shown, subfolders
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, Unusable, compare_checksum, compare_size, file_size, step_of, tensors_of
from diloco.snapshots.stored_state import FOLDER, REST_FILE, StoredState
from diloco.snapshots.tensor_file import Written, checksum


class State(enum.StrEnum):
    """What is known of a snapshot, or of a stored state."""

    COMPLETE = "complete"
    """Both files are there; the manifest has its checksum, and the tensors have its size."""
    WHOLE = "whole"
    """Complete, and the tensors have their checksum."""
    DAMAGED = "damaged"
    UNFINISHED = "unfinished"
    """It has no manifest: an upload is under way, or was cut off."""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One snapshot."""

    snapshot: str
    """Name of its folder, in which the first number counts saves."""
    folder: str
    """The path or URI in which it is."""
    job: str
    """Name of the job that wrote it; "": it is not known."""
    step: int
    """Outer step."""
    tokens: int | None
    """Committed until then; None: not known."""
    bytes: int
    """Bytes of its tensors."""
    saved: float | None
    """Seconds since the epoch; None: not known."""
    state: State
    why: str
    """What is wrong with it; "": nothing is known to be."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """What one unit has stored of its optimizer, see `checkpoint.learners`."""

    unit: str
    folder: str
    """The path or URI of what the unit has stored."""
    job: str
    """Name of the job whose copies of snapshots are beside it; "": it is not known."""
    step: int
    """Outer step of the snapshot after which it was stored."""
    local_step: int
    """Local step of the unit's process."""
    kind: str
    """Classes of optimizers and of what the program hands over, as the unit says."""
    bytes: int
    """Bytes of its tensors, as its manifest says."""
    saved: float | None
    """Seconds since the epoch; None: not known."""
    state: State
    why: str
    """What is wrong with it; "": nothing is known to be."""


def list_states(where: str, *, job: str = "", check: bool = False, reading: Callable[[], None] = lambda: None) -> Iterator[StateEntry]:
    """Yield what units have stored beside the copies of snapshots in `where`, or beside those of a job; arguments and errors as of
    `list_snapshots`. Nothing for one snapshot alone: a state is no part of it."""
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
    """Return what is known of a state; None: it is not whole yet, or was removed meanwhile."""
    if not fs.exists(f"{path}/{MANIFEST_FILE}"):
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
        if not fs.exists(f"{path}/{MANIFEST_FILE}"):
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


def _check_file(fs: Any, path: str, file: str, said: Written, reading: Callable[[], None] | None) -> None:
    """Raise Unusable unless a file has this size, and this checksum: of that nothing is read where `reading` is None."""
    compare_size(file, file_size(fs, path, file), said.bytes)
    if reading is not None:
        try:
            with fs.open(f"{path}/{file}", "rb") as opened:
                compare_checksum(file, checksum(opened, reading), said)
        except FileNotFoundError as error:
            raise Unusable(f"{file} is missing") from error


def list_snapshots(
    where: str, *, job: str = "", check: bool = False, reading: Callable[[], None] = lambda: None
) -> Iterator[SnapshotEntry]:
    """Yield all snapshots in `where` (a path or a URI), or those of a job; of each folder the newest first. `check`: read each, and compare
    its checksum; `reading` is called after each MiB of it. Raises ExportError, also if there are none."""
    fs, path = opened(where)
    found = 0
    with errors_of_drivers(where):
        folders = folders_of(fs, where, path)
        for folder in folders:
            if job and job_of(fs, folder) != job:
                continue
            for name in sorted({*folder.snapshots, *folder.unfinished}, reverse=True):
                found += 1
                entry = _listed(fs, folder, name, reading if check else None)
                if not _gone(fs, f"{folder.path}/{name}", entry.state):
                    yield entry
    if not found:
        of_job = f" of job {job}" if job else ""
        raise ExportError(f"there are no snapshots{of_job} in {where}: a job writes its first one when its first learner has joined")


def _listed(fs: Any, folder: Folder, name: str, reading: Callable[[], None] | None) -> SnapshotEntry:
    path = f"{folder.path}/{name}"
    size = 0
    manifest: Mapping[str, Any] = {}
    state, why = State.UNFINISHED, ""
    with contextlib.suppress(Unusable):  # said below
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
    """Return whether what seems to be damaged was removed since its folder was listed: a job that trains puts a newer one in its place."""
    return state in (State.DAMAGED, State.UNFINISHED) and not fs.exists(path)


def _saved(fs: Any, path: str) -> float | None:
    """Return when the manifest in a folder was written, seconds since the epoch; None: there is none, or none any more."""
    try:
        return float(fs.modified(f"{path}/{MANIFEST_FILE}").timestamp())
    except FileNotFoundError:
        return None


def _tokens(meta: Mapping[str, Any]) -> int | None:
    """Return the committed tokens of all units, as the ledger has them."""
    try:
        return sum(int(tokens) for _, tokens, _ in meta["ledger"]["units"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
