"""Fixtures of the tests of the syncer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.exchange import LocalLearner


@pytest.fixture
def learners() -> Iterator[list[LocalLearner]]:
    """Learners that are let go at the end of the test."""
    started: list[LocalLearner] = []
    yield started
    for learner in started:
        learner.drain()
    for learner in started:
        learner.wait()
