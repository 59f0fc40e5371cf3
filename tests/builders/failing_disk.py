"""A disk that fails when it is asked for some entries, as a network file system does for a moment."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem


def failing_info(patch: pytest.MonkeyPatch, entry: str) -> None:
    """Make fsspec's local disk fail with EIO for every file or folder of this name."""
    real = LocalFileSystem.info

    def info(self: LocalFileSystem, path: Any, **kwargs: Any) -> Any:
        if os.fspath(path).rpartition("/")[2] == entry:
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return real(self, path, **kwargs)

    patch.setattr(LocalFileSystem, "info", info)
