"""A unit that takes the whole model again and again waits between its joins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from builders.exchange import LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner, a_round
from builders.shardings import rows
from diloco.syncer.job import join_brake
from diloco.syncer.job.join_brake import AT_ONCE, SECONDS, JoinBrake


def test_some_models_in_a_row_are_free_and_then_one_comes_in_each_interval() -> None:
    brake = JoinBrake()
    for _ in range(AT_ONCE):
        assert brake.wait("u", 1.0, 100.0) == 0.0
        brake.sent("u", 1.0, 100.0)
    assert brake.wait("u", 1.0, 100.0) == SECONDS
    assert brake.wait("u", 1.0, 100.0 + SECONDS / 3) == pytest.approx(SECONDS * 2 / 3)
    assert brake.wait("u", 1.0, 100.0 + SECONDS) == 0.0
    assert brake.wait("other", 1.0, 100.0) == 0.0


def test_models_are_forgotten_with_time() -> None:
    brake = JoinBrake()
    for now in range(1000):
        assert brake.wait("u", 1.0, now * SECONDS) == 0.0
        brake.sent("u", 1.0, now * SECONDS)


def test_parts_of_the_model_count_as_what_they_are_and_nothing_is_free() -> None:
    brake = JoinBrake()
    for _ in range(3 * AT_ONCE):  # thirds are no floats, and add up to what is free all the same
        assert brake.wait("u", 1 / 3, 0.0) == 0.0
        brake.sent("u", 1 / 3, 0.0)
    assert brake.wait("u", 1 / 3, 0.0) == pytest.approx(SECONDS / 3)
    assert brake.wait("u", 0.0, 0.0) == 0.0


@pytest.fixture
def syncer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSyncer]:
    """Run the syncer of a job that has parameters. Nothing is forgotten during a test, however slow the machine is."""
    monkeypatch.setattr(join_brake, "SECONDS", 1e6)
    with LocalSyncer(Place(tmp_path, job_file(training(100_000)))) as syncer, ScriptedLearner(syncer, unit="first") as first:
        first.hello().hear("welcome")
        first.seed()
        until(lambda: syncer.report().seeded, "the seed")
        yield syncer


def versions_of_merges(unit: ScriptedLearner) -> list[int]:
    """Join, and train until every fragment is merged; return the versions that the unit holds then."""
    unit.join().adopt(len(unit.fragments))
    for number in range(1, len(unit.fragments) + 1):
        a_round([unit], number)
    return [version for _, (version, _) in sorted(unit.held[-1].items())]


def is_held_up(raw: ScriptedLearner) -> None:
    """A stream that has said Hello."""
    assert raw.status() is grpc.StatusCode.UNAVAILABLE
    assert f"unit u was sent the whole model {AT_ONCE} times in a row; it may join again in" in raw.ending()


@pytest.mark.slow
def test_a_unit_that_joins_anew_again_and_again_is_told_when_it_may_and_the_others_are_not(syncer: LocalSyncer) -> None:
    for attempt in range(1, AT_ONCE + 1):
        with ScriptedLearner(syncer, unit="u", attempt=attempt) as raw:
            raw.hello().hear("welcome")
    with ScriptedLearner(syncer, unit="u", attempt=AT_ONCE + 1) as raw:
        is_held_up(raw.hello())
    with ScriptedLearner(syncer, unit="other") as other:
        other.hello().hear("welcome")


@pytest.mark.slow
def test_a_unit_that_resumes_and_says_that_it_holds_nothing_is_held_up_as_well(syncer: LocalSyncer) -> None:
    with ScriptedLearner(syncer, unit="u") as raw:
        incarnation = raw.welcomed().incarnation
    for _ in range(AT_ONCE - 1):
        with ScriptedLearner(syncer, unit="u") as raw:
            assert raw.welcomed(incarnation=incarnation, versions=[]).resumed
    with ScriptedLearner(syncer, unit="u") as raw:
        is_held_up(raw.hello(incarnation=incarnation, versions=[]))


@pytest.mark.slow
def test_a_unit_that_resumes_with_what_it_holds_is_never_held_up(syncer: LocalSyncer) -> None:
    with ScriptedLearner(syncer, unit="u") as raw:
        versions = versions_of_merges(raw)
        incarnation = raw.incarnation
    for _ in range(2 * AT_ONCE):
        with ScriptedLearner(syncer, unit="u") as raw:
            assert raw.welcomed(incarnation=incarnation, versions=versions).resumed


@pytest.mark.slow
def test_ranks_take_their_portions_and_one_that_takes_its_own_again_and_again_is_held_up(syncer: LocalSyncer) -> None:
    """Two ranks with half of the rows each: their joins are one model, and each further join of the follower is half of one."""
    with ScriptedLearner(syncer, unit="u", sharding=rows(2)) as unit:
        versions = versions_of_merges(unit)
        share = sum(own.size for own in unit.portions[1]) / sum(fragment.size for fragment in unit.fragments)
        for _ in range(int((AT_ONCE - 1) / share)):
            unit.reopen(1)
            assert unit.welcomed_rank(1, incarnation=unit.incarnation, versions=[]).resumed
        unit.reopen(1)
        is_held_up(unit.hello_of(1, incarnation=unit.incarnation, versions=[]))
        unit.reopen(1)
        assert unit.welcomed_rank(1, incarnation=unit.incarnation, versions=versions).resumed
