from __future__ import annotations

from pathlib import Path

from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from diloco.contract import MOST_PAUSE
from diloco.syncer.config import Timeouts
from diloco.syncer.job.shutdown_grace import ShutdownGrace
from diloco.syncer.reporting.unit_stats import UnitStatsTable
from diloco.syncer.streams.learner_stream import LearnerStreams
from diloco.syncer.streams.sessions import JoinRequest, SessionRegistry

JOB = "job-uid"
TIMEOUTS = Timeouts(farewell=60.0, linger=10.0, reconnect_window=5.0)


class AtTheEnd:
    """A syncer whose job reached its end at second 100, with what it knows of its units."""

    def __init__(self, *units: str, continued_at: float | None = None, began_finished: bool = False) -> None:
        """`units`: of the state that this process began with, at `continued_at`."""
        self.streams = LearnerStreams()
        self.sessions = SessionRegistry(JOB, {}, TIMEOUTS.reconnect_window)
        self.units = UnitStatsTable({unit: {"attempt": 1, "refused": {}} for unit in units})
        self.shutdown_grace = ShutdownGrace(
            TIMEOUTS, self.streams, self.sessions, self.units, continued_at=continued_at, began_finished=began_finished
        )
        self.shutdown_grace.finished_at = 100.0

    def comes(self, unit: str) -> None:
        """It joins, hears of the end, and is connected."""
        self.units.of(unit).joined(1, 100.0)
        stream = self.streams.open()
        self.sessions.join(JoinRequest(JOB, unit, 1, unit.encode()), stream.number)
        stream.session = self.sessions.session(unit)

    def says_bye(self, unit: str) -> None:
        self.units.of(unit).finished(101.0)
        for stream, session in list(self.streams.joined()):
            if session.unit == unit:
                self.sessions.leave(unit, stream.number)
                stream.session = None


def test_a_job_that_has_not_ended_has_no_farewell() -> None:
    syncer = AtTheEnd()
    syncer.shutdown_grace.finished_at = None
    assert syncer.shutdown_grace.until is None


def test_it_waits_for_the_units_that_are_connected_and_ends_with_their_byes() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    assert syncer.shutdown_grace.until == 160.0
    syncer.says_bye("a")
    assert syncer.shutdown_grace.until == 100.0


def test_a_unit_that_announces_pause_after_pause_is_waited_for_a_day() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    for now in range(100, 200_000, 40_000):
        syncer.units.of("a").alive(1, f"evaluation {now}", MOST_PAUSE, now)
    assert syncer.shutdown_grace.until == 100.0 + MOST_PAUSE + 60.0


def test_a_unit_to_which_the_last_versions_are_still_coming_is_waited_for_and_no_longer_than_a_day() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    ((stream, _),) = syncer.streams.joined()
    stream.acknowledged_at = 186.0
    assert syncer.shutdown_grace.until == 246.0
    stream.acknowledged_at = 1e6
    assert syncer.shutdown_grace.until == 100.0 + MOST_PAUSE + 60.0


def test_versions_that_came_long_before_the_end_lengthen_nothing() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    ((stream, _),) = syncer.streams.joined()
    stream.acknowledged_at = 50.0
    assert syncer.shutdown_grace.until == 160.0


def test_what_arrives_at_a_learner_is_noted_with_its_time(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = Place(tmp_path, job_file(training(100_000)))
    with LocalSyncer(place) as syncer:
        learners.append(LocalLearner(place, syncer.address, "u").start())
        streams = syncer.syncer.engine._job.streams
        until(lambda: any(stream.acknowledged_at for stream in syncer.call(lambda: list(streams))), "an acknowledgement")


def test_it_waits_for_a_unit_whose_stream_broke() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    ((stream, _),) = syncer.streams.joined()
    syncer.sessions.stream_lost("a", stream.number, 100.0)
    stream.session = None
    assert syncer.shutdown_grace.until == 110.0


def test_it_waits_for_a_unit_that_was_told_to_join_again_until_it_comes_or_stays_away() -> None:
    syncer = AtTheEnd()
    syncer.comes("a")
    ((stream, _),) = syncer.streams.joined()
    syncer.sessions.leave("a", stream.number)  # its contribution was refused
    syncer.sessions.expect("a", 100.0)
    stream.session = None
    assert syncer.shutdown_grace.until == 110.0
    syncer.comes("a")
    syncer.says_bye("a")
    assert syncer.shutdown_grace.until == 100.0
    syncer.sessions.expect("a", 100.0)
    syncer.sessions.expire(105.0)
    assert syncer.shutdown_grace.until == 100.0, "its reconnect window is over"


def test_a_process_that_was_started_again_shortly_before_the_end_waits_until_its_units_have_found_it() -> None:
    syncer = AtTheEnd("a", "b", continued_at=97.0)
    syncer.comes("a")
    syncer.says_bye("a")
    assert syncer.shutdown_grace.until == 107.0, "b is still on its way back: 10 s from the start of the process"
    syncer.comes("b")
    syncer.says_bye("b")
    assert syncer.shutdown_grace.until == 100.0


def test_a_process_that_was_started_again_long_before_the_end_does_not_wait_for_units_that_never_came_back() -> None:
    syncer = AtTheEnd("a", "gone", continued_at=20.0)
    syncer.comes("a")
    syncer.says_bye("a")
    until = syncer.shutdown_grace.until
    assert until is not None
    assert until <= 100.0


def test_a_process_that_found_a_finished_job_waits_for_units_that_it_does_not_know() -> None:
    assert AtTheEnd(continued_at=100.0, began_finished=True).shutdown_grace.until == 110.0
