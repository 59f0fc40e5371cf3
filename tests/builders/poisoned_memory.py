"""Memory that the runtime gives back is overwritten at once, with NaN for float32: code that still reads it gets wrong numbers."""

from collections.abc import Iterator

import pytest
from diloco.algorithm.spare import Bytes, SpareMemory


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    back = SpareMemory._back

    def poison(memory: SpareMemory, whole: Bytes) -> None:
        whole.fill(0xFF)
        back(memory, whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpareMemory, "_back", poison)
        yield
