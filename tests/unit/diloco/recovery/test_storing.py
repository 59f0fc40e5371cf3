"""Every process of a job dies, and units begin with what they had stored, over real connections to a real syncer."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from builders.dying_job import DyingJob as Job
from builders.exchange import JOB_UID, WAIT_TIMEOUT, until, weights
from builders.momentum_job import begins
from builders.momentum_learner import MomentumState
from diloco.algorithm.layout import Layout
from diloco.contract import LearnerStates, syncer_host_name
from diloco.free_space import NoRoom
from diloco.learner.arrays import ArrayStore
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import StateBegin, StateMessage, StateWanted
from diloco.snapshots import unit_states
from diloco.tape.segments import FOLDER
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path).running() as found:
        yield found


def test_a_unit_begins_with_what_it_had_stored_and_the_job_with_all_that_was_merged(job: Job) -> None:
    begins(job.unit("a"))
    stored = job.stored("a", after=8)
    before = job.die()
    newest = json.loads((max(job.states.glob("a.*")) / "manifest.json").read_text())
    assert newest["t"] >= stored["t"]
    job.begin_again()
    assert job.syncer.report().t >= before.t
    assert job.syncer.report().tokens >= before.tokens
    learner = begins(job.unit("a"))
    said = job.recovery("a")
    assert (said.unit, said.stored, said.t, said.why) == ("a", True, newest["t"], "")
    assert learner.state.taken == 1
    # At each boundary after that at which it began at least one part is read: the only one of this model, and the small rest.
    assert 1 <= learner.began_with_steps - newest["meta"]["localStep"] <= 2
    assert {one.name for one in learner.state.put_arrays} == {"momentum"}
    np.testing.assert_equal(learner.joined_with, learner.adopted_at_join)  # the syncer's parameters


def test_a_job_whose_volume_is_lost_goes_on_with_the_copies_of_its_snapshot_and_of_what_its_units_had_stored(tmp_path: Path) -> None:
    with Job(tmp_path / "job", uri=f"file://{tmp_path}/remote").running() as job:
        begins(job.unit("a"))
        copies = tmp_path / "remote" / f"default-job-{JOB_UID}"
        until(lambda: any(copies.glob("learners/a.*/manifest.json")), "the state of a is copied")
        job.die()
        stored = json.loads((max(copies.glob("learners/a.*")) / "manifest.json").read_text())
        newest = max(copies.glob("snapshot-*"))
        shutil.rmtree(job.place.state)
        job.begin_again()
        assert job.syncer.report().t >= json.loads((newest / "manifest.json").read_text())["t"]
        learner = begins(job.unit("a"))
        said = job.recovery("a")
        assert (said.unit, said.stored, said.t, said.why) == ("a", True, stored["t"], "")
        assert {one.name for one in learner.state.put_arrays} == {"momentum"}
        assert job.syncer.report().snapshot_error == ""


def test_too_little_room_for_a_state_is_told_and_the_unit_trains_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(folder: Path, _: int) -> None:
        raise NoRoom(errno.ENOSPC, "it needs 2.00 GiB, and 1.1 GiB are free", str(folder))

    with monkeypatch.context() as full:
        full.setattr(unit_states, "demand", refuses)
        learner = begins(job.unit("a"))
        said = until(lambda: job.syncer.report().snapshot_error, "the syncer says that the state is not stored")
        assert said == (
            "the state of unit a could not be stored: it needs 2.00 GiB, and 1.1 GiB are free; the one before it is intact. Give the "
            "syncer's volume more room (spec.syncer.storage.size) or store no states (spec.training.checkpoint.learners: Never)."
        )
        steps = learner.steps
        until(lambda: learner.steps > steps + 20, "the unit trains on")
    job.stored("a")
    until(lambda: not job.syncer.report().snapshot_error, "nothing is wrong any more")


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


def test_what_is_stored_is_a_safetensors_file_of_whole_tensors(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    tensors = load_file(max(job.states.glob("a.*")) / "tensors.safetensors")
    assert {name: value.shape for name, value in tensors.items()} == {f"momentum/{name}": value.shape for name, value in weights().items()}
    assert all(value.any() for value in tensors.values())


def test_the_newest_state_of_a_unit_takes_the_place_of_the_one_before(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a", after=job.stored("a")["t"])
    job.die()
    assert len(list(job.states.iterdir())) == 1


def flip(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut_rest(folder: Path) -> None:
    path = folder / "rest.bin"
    path.write_bytes(path.read_bytes()[:-1])


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip, "what was stored at outer step"),
        (cut_rest, "rest.bin does not have the checksum"),
        (lose_manifest, "no unit that trains has the state of numpy momentum"),
    ],
)
def test_a_damaged_state_is_not_used_and_the_unit_says_why(job: Job, damage: Callable[[Path], None], why: str) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    damage(max(job.states.glob("a.*")))
    job.begin_again()
    learner = begins(job.unit("a"))
    assert (learner.state.taken, learner.began_with_steps) == (0, 0)
    said = job.recovery("a")
    assert (said.unit, said.stored) == ("", False)
    if damage is lose_manifest:
        assert why in said.why
    else:
        assert list(said.failed) == ["a"]
    np.testing.assert_equal(learner.joined_with, learner.adopted_at_join)


def test_a_state_that_was_torn_is_removed_and_never_used(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    whole = max(job.states.glob("a.*"))
    whole.rename(whole.with_name(f".tmp-{whole.name}"))
    job.begin_again()
    assert begins(job.unit("a")).state.taken == 0
    assert not list(job.states.glob(".tmp-*0001"))


def test_a_state_of_another_optimizer_is_refused_with_a_reason(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    job.begin_again()
    assert begins(job.unit("a", MomentumState(weights(), "numpy other"))).state.taken == 0
    assert "what the unit has stored at outer step" in job.recovery("a").why
    assert "is the state of numpy momentum" in job.recovery("a").why


def test_a_job_that_begins_anew_begins_without_the_states_of_before(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    job.die()
    for folder in ("snapshots", FOLDER):
        shutil.rmtree(job.place.state / folder)
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


def layout_of_weights() -> Layout:
    return Layout(ArrayStore(weights(), embeddings=["w0"]).specs())


def channel_of(job: Job, unit: str) -> grpc.Channel:
    """A channel to the syncer with the certificate of this unit's first attempt."""
    options = client_options(Keepalive(), syncer_host_name(job.place.job.name, job.place.job.namespace))
    credentials = job.place.certificates.learner(unit, 1).read().channel_credentials()
    return grpc.secure_channel(job.syncer.address, credentials, options=options)


def refused(job: Job, certificate: str, call: Callable[[grpc.Channel], Any]) -> tuple[grpc.StatusCode, str]:
    """What the syncer answers to a call of who has this certificate."""
    with channel_of(job, certificate) as channel, pytest.raises(grpc.RpcError) as error:
        call(channel)
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), error.value.details() or ""


def test_only_the_unit_itself_stores_and_takes_its_state(job: Job) -> None:
    begins(job.unit("a"))
    job.stored("a")
    fingerprint = layout_of_weights().fingerprint

    def stores(unit: str, **changes: Any) -> Callable[[grpc.Channel], Any]:
        usual: dict[str, Any] = {"attempt": 1, "fingerprint": fingerprint, "inner_state": "numpy momentum", "t": 8}
        begin = StateBegin(job_uid=JOB_UID, unit=unit, **(usual | changes))
        return lambda channel: rpc.store(channel)(iter([StateMessage(begin=begin)])).result()

    def takes(unit: str, kind: str = "numpy momentum") -> Callable[[grpc.Channel], Any]:
        return lambda channel: list(rpc.take(channel)(StateWanted(job_uid=JOB_UID, unit=unit, attempt=1, inner_state=kind)))

    denied = grpc.StatusCode.PERMISSION_DENIED
    assert refused(job, "b", stores("a"))[0] is denied
    assert refused(job, "b", takes("a"))[0] is denied
    assert "attempt 1 of unit b has not joined" in refused(job, "b", stores("b"))[1]
    assert "attempt 1 of unit b has not joined" in refused(job, "b", takes("b"))[1]
    assert "another model" in refused(job, "a", stores("a", fingerprint="x"))[1]
    assert "joined with the state of numpy momentum" in refused(job, "a", stores("a", inner_state="other"))[1]
    assert "no marker of outer step 1000000 was sent" in refused(job, "a", stores("a", t=1_000_000))[1]


def test_a_unit_stores_one_state_at_a_time_and_of_one_that_is_torn_nothing_stays(tmp_path: Path) -> None:
    job = Job(tmp_path, every_steps=1_000_000)  # no marker comes: the unit itself stores nothing
    begin = StateBegin(job_uid=JOB_UID, unit="a", attempt=1, fingerprint=layout_of_weights().fingerprint, inner_state="numpy momentum", t=8)
    end = threading.Event()

    def messages() -> Iterator[StateMessage]:
        yield StateMessage(begin=begin)
        assert end.wait(WAIT_TIMEOUT)

    with job.syncer:
        begins(job.unit("a"))
        until(lambda: job.syncer.report().t >= 8, "the outer step that the state says")
        with channel_of(job, "a") as channel:
            first = rpc.store(channel)(messages())
            until(lambda: any(job.states.glob(".tmp-*")), "the first stream has begun")
            code, why = refused(job, "a", lambda channel: rpc.store(channel)(iter([StateMessage(begin=begin)])).result())
            assert (code, why) == (grpc.StatusCode.UNAVAILABLE, "unit a has a stream of its state already")
            end.set()
            error = first.exception(WAIT_TIMEOUT)
            assert isinstance(error, grpc.Call)
            assert error.details() == "the learner ended before its state was whole"
        until(lambda: not any(job.states.iterdir()), "what was torn is removed")
        job.end()


def test_an_attempt_that_is_over_neither_stores_nor_takes(job: Job) -> None:
    first = begins(job.unit("a"))
    job.stored("a")
    first.kill()
    first.wait()
    job.learners.remove(first)
    job.attempts += 1
    begins(job.unit("a"))
    begin = StateBegin(job_uid=JOB_UID, unit="a", attempt=1, fingerprint=layout_of_weights().fingerprint, inner_state="numpy momentum", t=8)
    code, why = refused(job, "a", lambda channel: rpc.store(channel)(iter([StateMessage(begin=begin)])).result())
    assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "attempt 1 of unit a has not joined")
    wanted = StateWanted(job_uid=JOB_UID, unit="a", attempt=1, fingerprint=begin.fingerprint, inner_state="numpy momentum")
    assert refused(job, "a", lambda channel: list(rpc.take(channel)(wanted))) == (code, why)


def test_a_job_that_does_not_ask_for_it_stores_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, LearnerStates.NEVER)
    with job.syncer:
        begins(job.unit("a"))
        until(lambda: job.syncer.report().snapshot_t >= 16, "two snapshots with training")
        job.end()
    assert not job.states.exists()
