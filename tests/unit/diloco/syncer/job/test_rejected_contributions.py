"""What becomes of a learner whose contributions the guards refuse, over loopback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.algorithm.effects import ContributionRejected, Reason, Refusal
from diloco.algorithm.guards import ARMED_AFTER
from diloco.algorithm.quarantine import REFUSALS
from diloco.contract import Exit
from diloco.protocol.diloco_pb2 import Alive, FromLearner, Refused, UnitReport

LONG = 100_000
"""Outer steps of a job that is to last as long as its test."""
ARMED = 20 * ARMED_AFTER
"""Outer steps after which the guards surely know the norms of this job."""


def refused(syncer: LocalSyncer, unit: str) -> dict[str, int]:
    return dict(syncer.unit(unit).refused)


def largest(syncer: LocalSyncer) -> float:
    core = syncer.core
    return max(float(np.abs(core.value(fragment.index)).max()) for fragment in core.fragments)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_a_learner_takes_the_jobs_parameters_anew_after_a_poisoned_contribution(
    tmp_path: Path, learners: list[LocalLearner], compression: str
) -> None:
    sick = False

    def spoil(step: int, arrays: dict[str, np.ndarray]) -> None:
        # The syncer counts before it closes the stream, so nothing is spoiled once the learner has joined again.
        if sick and "Outlier" not in syncer.syncer.engine._job.unit_stats.of("bad").refused:
            arrays["w1"][0, 0] = 1e30

    place = Place(tmp_path, job_file(training(LONG, compression=compression)))
    with LocalSyncer(place) as syncer:
        good = LocalLearner(place, syncer.address, "good").start()
        bad = LocalLearner(place, syncer.address, "bad", spoil=spoil).start()
        learners += [good, bad]
        until(lambda: syncer.report().t > ARMED and bad.steps > 0, "the guards to know the job")
        sick = True
        until(lambda: refused(syncer, "bad").get("Outlier") == 1, "the contribution to be refused")
        before = syncer.unit("bad")
        until(lambda: syncer.unit("bad").contributions > before.contributions + 2, "it to contribute again")
        assert bad.left is None, "it is the same process"
        assert refused(syncer, "bad")["Outlier"] == 1
        assert "Outlier" not in refused(syncer, "good")
        assert syncer.call(largest, syncer) < 10, "training goes from 0 to 1; momentum overshoots"
        assert np.abs(bad.arrays["w1"]).max() < 10


def test_a_unit_between_two_sessions_when_the_job_ends_is_told_that_it_is_done(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(LONG)))
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as learner, ScriptedLearner(syncer, unit="other") as other:
        learner.join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        other.join()
        engine = syncer.syncer.engine
        session = engine._job.sessions.session("u")
        assert session is not None
        order = ContributionRejected(
            1, 0, "u", session.holder, Refusal(Reason.OUTLIER, "its norm is too large"), withdrawn=(), quarantined=False
        )
        other.say(FromLearner(alive=Alive(finish="enough")))
        syncer.call(engine._membership.reject_contribution, order, engine._clock())
        other.hear("done")
        other.leave()
        with ScriptedLearner(syncer, unit="u") as again:
            again.welcomed()
            assert again.hear("done").done.t == 0


@pytest.mark.parametrize("quarantined", [False, True])
def test_what_a_former_process_of_the_unit_sent_harms_its_successor_nothing(tmp_path: Path, quarantined: bool) -> None:
    """An exchange may close, and the guards judge, after the process that contributed was replaced."""
    place = Place(tmp_path, job_file(training(LONG)))
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="u") as successor:
        successor.join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        refusal = Refusal(Reason.OUTLIER, "its norm is too large")
        order = ContributionRejected(1, 0, "u", "the process before", refusal, withdrawn=(), quarantined=quarantined)
        syncer.call(syncer.syncer.engine._membership.reject_contribution, order, 0.0)
        assert refused(syncer, "u") == {"Outlier": 1}
        assert successor.want(2).hear("work").work.end == 2
        with ScriptedLearner(syncer, unit="u", attempt=2) as next_attempt:
            assert next_attempt.welcomed().steps == LONG


@pytest.mark.slow
def test_a_learner_that_poisons_again_and_again_is_quarantined_and_its_next_attempt_may_join(
    tmp_path: Path, learners: list[LocalLearner]
) -> None:
    sick = False

    def spoil(step: int, arrays: dict[str, np.ndarray]) -> None:
        if sick:
            arrays["w1"][0, 0] = 1e30

    place = Place(tmp_path, job_file(training(LONG)))
    with LocalSyncer(place) as syncer:
        good = LocalLearner(place, syncer.address, "good").start()
        learners.append(good)
        bad = LocalLearner(place, syncer.address, "bad", spoil=spoil).start()
        until(lambda: syncer.report().t > ARMED and bad.steps > 0, "the guards to know the job")
        sick = True
        bad.wait()
        assert bad.left is not None
        assert bad.left.code == Exit.REFUSED_QUARANTINED
        assert "attempt 1 of unit bad is quarantined" in bad.left.message
        assert "the norm of its outer gradient is" in bad.left.message
        unit = syncer.unit("bad")
        assert unit.state == UnitReport.REFUSED
        assert "quarantined" in unit.message
        assert dict(unit.refused)["Outlier"] == REFUSALS
        with ScriptedLearner(syncer, unit="bad") as again:
            answer = again.hello().hear("refused").refused
            assert answer.code == Refused.QUARANTINED
            assert "attempt 1 of unit bad is quarantined" in answer.message
        healthy = LocalLearner(place, syncer.address, "bad", 2).start()
        learners.append(healthy)
        before = syncer.unit("bad")
        until(lambda: syncer.unit("bad").contributions > before.contributions, "attempt 2 to contribute")
        assert syncer.call(largest, syncer) < 10
