"""The folder that keeps between runs what takes long to make, and the lock on it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of this repository."""
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diloco-operator" / "nodes"


class InUse(Exception):
    """Another run has the cache: two sets of nodes cannot share one image store."""


def key(*parts: object) -> str:
    """A short name for what is made from these parts."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:12]


def tree_key(*paths: Path) -> str:
    """A short name for the content of files and folders, without Python's bytecode."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(path.parent)}\0{file.stat().st_mode:o}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, made by `make` if it does not exist. `make` fills a folder beside it, which is renamed when it is complete: so
    no caller takes a half-made one for `folder`."""
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(folder)
    return folder


@contextlib.contextmanager
def held() -> Iterator[int]:
    """Lock the cache until the end of the block. A process that inherits the file descriptor, which is yielded, keeps the lock until it
    ends too. Raises `InUse`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(
                f"another run of real nodes uses {FOLDER}; wait for its end, or set XDG_CACHE_HOME to have another cache"
            ) from error
        yield lock.fileno()
