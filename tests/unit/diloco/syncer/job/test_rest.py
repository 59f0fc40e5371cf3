"""Learners of a job whose quorum is missing, through a real syncer: they rest, and are no worse for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.protocol.diloco_pb2 import UnitReport
from diloco.session import session

MOST = 16
"""Local steps of a learner whose clock stands still from the beginning at H = 24: four at the start, 1.5 * 24/4 + 2 * 1.5 with which the
clock catches up."""
ON_THE_WAY = 60
"""Steps of 10 ms that a learner may take until it hears that it is to rest, on a busy machine. Without a rest it would take thousands."""


def place_for(path: Path) -> Place:
    return Place(path, job_file(training(100_000, sync_interval=24, fragments=2, overlap_steps=2, quorum=2)))


def resting(syncer: LocalSyncer, unit: str) -> bool:
    return syncer.unit(unit).resting_seconds > 0


@pytest.mark.slow
def test_a_learner_whose_quorum_is_missing_rests_says_so_and_trains_on_with_the_second_learner(
    tmp_path: Path, learners: list[LocalLearner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "_WAIT_LOG_INTERVAL", 0.2)
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        early = LocalLearner(place, syncer.address, "early", step_seconds=0.01).start()
        learners.append(early)
        until(lambda: resting(syncer, "early"), "the rest")
        # The syncer says so to the learner, which steps on until it has heard it.
        until(lambda: "rests until a quorum of 2 learners trains" in caplog.text, "its log to say so")
        steps = early.steps
        assert MOST <= steps <= MOST + ON_THE_WAY
        ledger = syncer.syncer.engine.work.ledger
        until(lambda: syncer.call(ledger.summary).leased > 0, "its work to be leased")
        leased = syncer.call(ledger.summary).leased

        def heard_lately_in_a_long_rest() -> bool:
            found = syncer.unit("early")
            return found.resting_seconds > 1.5 and found.seconds_since_heard < 1.0

        until(heard_lately_in_a_long_rest, "it to say that it is there, so that it does not stall")
        assert syncer.unit("early").state == UnitReport.CONTRIBUTING
        assert early.steps <= steps + 1
        assert syncer.call(ledger.summary).leased == leased
        late = LocalLearner(place, syncer.address, "late", step_seconds=0.01).start()
        learners.append(late)
        until(lambda: syncer.report().t >= 48, "two rounds of the outer clock")
        until(lambda: not resting(syncer, "early"), "the end of the rest")
        assert early.steps > steps
        assert 0 < syncer.unit("early").steps_per_sync <= 1.5 * 24 + 4 + ON_THE_WAY
        assert all(syncer.unit(name).contributions > 0 for name in ("early", "late"))


def test_a_rest_ends_with_the_connection(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer:
        with ScriptedLearner(syncer) as first:
            first.join().seed()
            first.step(1).step(2 * MOST)
            assert first.hear("rest").rest.quorum == 2
        until(lambda: syncer.unit("u-0").state == UnitReport.DISCONNECTED, "the loss to be seen")
        assert not resting(syncer, "u-0")
