"""Where things that take long to make are kept between runs, and who may use them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder of this repository."""
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diloco-operator" / "nodes"


class InUse(Exception):
    """Another run has the cache: two sets of nodes cannot share one image store."""


def key(*parts: object) -> str:
    """Return a short name for what is made from these parts."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:12]


def tree_key(*paths: Path) -> str:
    """Return a short name for the content of files and folders; what Python compiled is left out."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(path.parent)}\0{file.stat().st_mode:o}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, made by `make` in a folder beside it that takes its name when it is whole: a half-made one is never taken for it."""
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(folder)
    return folder


@contextlib.contextmanager
def held() -> Iterator[int]:
    """Hold the cache until the end of the block, and for every process that inherited the file descriptor. Raises `InUse`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(
                f"another run of real nodes uses {FOLDER}; wait for its end, or set XDG_CACHE_HOME to have another cache"
            ) from error
        yield lock.fileno()
