"""Fixtures of the runtime's tests."""

from collections.abc import Iterator

import pytest
from diloco.algorithm.spare import Bytes, SpareMemory


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    """Memory that is given back is overwritten at once, with NaN for float32: code that still reads it gets wrong numbers."""
    back = SpareMemory._back

    def poison(memory: SpareMemory, whole: Bytes) -> None:
        whole.fill(0xFF)
        back(memory, whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpareMemory, "_back", poison)
        yield
