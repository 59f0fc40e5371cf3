"""Finds the snapshots below a folder or a URI, and chooses one of them.

Such a place is the state directory of `diloco up`, the folder of a syncer's volume, the copies below `training.checkpoint.uri`, or one
snapshot.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from diloco.object_stores import REMEDY, exists, file_system, words
from diloco.snapshots.store import MANIFEST_FILE, MOST_MANIFEST, Unusable, generation_of, parse_manifest, read_file, step_of
from diloco.wording import some

_DEPTH = 4
"""Levels of folders from a state directory to its snapshots: `volumes/<namespace>/<claim>/snapshots`."""
_FOLDERS = 1000
"""The most folders that are searched: a bucket may hold anything beside snapshots."""
_LISTED = 20
"""The most steps or jobs that a message lists."""


class ExportError(Exception):
    """There is nothing to export, or it cannot be exported. The message says what was wanted, where, and what is there."""


class NoSnapshotsError(ExportError):
    """The place exists, and holds no snapshots."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folder of one finished snapshot."""

    fs: Any = field(repr=False)
    """A file system of fsspec."""
    path: str
    """The path within `fs`."""
    manifest: dict[str, Any] = field(repr=False)
    """The manifest, whose own checksum is right."""
    remark: str = ""
    """What a user should know about the choice; "" if nothing."""

    @property
    def name(self) -> str:
        """The path or URI, for messages."""
        return shown(self.fs, self.path)

    @property
    def t(self) -> int:
        """Outer step."""
        return int(self.manifest["t"])

    @property
    def job(self) -> str:
        return _job(self.manifest)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with snapshots of one job."""

    path: str
    snapshots: Sequence[str]
    """Names of the finished snapshots, newest first."""
    unfinished: Sequence[str]
    """Names of snapshots without a manifest: an upload is in progress, or they are damaged."""


def find_snapshot(where: str, *, job: str = "", step: int | None = None, name: str = "") -> Snapshot:
    """Return the newest finished snapshot in `where` (a path or a URI of fsspec), or the newest of outer step `step`, or the one with this
    name. Only the manifest is read and checked.

    `job`: name of the job, needed if several jobs have snapshots there. Raises ExportError.
    """
    fs, path = opened(where)
    with errors_of_drivers(where):
        folder = _of_job(fs, where, folders_of(fs, where, path), job)
        snapshots = [x for x in folder.snapshots if step is None or step_of(x) == step]
        snapshots = [x for x in snapshots if not name or x == name]
        if not snapshots:
            raise ExportError(_nothing(fs, folder, step, name))
        newest = snapshots[0]
        newest_path = f"{folder.path}/{newest}"
        try:
            manifest = manifest_of(fs, newest_path)
        except Unusable as reason:
            others = [other for other in folder.snapshots if other != newest]
            raise ExportError(f"snapshot {shown(fs, newest_path)} cannot be used: {reason}. {_there(others)}") from reason
    asked = step is not None or name
    newer = [other for other in folder.unfinished if not asked and (generation_of(other) or 0) > (generation_of(newest) or 0)]
    remark = f"{', '.join(newer)} has no {MANIFEST_FILE}: it is unfinished or damaged, and the one before it is used" if newer else ""
    return Snapshot(fs, newest_path, manifest, remark)


def other_steps(snapshot: Snapshot) -> str:
    """A sentence for people about the other snapshots beside this one."""
    try:
        names = _one_folder(snapshot.fs, snapshot.path.rpartition("/")[0]).snapshots
    except OSError:
        return _there([])
    return _there([name for name in names if name != _last(snapshot.path)])


def opened(where: str) -> tuple[Any, str]:
    """Return (a file system of fsspec, the path within it) for a path or URI. Raises ExportError if no driver opens it."""
    try:
        fs, path = file_system(where)
    except (ImportError, ValueError) as error:
        raise ExportError(f"{where} cannot be read: {error}. {REMEDY}") from error
    except Exception as error:  # some drivers connect or open an archive at once, and raise their own classes
        raise ExportError(f"{where} cannot be read: {words(error)}") from error
    return fs, str(path).rstrip("/")


@contextlib.contextmanager
def errors_of_drivers(where: str) -> Iterator[None]:
    """Errors of drivers within this context become ExportErrors about `where`."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # drivers raise their own classes, which are no OSError
        raise ExportError(f"{where} cannot be read: {words(error)}") from error


def folders_of(fs: Any, where: str, path: str) -> list[Folder]:
    """Return the folders with snapshots at or below `path`, the nearest first. If `path` is one snapshot, the result is a folder with this
    snapshot alone. `where`: the path for messages. Raises ExportError if `path` does not exist."""
    if not exists(fs, path):
        raise ExportError(f"{where} does not exist")
    return [_one(fs, path)] if generation_of(_last(path)) is not None else list(_folders(fs, path))


def _folders(fs: Any, path: str) -> Iterator[Folder]:
    """Yield the folders with snapshots at or below `path`, the nearest first."""
    waiting, searched = [(path, 0)], 0
    while waiting:
        at, depth = waiting.pop(0)
        searched += 1
        if searched > _FOLDERS:
            raise ExportError(f"{shown(fs, path)} has more than {_FOLDERS} folders: give the folder of one job")
        inside = subfolders(fs, at)
        if any(generation_of(name) is not None for name in inside):
            yield _one_folder(fs, at, inside)
        elif depth < _DEPTH:
            # If there are folders with these names, only they are searched: a state directory has logs beside its volumes, and a syncer's
            # volume may hold more than snapshots.
            named = [name for name in ("snapshots", "volumes") if name in inside]
            waiting += [(f"{at}/{name}", depth + 1) for name in named[:1] or inside]


def subfolders(fs: Any, path: str) -> list[str]:
    """The names of the folders in `path`, sorted."""
    return sorted(_last(str(entry["name"])) for entry in fs.ls(path, detail=True) if entry["type"] == "directory")


def _one_folder(fs: Any, path: str, inside: Sequence[str] | None = None) -> Folder:
    if inside is None:
        inside = subfolders(fs, path)
    names = [name for name in inside if generation_of(name) is not None]
    newest_first = sorted(names, key=lambda name: generation_of(name) or 0, reverse=True)
    finished = [name for name in newest_first if exists(fs, f"{path}/{name}/{MANIFEST_FILE}")]
    return Folder(path, finished, [name for name in newest_first if name not in finished])


def _one(fs: Any, path: str) -> Folder:
    parent, _, name = path.rpartition("/")
    finished = exists(fs, f"{path}/{MANIFEST_FILE}")
    return Folder(parent, [name] if finished else [], [] if finished else [name])


def _of_job(fs: Any, where: str, folders: Sequence[Folder], job: str) -> Folder:
    """Return the only folder, or the folder of the job. Raises ExportError, naming the jobs in `where`."""
    if not folders:
        raise NoSnapshotsError(f"there are no snapshots in {where}: a job writes its first one when its first learner has joined")
    if len(folders) == 1 and not job:
        return folders[0]
    jobs = [job_of(fs, folder) for folder in folders]
    chosen = [folder for folder, name in zip(folders, jobs, strict=True) if not job or name == job]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise ExportError(f"there are no snapshots of job {job} in {where}; there are some of {some(sorted(set(jobs)), _LISTED)}")
    paths = [f"{name} ({shown(fs, folder.path)})" for folder, name in zip(folders, jobs, strict=True) if folder in chosen]
    remedy = "give the folder of one of them" if job else "choose one with --job, or give its folder"
    raise ExportError(f"{where} has snapshots of several jobs: {some(paths, _LISTED)}; {remedy}")


def job_of(fs: Any, folder: Folder) -> str:
    """The name of the job in the newest manifest that can be read; "?" if there is none."""
    for name in folder.snapshots:
        with contextlib.suppress(Unusable):
            return _job(manifest_of(fs, f"{folder.path}/{name}"))
    return "?"


def _job(manifest: dict[str, Any]) -> str:
    job = manifest["meta"].get("job")
    return str(job.get("name", "?")) if isinstance(job, dict) else "?"


def manifest_of(fs: Any, path: str) -> dict[str, Any]:
    """Read the manifest of the snapshot in the folder `path`. Raises Unusable."""
    manifest = parse_manifest(read_file(fs, path, MANIFEST_FILE, MOST_MANIFEST))
    if not isinstance(manifest.get("t"), int) or not isinstance(manifest.get("bytes"), int) or not isinstance(manifest.get("meta"), dict):
        raise Unusable(f"{MANIFEST_FILE} does not say which step it is of, or how large it is")
    return manifest


def _nothing(fs: Any, folder: Folder, step: int | None, name: str) -> str:
    where = shown(fs, folder.path)
    if name and folder.snapshots:
        unfinished = f", which has no {MANIFEST_FILE}" if name in folder.unfinished else ""
        return f"there is no finished snapshot {name}{unfinished} in {where}. {_there(folder.snapshots)}"
    if step is not None and folder.snapshots:
        return f"there is no snapshot of outer step {step} in {where}. {_there(folder.snapshots)}"
    return f"there is no finished snapshot in {where}: {some(folder.unfinished, _LISTED)} has no {MANIFEST_FILE}"


def _there(names: Sequence[str]) -> str:
    steps = [str(step_of(name)) for name in names]
    if not steps:
        return "There is no other one."
    return f"There is one of outer step {steps[0]}." if len(steps) == 1 else f"There are those of outer steps {some(steps, _LISTED)}."


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def shown(fs: Any, path: str) -> str:
    """A path within a file system, as messages show it and as it can be opened again."""
    return path if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(path))
