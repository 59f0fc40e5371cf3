"""Folders of files below one URI: `file://`, `s3://`, `gs://`, or whatever else fsspec has a driver for.

An object store has no atomic rename, so the manifest is uploaded last and removed first. A folder without manifest does not count.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diloco.object_stores import REMEDY, exists, file_system, words
from diloco.snapshots.store import MANIFEST_FILE, SnapshotError, read_file

FIELD = "spec.training.checkpoint.uri"


class RemoteFolders:
    """The folders below one URI. Blocking, so call it from a thread. Drivers raise their own classes, which are no OSError: catch
    Exception, and make a message with `refusal`."""

    def __init__(self, uri: str) -> None:
        """Raises `SnapshotError` if there is no driver for `uri`."""
        self.uri = uri
        try:
            self._fs: Any
            self._fs, self._base = file_system(uri)
        except (ImportError, ValueError) as error:
            raise SnapshotError(f"there is no way to {uri} ({FIELD}): {error}. In the image: {REMEDY}") from error

    def put(self, folder: Path, files: Sequence[str]) -> None:
        """Upload these files of a local folder, and then its manifest."""
        target = f"{self._base}/{folder.name}"
        self._fs.makedirs(target, exist_ok=True)
        for file in (*files, MANIFEST_FILE):
            self._fs.put_file(str(folder / file), f"{target}/{file}")
        self._fs.invalidate_cache()

    def get(self, name: str, folder: Path, files: Sequence[str]) -> None:
        """Download these files of the folder `name`, and its manifest, to `folder`."""
        for file in (*files, MANIFEST_FILE):
            self._fs.get_file(f"{self._base}/{name}/{file}", str(folder / file))

    def write(self, name: str, file: str, data: bytes | bytearray) -> None:
        self._fs.makedirs(f"{self._base}/{name}", exist_ok=True)
        self._fs.pipe_file(f"{self._base}/{name}/{file}", data)

    def read(self, name: str, file: str, most: int, heard: Callable[[], None] | None = None) -> bytes:
        """Raises Unusable as `read_file` does. `heard`: as there."""
        return read_file(self._fs, f"{self._base}/{name}", file, most, heard)

    def remove(self, name: str) -> None:
        """Remove a folder. Idempotent."""
        # The manifest goes first: an interrupted removal must not look like a damaged folder.
        if self.holds(name):
            self._fs.rm_file(f"{self._base}/{name}/{MANIFEST_FILE}")
        if exists(self._fs, f"{self._base}/{name}"):
            self._fs.rm(f"{self._base}/{name}", recursive=True)

    def holds(self, name: str) -> bool:
        """Whether the folder is complete: whether it has a manifest."""
        return exists(self._fs, f"{self._base}/{name}/{MANIFEST_FILE}")

    def files(self, name: str) -> list[str]:
        """The names of a folder's files without the manifest, sorted."""
        return sorted(file for file in self._in(f"{self._base}/{name}") if file != MANIFEST_FILE)

    def names(self) -> list[str]:
        """The names of all entries, in any order, complete or not."""
        self._fs.invalidate_cache()  # another process may have written
        if not exists(self._fs, self._base):
            return []
        return self._in(self._base)

    def _in(self, path: str) -> list[str]:
        return [str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in self._fs.ls(path, detail=False)]

    def refusal(self, error: Exception) -> str:
        """A message for people about a read that a driver refused."""
        return f"{self.uri} ({FIELD}) cannot be read: {words(error)}"
