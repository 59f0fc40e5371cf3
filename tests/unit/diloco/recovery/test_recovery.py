"""New processes take the state of a peer over real connections to a real syncer, and what happens to them on the way."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.exchange import Place, job_file, solo, training, until, weights
from builders.momentum_job import MomentumJob, begins
from builders.momentum_learner import HeldState, MomentumLearner, MomentumState
from diloco.protocol import incoming_state, outgoing_state
from diloco.protocol.diloco_pb2 import Recovery

pytestmark = pytest.mark.slow

H = 2


class Job(MomentumJob):
    """Units take the state of others."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Place(folder, job_file(training(1_000_000, sync_interval=H))))

    def unit(self, name: str, attempt: int = 1, state: MomentumState | None = None, locality: str = "") -> MomentumLearner:
        learner = MomentumLearner(self.place, self.syncer.address, name, attempt, state=state, DILOCO_LOCALITY=locality).start()
        self.learners.append(learner)
        return learner

    def trained(self, name: str, state: MomentumState | None = None, locality: str = "") -> MomentumLearner:
        """A unit that has trained long enough to give its state."""
        learner = self.unit(name, state=state, locality=locality)
        begins(learner)
        until(lambda: learner.steps > 5 and self.syncer.report().t > 2 * H, f"unit {name} trains")
        return learner

    def restart_syncer(self) -> None:
        self.syncer.stop()
        self.begin_again()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path).running() as found:
        yield found


def held(job: Job, name: str, locality: str = "") -> tuple[MomentumLearner, HeldState]:
    state = HeldState(weights())
    return job.trained(name, state=state, locality=locality), state


def test_a_new_unit_begins_with_parameters_and_state_of_a_peer(job: Job) -> None:
    donor = job.trained("a")
    steps = donor.state.steps
    taker = begins(job.unit("b"))
    assert taker.state.taken == 1
    assert steps <= taker.began_with_steps <= donor.state.steps
    assert taker.session is not None
    own = taker.session.step_count
    assert taker.session.optimizer_steps >= taker.began_with_steps + own > own
    assert all(momentum.any() for momentum in taker.state.momentum.values())
    said = job.recovery("b")
    assert (said.unit, said.round, list(said.failed), said.why) == ("a", 1, [], "")
    assert said.bytes > 2 * 4 * sum(array.size for array in donor.arrays.values())
    unit = job.syncer.unit("a")
    assert unit.given == 1


def test_the_unit_that_seeds_the_job_and_one_that_joins_at_once_take_nothing(job: Job) -> None:
    begins(job.unit("a"))
    assert (job.recovery("a").why, job.recovery("a").unit) == ("this unit seeded the job", "")


def test_a_donor_that_dies_while_it_sends_is_replaced_by_another_one(job: Job) -> None:
    job.trained("b")
    first, state = held(job, "a", locality="near")
    taker = job.unit("c", locality="near")
    assert state.reached.wait(180)
    first.kill()
    state.go.set()
    begins(taker)
    said = job.recovery("c")
    assert (said.unit, said.round, list(said.failed)) == ("b", 2, ["a"])
    assert taker.state.taken == 1


def test_without_another_donor_the_unit_begins_with_the_syncers_parameters_and_an_empty_state(job: Job) -> None:
    donor, state = held(job, "a")
    taker = job.unit("b")
    assert state.reached.wait(180)
    donor.kill()
    state.go.set()
    begins(taker)
    assert (taker.state.taken, taker.began_with_steps) == (0, 0)
    assert_holds_what_the_syncer_sent(taker)
    assert "none is left to ask after a" in job.recovery("b").why


def test_a_taker_that_dies_leaves_its_donor_training_and_its_next_attempt_takes_the_state(job: Job) -> None:
    donor, state = held(job, "a")
    first = job.unit("b")
    assert state.reached.wait(180)
    first.kill()
    state.go.set()
    steps = donor.steps
    second = begins(job.unit("b", attempt=2))
    assert second.state.taken == 1
    until(lambda: donor.steps > steps + 5, "the donor trains on")


def test_a_syncer_that_restarts_while_a_state_is_copied_names_a_donor_again(job: Job) -> None:
    _, state = held(job, "a")
    taker = job.unit("b")
    assert state.reached.wait(180)
    job.restart_syncer()
    state.go.set()
    begins(taker)
    assert taker.state.taken == 1
    said = job.recovery("b")
    assert (said.unit, list(said.failed)) == ("a", [])


def test_a_syncer_that_restarts_before_it_has_named_a_donor_names_one_afterwards(job: Job) -> None:
    _, state = held(job, "a")
    job.unit("b")
    assert state.reached.wait(180)
    waiting = job.unit("c")
    job.recovery("c", Recovery.WANTED)
    job.restart_syncer()
    state.go.set()
    begins(waiting)
    assert waiting.state.taken == 1


def test_broadcasts_of_a_long_copy_are_replayed_over_it(job: Job) -> None:
    _, state = held(job, "a")
    taker = job.unit("b")
    assert state.reached.wait(180)
    t = job.syncer.report().t
    assert taker.entered is not None
    member = solo(taker.entered)
    until(lambda: min(member.state.versions) > t + H, "every fragment was merged again, more than an interval later")
    assert taker.session is None
    state.go.set()
    begins(taker)
    assert taker.state.taken == 1
    assert_holds_what_the_syncer_sent(taker)  # every fragment was merged after the donor had read it


def test_eight_takers_are_all_served_and_not_by_one(job: Job) -> None:
    job.trained("a")
    takers = [job.unit(f"u{number}") for number in range(8)]
    for taker in takers:
        begins(taker)
    assert [taker.state.taken for taker in takers] == [1] * 8
    assert len({job.recovery(taker.unit).unit for taker in takers}) > 1


def broken_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_state, "zlib", _Zlib)


class _Zlib:
    @staticmethod
    def crc32(payload: memoryview) -> int:
        return zlib.crc32(payload) ^ 1


def another_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    original = incoming_state.IncomingState._complete

    def lossy(self: incoming_state.IncomingState, payload: memoryview) -> None:
        original(self, payload)
        self.bytes -= 1

    monkeypatch.setattr(incoming_state.IncomingState, "_complete", lossy)


@pytest.mark.parametrize(
    ("tear", "why"), [(broken_checksum, "its checksum is wrong"), (another_number_of_parts, "the donor says that its state has 2 parts")]
)
def test_a_torn_copy_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tear: Callable[[pytest.MonkeyPatch], None], why: str
) -> None:
    job.trained("a")
    tear(monkeypatch)
    taker = begins(job.unit("b"))
    assert (taker.state.taken, taker.began_with_steps) == (0, 0)
    assert_holds_what_the_syncer_sent(taker)
    assert why in caplog.text


def assert_holds_what_the_syncer_sent(learner: MomentumLearner) -> None:
    """The model before the first step had the last values that came, and no value of a copy."""
    assert learner.joined_with is not None
    np.testing.assert_equal(learner.joined_with, learner.adopted_at_join)
