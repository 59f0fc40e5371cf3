"""Every process of a job dies, and units begin with what they had stored, over real connections to a real syncer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from builders.dying_job import DyingJob as Job
from builders.exchange import until, weights
from builders.momentum_job import begins
from builders.momentum_learner import Copied, MomentumState
from diloco.algorithm.pieces import Piece
from diloco.contract import LearnerStates
from diloco.learner.inner_state import ARRAYS, arrays_of
from diloco.protocol.diloco_pb2 import UnitReport
from diloco.protocol.state_parts import PieceArray

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path).running() as found:
        yield found


def test_a_unit_begins_with_what_it_had_stored_and_the_job_with_all_that_was_merged(job: Job) -> None:
    begins(job.unit("a"))
    earlier = job.stored("a", after=8)
    before = job.die()
    newest = job.stored("a")
    assert newest.t >= earlier.t
    job.begin_again()
    assert job.syncer.report().t >= before.t
    assert job.syncer.report().tokens >= before.tokens
    learner = begins(job.unit("a"))
    said = job.recovery("a")
    assert (said.unit, said.stored, said.t, said.why) == ("a", True, newest.t, "")
    assert learner.state.taken == 1
    assert learner.began_with_steps > newest.local_step, "the small rest is read last"
    assert {one.name for one in learner.state.put_arrays} == {"momentum"}
    np.testing.assert_equal(learner.joined_with, learner.adopted_at_join)  # the syncer's parameters


def test_a_job_whose_volume_is_lost_goes_on_with_the_copy_of_its_snapshot_and_what_its_units_had_stored(tmp_path: Path) -> None:
    with Job(tmp_path).running() as job:
        begins(job.unit("a"))
        job.stored("a")
        job.die()
        stored = job.stored("a")
        newest = max(path.parent for path in job.copies.glob("snapshot-*/manifest.json"))
        shutil.rmtree(job.place.state)
        job.begin_again()
        assert job.syncer.report().t >= json.loads((newest / "manifest.json").read_text())["t"]
        learner = begins(job.unit("a"))
        said = job.recovery("a")
        assert (said.unit, said.stored, said.t, said.why) == ("a", True, stored.t, "")
        assert {one.name for one in learner.state.put_arrays} == {"momentum"}
        assert job.syncer.report().snapshot_error == ""


def test_a_unit_prefers_what_it_had_stored_to_the_state_of_one_that_has_hardly_trained(job: Job) -> None:
    begins(job.unit("a"))
    until(lambda: job.stored("a").steps >= 200, "a state with many steps behind it is stored")
    job.die()
    newest = job.stored("a")
    job.begin_again()
    # A step each 0.2 s: it comes to 200 of them in 40 s.
    late = begins(job.unit("late", step_seconds=0.2))
    until(lambda: (one := job.syncer.unit("late")) is not None and one.state == UnitReport.CONTRIBUTING, "it may give its state")
    learner = begins(job.unit("a"))
    said = job.recovery("a")
    assert late.steps < newest.steps
    assert (said.unit, said.stored, said.steps) == ("a", True, learner.began_with_steps)
    assert said.steps == newest.steps


def test_each_of_several_units_begins_with_a_state(job: Job) -> None:
    for name in "abc":
        begins(job.unit(name))
    for name in "abc":
        job.stored(name, after=8)
    job.die()
    job.begin_again()
    for learner in [job.unit(name) for name in "abc"]:
        begins(learner)
        assert learner.state.taken == 1
    # One that comes late finds that another one trains already.
    assert any(job.recovery(name).stored for name in "abc")


def test_the_newest_state_of_a_unit_takes_the_place_of_the_one_before(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a", after=job.stored("a").t)
    job.stored("a", after=job.stored("a").t)
    until(lambda: len(list((job.states / "a").glob("*/manifest.json"))) == 1, "those before are gone")
    job.die()


class LateState(MomentumState):
    """Its momentum is there after some steps only, as after first steps that a GradScaler skips."""

    def __init__(self) -> None:
        super().__init__(weights())
        self.begins_at = 0
        """Steps after which it is there."""

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return [one for one in super().arrays(pieces) if not one.name or self.steps >= self.begins_at]

    def stage_rest(self) -> Copied:
        # Between the parts and the small rest of the first state.
        self.begins_at = 0
        return Copied(super().stage_rest().wait() | {ARRAYS: arrays_of(self.arrays(self.held()))})


def test_a_state_whose_small_rest_is_of_more_arrays_than_were_stored_is_not_stored(job: Job) -> None:
    state = LateState()
    state.begins_at = 1 << 30
    begins(job.unit("a", state))
    said = until(lambda: job.syncer.report().snapshot_error, "the syncer says that the state is not stored")
    assert "the optimizer has begun to keep momentum of " in said
    assert {array.name for block in job.stored("a").blocks for array in block.arrays} == {"momentum"}, "the next one has all"
    job.die()
    job.begin_again()
    assert begins(job.unit("a", LateState())).state.taken == 1


def flip(folder: Path) -> None:
    path = folder / "00000-000000.bin"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut_block(folder: Path) -> None:
    path = folder / "00000-000000.bin"
    path.write_bytes(path.read_bytes()[:-1])


def lose_block(folder: Path) -> None:
    (folder / "00000-000000.bin").unlink()


def flip_rest(folder: Path) -> None:
    path = folder / "rest.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def cut_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-9])


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip, "cannot be used: 00000-000000.bin does not have the checksum of its manifest"),
        (cut_block, "cannot be used: 00000-000000.bin has 991 bytes, its manifest says 992: truncated or overwritten"),
        (lose_block, "cannot be used: 00000-000000.bin is missing"),
        (flip_rest, "cannot be used: rest.bin does not have the checksum of its manifest"),
        (cut_manifest, "cannot be used: manifest.json is not JSON"),
        (lose_manifest, "no unit that trains has the state of numpy momentum; the unit has stored no state in file://"),
    ],
)
def test_a_damaged_state_is_not_used_and_the_unit_says_why(job: Job, damage: Callable[[Path], None], why: str) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    for path in job.states.glob("a/*/manifest.json"):
        damage(path.parent)
    job.begin_again()
    learner = begins(job.unit("a"))
    assert (learner.state.taken, learner.began_with_steps) == (0, 0)
    said = job.recovery("a")
    assert (said.unit, said.stored) == ("", False)
    assert why in said.why
    np.testing.assert_equal(learner.joined_with, learner.adopted_at_join)


def test_a_uri_that_cannot_be_written_is_told_and_the_unit_trains_on(job: Job) -> None:
    job.states.mkdir(parents=True)
    (job.states / "a").write_text("a file in the place of the unit's folder")
    learner = begins(job.unit("a"))
    said = until(lambda: job.syncer.report().snapshot_error, "the syncer says that the state is not stored")
    assert said.startswith("unit a could not store its state at spec.training.checkpoint.uri: ")
    steps = learner.steps
    until(lambda: learner.steps > steps + 20, "the unit trains on")
    (job.states / "a").unlink()
    job.stored("a")
    until(lambda: not job.syncer.report().snapshot_error, "nothing is wrong any more")


def test_another_job_on_the_same_volume_goes_on_with_what_the_units_of_the_one_before_had_stored(tmp_path: Path) -> None:
    before = Job(tmp_path)
    with before.syncer:
        begins(before.unit("a"))
        before.stored("a")
        before.die()
    stored = before.stored("a")
    with Job(tmp_path, job_uid="another").running() as job:
        begins(job.unit("a"))
        said = job.recovery("a")
        assert (said.unit, said.stored, said.t) == ("a", True, stored.t)


def test_a_state_of_another_optimizer_is_refused_with_a_reason(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    job.begin_again()
    assert begins(job.unit("a", MomentumState(weights(), "numpy other"))).state.taken == 0
    said = job.recovery("a").why
    assert said.startswith("no unit that trains has the state of numpy other")
    assert "; what the unit has stored at outer step" in said
    assert said.endswith(" is the state of numpy momentum")


def test_a_job_that_begins_anew_begins_without_the_states_of_before(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    shutil.rmtree(job.place.state)
    for path in job.copies.glob("snapshot-*"):
        shutil.rmtree(path)
    job.begin_again()
    assert begins(job.unit("a")).began_with_steps == 0
    assert not job.recovery("a").stored


def test_a_unit_that_comes_back_beside_one_that_trains_takes_the_state_of_that_one(job: Job) -> None:
    first, second = (begins(job.unit(name)) for name in "ab")
    job.stored("a")
    first.kill()
    first.wait()
    job.learners.remove(first)
    job.attempts += 1
    until(lambda: second.steps > 10, "the other one trains")
    begins(job.unit("a"))
    said = job.recovery("a")
    assert (said.unit, said.stored) == ("b", False)


def test_a_job_that_does_not_ask_for_it_stores_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, LearnerStates.NEVER)
    with job.syncer:
        begins(job.unit("a"))
        until(lambda: job.syncer.report().snapshot_t >= 16, "two snapshots with training")
        job.end()
    assert not job.states.exists()
