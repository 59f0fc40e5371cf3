"""Durable snapshots of the syncer: safetensors and a manifest, written to a temporary folder, fsynced, renamed, and checked when read.

    <root>/snapshot-00000007-t240/tensors.safetensors
    <root>/snapshot-00000007-t240/manifest.json

The first number counts saves and orders them: after a roll-back an older step may be saved after a newer one. A folder with such a name
is complete. A crash leaves temporary folders, which begin with `.tmp-`; the next save removes them. A step has one snapshot: a save
replaces an earlier one of the same step.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diloco.durable import fsync_directory
from diloco.free_space import demand, remedy
from diloco.object_stores import local_files
from diloco.snapshots.tensor_file import Array, TensorParts, Written, checksum, read_tensors, tensors_checksum, write_tensors
from diloco.wording import plural

FORMAT_VERSION = 1
TENSORS_FILE = "tensors.safetensors"
MANIFEST_FILE = "manifest.json"
TEMPORARY_PREFIX = ".tmp-"
_ITEM = 4
"""Bytes of a value."""
_MANIFEST = 1 << 20
"""Estimated bytes of a manifest, with the ledger and the statistics of units."""
MOST_MANIFEST = 256 << 20
"""The most bytes of a manifest that is read."""
_FIRST_PIECE = 1 << 20
_MOST_PIECE = 4 << 20
"""Bytes of a file that one request asks for, while a caller wants to hear of it. A request costs a round trip, so pieces grow to
`_MOST_PIECE` where they come fast."""
_FAST = 1.0
"""Seconds within which a piece must come for the next one to be twice as large."""

type Arrays = Callable[[Path, Mapping[str, Any]], Mapping[str, Array]]
"""Called with a snapshot's folder and its `meta`, returns arrays by name to read it into: float32, contiguous and writable."""
type Json = bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None

_NAME = re.compile(r"^snapshot-(\d{8,})-t(\d+)$")
_log = logging.getLogger(__name__)


class SnapshotError(Exception):
    """A snapshot could not be written, or none can be used. The message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest usable snapshot."""

    t: int
    tensors: Mapping[str, Array]
    meta: dict[str, Any]
    path: Path
    skipped: Mapping[str, str]
    """Why newer ones cannot be used, by name, the newest first."""


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The tensors of the snapshot that this process wrote or read last."""

    t: int
    folder: Path
    written: Written


class Unusable(Exception):
    """One snapshot, or a file of it, cannot be used; the message says why."""


class SnapshotStore:
    """The snapshots in one directory, for one process at a time. Blocking, so call it from a thread."""

    def __init__(self, root: Path, keep: int) -> None:
        """`keep`: complete snapshots to keep, at least 1. The first save makes the directory."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._root = root
        self._keep = keep
        self._unusable: set[str] = set()
        self._newest: _Tensors | None = None

    @property
    def root(self) -> Path:
        return self._root

    def save(self, t: int, tensors: TensorParts, meta: Mapping[str, Json]) -> Path:
        """Make the state after outer step `t` durable and return its folder. Then remove snapshots beyond `keep`, and earlier ones of the
        same step. If the newest snapshot is of this step and has the same tensors, only its manifest is replaced.

        The arrays must not change meanwhile; each part is released once it is written. `meta` is JSON without NaN and infinities. When this
        returns, file, manifest and folder are on disk. Raises `SnapshotError` if the operating system refuses (earlier snapshots are
        intact, nothing partial stays), ValueError for a meta that the format cannot hold.
        """
        newest = self._newest
        if newest is not None and newest.t == t and newest.folder.is_dir() and tensors_checksum(tensors) == newest.written:
            self._replace_manifest(newest, meta)
            return newest.folder
        generation = 1 + max((number for number, _ in self._complete()), default=0)
        path = self._root / snapshot_name(generation, t)
        temporary = self._root / f"{TEMPORARY_PREFIX}{path.name}"
        try:
            self._make_root()
            # Before writing: the remains of a crash may take the space that is missing now.
            self._remove_temporaries()
            demand(self._root, _ITEM * sum(math.prod(shape) for shape in tensors.shapes.values()) + _MANIFEST)
            temporary.mkdir()
            written = _write_snapshot(temporary, t, tensors, meta)
            temporary.replace(path)
            fsync_directory(self._root)
        except OSError as error:
            raise SnapshotError(self._refusal(t, error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._newest = _Tensors(t, path, written)
        self.drop_old()
        return path

    def _replace_manifest(self, newest: _Tensors, meta: Mapping[str, Json]) -> None:
        temporary = self._root / f"{TEMPORARY_PREFIX}{newest.folder.name}"
        try:
            self._remove_temporaries()
            temporary.mkdir()
            write_manifest(temporary, newest.t, newest.written, meta)
            (temporary / MANIFEST_FILE).replace(newest.folder / MANIFEST_FILE)
            fsync_directory(newest.folder)
        except OSError as error:
            raise SnapshotError(self._refusal(newest.t, error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def load_newest(self, into: Arrays | None = None) -> Loaded | None:
        """Return the newest snapshot whose size and checksums are right; None if there is no snapshot.

        `into` gives the arrays for each snapshot that is tried; an exception in it ends the search. Without it the arrays are new. Raises
        `SnapshotError` if there are snapshots and none can be used, because starting afresh would throw the training away.
        """
        skipped: dict[str, str] = {}
        for path in self.paths():
            try:
                manifest, tensors = read_snapshot(path, into)
            except Unusable as reason:
                _log.warning("snapshot %s cannot be used: %s", path, reason)
                self._unusable.add(path.name)
                skipped[path.name] = str(reason)
                continue
            self._newest = _Tensors(manifest["t"], path, tensors_of(manifest))
            return Loaded(manifest["t"], tensors, manifest["meta"], path, skipped)
        if skipped:
            raise none_usable(str(self._root), skipped)
        return None

    def paths(self) -> list[Path]:
        """The folders of the complete snapshots, newest first. Their content is not checked."""
        return [path for _, path in sorted(self._complete(), reverse=True)]

    def adopt(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Add a snapshot from elsewhere: `fill` writes its two files into an empty folder, which is then checked.

        Raises `Unusable` if the files are not as the manifest says, `SnapshotError` if the operating system refuses.
        """
        if not _NAME.match(name):
            raise Unusable(f"{name!r} is not the name of a snapshot")
        temporary = self._root / f"{TEMPORARY_PREFIX}{name}"
        try:
            self._make_root()
            self._remove_temporaries()
            temporary.mkdir()
            fill(temporary)
            check_snapshot(temporary)
            for file in (TENSORS_FILE, MANIFEST_FILE):
                with (temporary / file).open("rb+") as opened:
                    os.fsync(opened.fileno())
            fsync_directory(temporary)
            temporary.replace(self._root / name)
            fsync_directory(self._root)
        except OSError as error:
            raise SnapshotError(
                f"snapshot {name} could not be copied to {self._root}: {error.strerror or error}. {remedy(error)}."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return self._root / name

    def _complete(self) -> list[tuple[int, Path]]:
        try:
            entries = [(_NAME.match(entry.name), entry) for entry in self._root.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SnapshotError(f"the snapshots in {self._root} cannot be read: {error.strerror or error}. {remedy(error)}.") from error
        return [(int(match[1]), entry) for match, entry in entries if match]

    def _make_root(self) -> None:
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            fsync_directory(self._root.parent)

    def _remove_temporaries(self) -> None:
        for entry in self._root.iterdir():
            if entry.name.startswith(TEMPORARY_PREFIX):
                shutil.rmtree(entry)

    def drop_old(self) -> None:
        for name in replaced([path.name for path in self.paths()], self._keep, self._unusable):
            # Renamed first: a crash during the removal must not leave a folder that looks like a damaged snapshot.
            path, doomed = self._root / name, self._root / f"{TEMPORARY_PREFIX}old-{name}"
            try:
                path.replace(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                # The new snapshot is safe; the next save tries again to free the space.
                _log.warning("old snapshot %s could not be removed: %s", path, error)

    def _refusal(self, t: int, error: OSError) -> str:
        what = remedy(error, "keep fewer (spec.training.checkpoint.keep)")
        kept = len(self._complete())
        before = f"the {kept} before it are intact" if kept > 1 else "the one before it is intact" if kept else "there is none before it"
        return f"the snapshot of step {t} could not be written to {self._root}: {error.strerror or error}; {before}. {what}."


def snapshot_name(generation: int, t: int) -> str:
    return f"snapshot-{generation:08d}-t{t}"


def none_usable(where: str, skipped: Mapping[str, str]) -> SnapshotError:
    """Return the error for a place whose snapshots cannot be used. `skipped` is as in `Loaded`."""
    return SnapshotError(
        f"{plural(len(skipped), 'snapshot is', 'snapshots are')} in {where}, and none can be used ({reasons(skipped)}). Nothing was "
        "overwritten. Put a good copy back in its place, or empty the directory if the job shall start afresh."
    )


def reasons(skipped: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in skipped.items())


def replaced(names: Sequence[str], keep: int, unusable: Collection[str]) -> list[str]:
    """Return the snapshots that newer ones replace: those older than the `keep` newest, and those with a newer one of the same step. An
    unusable one replaces none. `names` begins with the newest."""
    steps: set[int | None] = set()
    old: list[str] = []
    for name in names:
        t = step_of(name)
        if len(steps) >= keep or t in steps:
            old.append(name)
        elif name not in unusable:
            steps.add(t)
    return old


def generation_of(name: str) -> int | None:
    """The save counter in the name of a snapshot's folder; None for another name."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def step_of(name: str) -> int | None:
    """The outer step in the name of a snapshot's folder; None for another name."""
    match = _NAME.match(name)
    return int(match[2]) if match else None


def read_snapshot(path: Path, into: Arrays | None) -> tuple[dict[str, Any], Mapping[str, Array]]:
    """Read the manifest and the tensors of one snapshot, in one pass. Raises `Unusable`, and what `into` raises."""
    manifest = _read_manifest(path)
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        compare_size(TENSORS_FILE, size, manifest["bytes"])  # before any memory is reserved
        read = read_tensors(file, size, into(path, manifest["meta"]) if into is not None else None)
    compare_checksum(TENSORS_FILE, read.written, tensors_of(manifest))
    if read.wrong:
        raise Unusable(f"{TENSORS_FILE} cannot be read: {read.wrong}")
    return manifest, read.tensors


def check_snapshot(path: Path) -> dict[str, Any]:
    """Return the manifest of one snapshot. Raises `Unusable` if its checksum, or the tensors' size or checksum, is wrong."""
    manifest = _read_manifest(path)
    with _opened(path) as file:
        compare_checksum(TENSORS_FILE, checksum(file), tensors_of(manifest))
    return manifest


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open the tensors of one snapshot. Errors of the operating system become `Unusable`."""
    try:
        file_size(local_files(), str(path), TENSORS_FILE)
        with (path / TENSORS_FILE).open("rb") as file:
            yield file
    except OSError as error:
        raise Unusable(f"{TENSORS_FILE} cannot be read: {error.strerror or error}") from error


def tensors_of(manifest: Mapping[str, Any]) -> Written:
    """Size and checksum of the tensors, as a snapshot's manifest says."""
    return Written(manifest["bytes"], manifest["sha256"])


def compare_size(file: str, size: int, expected: int) -> None:
    """Raise `Unusable` if a file has not the size that its manifest says."""
    if size != expected:
        raise Unusable(f"{file} has {size} bytes, its manifest says {expected}: truncated or overwritten")


def compare_checksum(file: str, written: Written, expected: Written) -> None:
    """Raise `Unusable` if a file has not the size and checksum that its manifest says."""
    compare_size(file, written.bytes, expected.bytes)
    if written.sha256 != expected.sha256:
        raise Unusable(f"{file} does not have the checksum of its manifest: its bytes have changed")


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        return parse_manifest(read_file(local_files(), str(path), MANIFEST_FILE, MOST_MANIFEST))
    except OSError as error:
        raise Unusable(f"{MANIFEST_FILE} cannot be read: {error.strerror or error}") from error


def read_file(fs: Any, folder: str, file: str, most: int, heard: Callable[[], None] | None = None) -> bytes:
    """Return one file of a folder in a fsspec file system. Raises `Unusable` if it is missing, has more than `most` bytes, or is no regular
    file, and the errors of drivers. `heard`: called each time that a piece of it has come; None: it may come in one piece."""
    if (size := file_size(fs, folder, file)) > most:
        raise Unusable(f"{file} has {size} bytes, and {most} at most are expected")
    try:
        return bytes(fs.cat_file(f"{folder}/{file}")) if heard is None else _read_pieces(fs, f"{folder}/{file}", size, heard)
    except FileNotFoundError as error:  # another process has removed it since, for a newer one
        raise Unusable(f"{file} is missing") from error


def _read_pieces(fs: Any, path: str, size: int, heard: Callable[[], None]) -> bytes:
    pieces: list[bytes] = []
    start, length = 0, _FIRST_PIECE
    while start < size:
        begun = time.monotonic()
        end = min(size, start + length)
        pieces.append(fs.cat_file(path, start=start, end=end))
        heard()
        start = end
        if time.monotonic() - begun < _FAST:
            length = min(2 * length, _MOST_PIECE)
    return b"".join(pieces)


def file_size(fs: Any, folder: str, file: str) -> int:
    """Return the size of one file of a folder, in bytes. Raises `Unusable` if it is missing or no regular file, and the errors of
    drivers."""
    try:
        info = fs.info(f"{folder}/{file}")
    except FileNotFoundError as error:
        raise Unusable(f"{file} is missing") from error
    if info["type"] != "file":  # a pipe or a device, which may never end
        raise Unusable(f"{file} is no regular file")
    return int(info["size"])


def parse_manifest(text: bytes) -> dict[str, Any]:
    """Return a manifest whose own checksum is right. Its `bytes` and `sha256` are those of the tensors. Raises `Unusable`."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{MANIFEST_FILE} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("formatVersion"), int):
        raise Unusable(f"{MANIFEST_FILE} names no format version")
    # Before the checksum, which another version may compute differently.
    if manifest["formatVersion"] != FORMAT_VERSION:
        raise Unusable(f"its format version is {manifest['formatVersion']}, this program reads {FORMAT_VERSION}")
    claimed = manifest.pop("manifestSha256", None)
    try:
        computed = _manifest_checksum(manifest)
    except (ValueError, RecursionError) as error:  # a number beyond all floats is read as infinity, which no manifest holds
        raise Unusable(f"{MANIFEST_FILE} does not have its own checksum: it holds what none can hold: {error}") from error
    if claimed != computed:
        raise Unusable(f"{MANIFEST_FILE} does not have its own checksum: its content has changed")
    return manifest


def _manifest_checksum(manifest: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def _write_snapshot(folder: Path, t: int, tensors: TensorParts, meta: Mapping[str, Json]) -> Written:
    with (folder / TENSORS_FILE).open("xb") as file:
        written = write_tensors(file, tensors.shapes, tensors.take())
        file.flush()
        os.fsync(file.fileno())
    write_manifest(folder, t, written, meta)
    return written


def manifest_bytes(content: Mapping[str, Json]) -> bytes:
    """Return a manifest with its format version and its own checksum, for `parse_manifest`."""
    # Once through JSON, so that the checksum is that of the reader's values: tuples become lists, keys become strings.
    manifest = json.loads(json.dumps({"formatVersion": FORMAT_VERSION, **content}, allow_nan=False))
    return json.dumps(manifest | {"manifestSha256": _manifest_checksum(manifest)}, indent=1).encode()


def write_manifest(folder: Path, t: int, written: Written, meta: Mapping[str, Json]) -> None:
    """Write a folder's manifest, and make the folder durable. `written`: its tensors. Raises OSError."""
    with (folder / MANIFEST_FILE).open("xb") as text:
        text.write(manifest_bytes({"t": t, "bytes": written.bytes, "sha256": written.sha256, "meta": meta}))
        text.flush()
        os.fsync(text.fileno())
    fsync_directory(folder)
