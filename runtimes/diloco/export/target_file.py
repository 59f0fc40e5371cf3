"""A file that appears under its name only when it is complete and durable.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from diloco.durable import fsync_directory
from diloco.export.places import ExportError

DEFAULT_NAME = "model.safetensors"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class TargetFile:
    """A context manager. Write all pieces, then call `commit`; without `commit` nothing stays. Every method raises ExportError if the
    operating system refuses. The constructor also raises it if the path exists and is no regular file."""

    def __init__(self, path: Path) -> None:
        """`path`: the file, or a folder for a file with the default name."""
        self.path = path
        if stat.S_ISDIR(self._mode()):
            self.path = path / DEFAULT_NAME
        mode = self._mode()
        if not stat.S_ISREG(mode):
            raise ExportError(
                f"{self.path} is {_KINDS[stat.S_IFMT(mode)]}: give the name of a regular file, or of one that is not there yet"
            )
        # Resolved, because a rename onto a symbolic link would replace the link.
        self._place = self.path.resolve()
        self.bytes = 0
        self._temporary = self._place.with_name(f".{self._place.name}.{secrets.token_hex(4)}.part")
        self._digest = hashlib.sha256()
        self._file: BinaryIO

    def __enter__(self) -> Self:
        try:
            self._file = self._temporary.open("xb")
        except OSError as error:
            raise self._refused(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written so far, hexadecimal."""
        return self._digest.hexdigest()

    def write(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            raise self._refused(error) from error
        self._digest.update(piece)
        self.bytes += len(piece)

    def commit(self) -> None:
        """Make the file durable, and give it its name. An older file with that name is replaced."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._temporary.replace(self._place)
            fsync_directory(self._place.parent)
        except OSError as error:
            raise self._refused(error) from error

    def _mode(self) -> int:
        """Type and rights of the file at the path, after symbolic links. If there is none, the type of a regular file."""
        try:
            return self.path.stat().st_mode
        except FileNotFoundError:
            return stat.S_IFREG
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> ExportError:
        return ExportError(f"{self.path} cannot be written: {error.strerror or error}")
