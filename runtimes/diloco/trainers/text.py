"""Text that every machine with Python has: the source of its standard library, as bytes.

The corpus is a function of the files and nothing else: files in the order of a hash of their path, so that a cap takes a fair sample,
tests left out, as some distributions do not ship them. Files are held out by the same hash. Learners of one job must run the same
version of Python, or their sequence numbers mean different text.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diloco.data.sampling import sample_indices
from diloco.wording import plural

_LEFT_OUT = frozenset({"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"})
_HELD_OUT_IN = 20
"""One file in so many is held out."""

type Windows = NDArray[np.uint8]
"""uint8 [batch, context + 1]: inputs are all but the last byte of a row, targets all but the first."""


def source_files(root: Path | None = None) -> list[Path]:
    """Every Python file under `root` (default: the standard library's folder), in the order of the hash of its relative path."""
    base = root or Path(sysconfig.get_path("stdlib"))
    found = [path for path in base.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(base).parts[:-1])]
    if not found:
        raise FileNotFoundError(f"no Python source under {base}: pass --corpus with a folder that has some")
    return sorted(found, key=lambda path: _order(path.relative_to(base).as_posix()))


def split_files(root: Path | None = None) -> tuple[list[Path], list[Path]]:
    """(to train on, held out): disjoint, and the same on every machine with the same files."""
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


class ByteCorpus:
    """Training windows by sequence number, and a fixed set of held-out windows.

    The text is cut into windows of `context` bytes, without overlap but for the target of the last byte. Sequence numbers go through the
    windows in a pseudo-random order, another one in every epoch: number n is the n-th sample of the whole job, independent of the
    unit that trains it.
    """

    def __init__(self, train: NDArray[np.uint8], held_out: NDArray[np.uint8], *, context: int, seed: int) -> None:
        """`train`, `held_out`: uint8 [n]. Raises ValueError when one of them has less than one window."""
        for name, text in (("training", train), ("held-out", held_out)):
            if len(text) < context + 1:
                raise ValueError(f"the {name} text has {plural(len(text), 'byte')}, and a window of context {context} takes {context + 1}")
        self._train = train
        self._held_out = held_out
        self._context = context
        self._seed = seed
        self.windows = (len(train) - 1) // context
        """Samples of one epoch."""
        self.held_out_windows = (len(held_out) - 1) // context
        self.held_out_tokens = self.held_out_windows * context

    @classmethod
    def read(cls, *, context: int, seed: int, root: Path | None = None, most: int = 8_000_000, most_held_out: int = 32_768) -> ByteCorpus:
        """The corpus under `root` (default: the standard library), at most `most` bytes to train on and `most_held_out` held out."""
        train, held_out = split_files(root)
        return cls(read_bytes(train, most), read_bytes(held_out, most_held_out), context=context, seed=seed)

    def batch(self, numbers: NDArray[np.int64]) -> Windows:
        """The samples of these sequence numbers (int64 [batch], from 0): uint8 [batch, context + 1]."""
        return _rows(self._train, sample_indices(numbers, self.windows, self._seed), self._context)

    def held_out(self, batch: int = 32) -> Iterator[Windows]:
        """Every held-out window once, in order, at most `batch` at a time."""
        for start in range(0, self.held_out_windows, batch):
            yield _rows(self._held_out, np.arange(start, min(start + batch, self.held_out_windows)), self._context)


def _rows(text: NDArray[np.uint8], windows: NDArray[np.int64], context: int) -> Windows:
    rows: Windows = text[windows[:, None] * context + np.arange(context + 1)]
    return rows
