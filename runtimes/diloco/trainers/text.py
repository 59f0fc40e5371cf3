"""Text that every machine with Python has: the source of its standard library, as bytes.

The corpus depends on the files alone. They come in the order of a hash of their path, so that a limit takes a fair sample, and some are
held out by the same hash. Tests are left out, because some distributions do not ship them. Learners of one job must run the same version of
Python, or their sequence numbers mean different text.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diloco.trainers.windows import TokenWindows

_LEFT_OUT = frozenset({"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"})
_HELD_OUT_IN = 20
"""One file in this many is held out."""


def source_files(root: Path | None = None) -> list[Path]:
    """The Python files under `root` (default: the standard library's folder), in the order of the hash of their relative path, without
    those in `_LEFT_OUT` folders."""
    base = root or Path(sysconfig.get_path("stdlib"))
    files = [path for path in base.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(base).parts[:-1])]
    if not files:
        raise FileNotFoundError(f"no Python source under {base}: pass --corpus with a folder that has some")
    return sorted(files, key=lambda path: _order(path.relative_to(base).as_posix()))


def split_files(root: Path | None = None) -> tuple[list[Path], list[Path]]:
    """Return (files to train on, held-out files). The split is the same on every machine with the same files."""
    base = root or Path(sysconfig.get_path("stdlib"))
    train: list[Path] = []
    held_out: list[Path] = []
    for path in source_files(base):
        number = int(_order(path.relative_to(base).as_posix())[:8], 16)
        (held_out if number % _HELD_OUT_IN == 0 else train).append(path)
    return train, held_out


def _order(relative: str) -> str:
    return hashlib.sha256(relative.encode()).hexdigest()


def read_bytes(paths: Sequence[Path], most: int) -> NDArray[np.uint8]:
    """The files' contents one after the other, at most `most` bytes: uint8 [n]."""
    pieces: list[bytes] = []
    left = most
    for path in paths:
        if left <= 0:
            break
        pieces.append(path.read_bytes()[:left])
        left -= len(pieces[-1])
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


class ByteCorpus(TokenWindows[np.uint8]):
    """The text under a folder. Every byte is a token."""

    @classmethod
    def read(cls, *, context: int, seed: int, root: Path | None = None, most: int = 8_000_000, most_held_out: int = 32_768) -> ByteCorpus:
        """The corpus under `root` (default: the standard library), with at most `most` bytes to train on and `most_held_out` held out."""
        train, held_out = split_files(root)
        return cls(read_bytes(train, most), read_bytes(held_out, most_held_out), context=context, seed=seed)
