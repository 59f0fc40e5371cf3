"""Copies of the syncer's snapshots in an object store or folder: `file://`, `s3://`, `gs://`, or whatever else fsspec has a driver for.

An object store has no atomic rename, so the manifest is uploaded last, and a folder without manifest is no snapshot.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import logging
from pathlib import Path

from diloco.object_stores import words
from diloco.snapshots.remote_folders import FIELD, RemoteFolders
from diloco.snapshots.store import TENSORS_FILE, SnapshotError, SnapshotStore, Unusable, generation_of, none_usable, replaced

_log = logging.getLogger(__name__)


class RemoteSnapshots:
    """The snapshots under one URI. Blocking, so call it from a thread."""

    def __init__(self, uri: str, keep: int) -> None:
        """`uri`: a folder that belongs to this job alone. Raises `SnapshotError` if there is no driver for it."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._keep = keep
        self._folders = RemoteFolders(uri)

    def upload(self, path: Path, *, tensors: bool = True) -> None:
        """Copy one complete local snapshot, then remove the copies that it replaces, and the remains of interrupted uploads before it.
        Idempotent. `tensors`: False if only the manifest has changed since an earlier upload. Raises `SnapshotError`."""
        try:
            self._folders.put(path, [TENSORS_FILE] if tensors else [])
            names = [name for name in self._names() if name <= path.name]
            remains = [name for name in names if not self._folders.holds(name)]
            for name in {*remains, *replaced(names, self._keep, remains)}:
                self._folders.remove(name)
        except Exception as error:  # drivers raise their own classes, which are no OSError
            raise SnapshotError(
                f"snapshot {path.name} could not be copied to {self._folders.uri} ({FIELD}): {words(error)}. "
                "The one on the syncer's volume is intact."
            ) from error

    def holds(self, name: str) -> bool:
        """Whether there is a complete copy of the snapshot with this name. Raises `SnapshotError`."""
        try:
            return self._folders.holds(name)
        except Exception as error:  # as above
            raise SnapshotError(self._folders.refusal(error)) from error

    def restore(self, store: SnapshotStore) -> Path | None:
        """Copy the newest usable snapshot into an empty local store. None if there are no copies, or the store is not empty.

        Raises `SnapshotError` if there are copies and none can be used.
        """
        if store.paths():
            return None
        skipped: dict[str, str] = {}
        try:
            for name in [name for name in self._names() if self._folders.holds(name)]:
                try:
                    return store.adopt(name, lambda folder, name=name: self._download(name, folder))  # type: ignore[misc]
                except Unusable as reason:
                    _log.warning("snapshot %s/%s cannot be used: %s", self._folders.uri, name, reason)
                    skipped[name] = str(reason)
        except SnapshotError:
            raise
        except Exception as error:  # as above
            raise SnapshotError(self._folders.refusal(error)) from error
        if skipped:
            raise none_usable(self._folders.uri, skipped)
        return None

    def _download(self, name: str, folder: Path) -> None:
        self._folders.get(name, folder, [TENSORS_FILE])

    def _names(self) -> list[str]:
        """Names of the folders that are called like snapshots, newest first."""
        numbered = [(generation, name) for name in self._folders.names() if (generation := generation_of(name)) is not None]
        return [name for _, name in sorted(numbered, reverse=True)]
