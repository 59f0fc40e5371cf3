"""Fixtures of the tests of the learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.exchange import Place, job_file, training, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner, joined


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, job_file(training(1000)))


@pytest.fixture
def syncer(place: Place) -> Iterator[ScriptedSyncer]:
    with ScriptedSyncer(place, weights()) as running:
        yield running


@pytest.fixture
def learner(place: Place, syncer: ScriptedSyncer) -> Iterator[Learner]:
    started = Learner(place, syncer)
    yield started
    started.end()


@pytest.fixture
def stream(syncer: ScriptedSyncer, learner: Learner) -> ScriptedStream:
    """Join a long job, see `joined`."""
    return joined(learner, syncer)
