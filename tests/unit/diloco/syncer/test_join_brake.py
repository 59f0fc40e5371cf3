"""A unit that takes the whole model again and again waits between its joins."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from builders.exchange import LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.syncer.join_brake import AT_ONCE, SECONDS, JoinBrake


def test_some_joins_in_a_row_are_free_and_then_one_comes_in_each_interval() -> None:
    brake = JoinBrake()
    for _ in range(AT_ONCE):
        assert brake.wait("u", 100.0) == 0.0
        brake.joined("u", 100.0)
    assert brake.wait("u", 100.0) == SECONDS
    assert brake.wait("u", 100.0 + SECONDS / 3) == pytest.approx(SECONDS * 2 / 3)
    assert brake.wait("u", 100.0 + SECONDS) == 0.0
    assert brake.wait("other", 100.0) == 0.0


def test_joins_are_forgotten_with_time() -> None:
    brake = JoinBrake()
    for now in range(1000):
        assert brake.wait("u", now * SECONDS) == 0.0
        brake.joined("u", now * SECONDS)


def test_a_unit_that_joins_anew_again_and_again_is_told_when_it_may_and_the_others_are_not(tmp_path: Path) -> None:
    with LocalSyncer(Place(tmp_path, job_file(training(100_000)))) as syncer, ScriptedLearner(syncer, unit="first") as first:
        first.hello().hear("welcome")
        first.seed()
        until(lambda: syncer.report().seeded, "the seed")
        for attempt in range(1, AT_ONCE + 1):
            with ScriptedLearner(syncer, unit="u", attempt=attempt) as raw:
                raw.hello().hear("welcome")
        with ScriptedLearner(syncer, unit="u", attempt=AT_ONCE + 1) as raw:
            assert raw.hello().status() is grpc.StatusCode.UNAVAILABLE
            assert f"unit u has taken the whole model {AT_ONCE} times in a row; it may do so again in" in raw.ending()
        with ScriptedLearner(syncer, unit="other") as other:
            other.hello().hear("welcome")
