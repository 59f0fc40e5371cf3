"""What a learner's reports say of its adoptions."""

from __future__ import annotations

from diloco.algorithm.events import Metadata
from diloco.syncer.job import reported_adoptions
from diloco.syncer.job.reported_adoptions import ReportedAdoptions


def report(step: int, *since: int) -> Metadata:
    return Metadata(step, since, since, 1.0)


def adopted(found: ReportedAdoptions, metadata: Metadata, seen: int) -> list[tuple[int, int, int]]:
    return list(found.reported("u/1/1", metadata, seen))


def test_steps_without_an_adoption_say_nothing() -> None:
    found = ReportedAdoptions()
    found.merged(0, 4)
    assert adopted(found, report(5, 5, 5), 4) == []
    assert adopted(found, report(6, 6, 6), 4) == []
    assert adopted(found, report(9, 9, 9), 4) == []


def test_a_counter_that_begins_anew_is_an_adoption_at_that_local_step() -> None:
    found = ReportedAdoptions()
    found.merged(1, 4)
    assert adopted(found, report(5, 5, 5), 3) == []
    assert adopted(found, report(8, 8, 2), 4) == [(1, 4, 6)]


def test_a_learner_that_does_not_know_the_newest_version_has_adopted_the_one_before() -> None:
    found = ReportedAdoptions()
    found.merged(0, 4)
    found.merged(0, 8)
    assert adopted(found, report(5, 5), 3) == []
    assert adopted(found, report(6, 0), 7) == [(0, 4, 6)]
    assert adopted(found, report(7, 0), 8) == [(0, 8, 7)]


def test_another_session_begins_anew() -> None:
    found = ReportedAdoptions()
    found.merged(0, 4)
    assert adopted(found, report(5, 5), 4) == []
    assert list(found.reported("u/2/2", report(1, 1), 4)) == []


def test_sessions_that_are_long_gone_are_forgotten() -> None:
    found = ReportedAdoptions()
    for number in range(reported_adoptions.MOST_SESSIONS + 5):
        assert list(found.reported(f"u/1/{number}", report(1, 1), 0)) == []
    assert len(found._reported) == reported_adoptions.MOST_SESSIONS
