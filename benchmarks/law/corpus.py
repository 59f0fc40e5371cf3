"""Text for the law: Python source of this interpreter and of packages that uv.lock pins, the same on every machine that has them."""

from __future__ import annotations

import functools
import itertools
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from diloco.trainers.text import ByteCorpus, read_bytes, split_files
from numpy.typing import NDArray

_PACKAGES: Final = ("torch", "transformers")
"""Both have some 50 MB of it."""


def read_corpus(*, context: int, seed: int, tokens: int, held_out: int) -> ByteCorpus:
    """Return text to train `tokens` tokens on without seeing one twice, and `held_out` bytes of other files.

    Raises ValueError where there is less.
    """
    text, unseen = _texts(tokens + context, held_out)
    if len(text) < tokens + 1 or len(unseen) < held_out:
        raise ValueError(f"there are {len(text):,} bytes to train on and {len(unseen):,} held out; {tokens:,} and {held_out:,} are needed")
    return ByteCorpus(text, unseen, context=context, seed=seed)


@functools.cache
def _texts(most: int, most_held_out: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (to train on, held out), of which every piece has some of each root."""
    splits = [split_files(root) for root in _roots()]
    train, held_out = (
        [path for path in itertools.chain.from_iterable(itertools.zip_longest(*files)) if path is not None]
        for files in zip(*splits, strict=True)
    )
    return read_bytes(train, most), read_bytes(held_out, most_held_out)


def _roots() -> list[Path]:
    found = [Path(sysconfig.get_path("stdlib"))]
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"the law's text is that of {package}, which is not installed: make setup")
        found.append(Path(spec.origin).parent)
    return found
