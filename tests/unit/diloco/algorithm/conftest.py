"""Fixtures of the algorithm's tests."""

from collections.abc import Iterator

import pytest
from diloco import kernels


@pytest.fixture(params=[x for x in kernels.LEVELS if x <= kernels.LEVEL], scope="module")
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each level of the processor that this machine has, one after the other: all must give the same bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_loops", kernels._bound(request.param))
        yield request.param
