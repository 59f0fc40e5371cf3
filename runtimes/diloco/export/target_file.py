"""A file that appears under its name only when it is complete and durable.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from diloco.durable import fsync_directory
from diloco.export.places import ExportError


class TargetFile:
    """A context manager. Write all pieces, then `commit`; without it nothing stays. Every method raises ExportError when the operating
    system refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
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
        """Return the SHA-256 of what was written so far, hexadecimal."""
        return self._digest.hexdigest()

    def write(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            raise self._refused(error) from error
        self._digest.update(piece)
        self.bytes += len(piece)

    def commit(self) -> None:
        """Make it durable, and give it its name; an older file of that name is replaced."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._temporary.replace(self.path)
            fsync_directory(self.path.parent)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> ExportError:
        return ExportError(f"{self.path} cannot be written: {error.strerror or error}")
