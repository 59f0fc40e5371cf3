"""Who may say what: certificates at the syncer's door, over real connections."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from builders.certificates import JobCertificates
from builders.exchange import JOB_UID, WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, connection_of, training, until
from builders.exchange import job_file as a_job
from builders.scripted_learner import ScriptedLearner
from builders.wire import tell, watch
from diloco.contract import Exit, learner_identity
from diloco.learner import reconnect
from diloco.protocol.diloco_pb2 import FromLearner, PartState, Refused, UnitReport, WatchRequest
from diloco.protocol.tls import TlsError
from diloco_local.links import Link, Links
from diloco_operator.certificates.authority import Leaf

ENDLESS = 1_000_000
"""Outer steps of a job that does not end during a test."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place", a_job(training(ENDLESS)))


def test_the_operator_of_a_part_may_watch_and_of_a_part_of_another_job_may_not(place: Place) -> None:
    certificates = place.certificates
    with LocalSyncer(place) as syncer:
        with certificates.channel(syncer.address, certificates.part("tokyo")) as channel:
            assert next(watch(channel)(WatchRequest(interval_seconds=60), timeout=WAIT_TIMEOUT)).t == 0
        with (
            certificates.channel(syncer.address, certificates.part("osaka", "another")) as channel,
            pytest.raises(grpc.RpcError, match="only operators may watch, not diloco://another/part/osaka"),
        ):
            next(watch(channel)(WatchRequest(), timeout=WAIT_TIMEOUT))


def test_reports_have_what_the_operator_of_a_part_has_told_last(place: Place) -> None:
    with LocalSyncer(place) as syncer:
        with place.certificates.channel(syncer.address, place.certificates.part("tokyo")) as channel:
            tell(channel)(PartState(state="Queued", message="both slices are in use"), timeout=WAIT_TIMEOUT)
            tell(channel)(PartState(state="Training", accelerator_hours={"tpu-v5p": 2.5}), timeout=WAIT_TIMEOUT)
        [part] = syncer.report().parts
    assert (part.part, part.state) == ("tokyo", PartState(state="Training", accelerator_hours={"tpu-v5p": 2.5}))
    assert 0 <= part.seconds_since_told < WAIT_TIMEOUT


def test_only_a_part_of_the_job_may_tell_its_state(place: Place) -> None:
    certificates = place.certificates
    with LocalSyncer(place) as syncer:
        for files in (certificates.operator(), certificates.learner("u"), certificates.part("osaka", "another")):
            with (
                certificates.channel(syncer.address, files) as channel,
                pytest.raises(grpc.RpcError, match="only parts may tell, not diloco://") as refused,
            ):
                tell(channel)(PartState(state="Failed"), timeout=WAIT_TIMEOUT)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not syncer.report().parts


def test_a_part_may_not_tell_more_than_a_report_has_room_for(place: Place) -> None:
    with (
        LocalSyncer(place) as syncer,
        place.certificates.channel(syncer.address, place.certificates.part("tokyo")) as channel,
        pytest.raises(grpc.RpcError, match="8203 bytes are more than 8192") as refused,  # 8,200 and three for the field
    ):
        tell(channel)(PartState(message="m" * 8200), timeout=WAIT_TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_certificate_of_a_part_trains_nothing(place: Place) -> None:
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, files=place.certificates.part("tokyo")) as learner:
        assert learner.hello().status() is grpc.StatusCode.UNAUTHENTICATED
        assert not syncer.report().units


def test_only_the_operator_may_watch(place: Place) -> None:
    certificates = place.certificates
    with LocalSyncer(place) as syncer:
        with (
            certificates.channel(syncer.address, certificates.learner("u")) as channel,
            pytest.raises(grpc.RpcError, match=f"only operators may watch, not {learner_identity(JOB_UID, 'u', 1)}") as refused,
        ):
            next(watch(channel)(WatchRequest(), timeout=WAIT_TIMEOUT))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with certificates.channel(syncer.address, certificates.operator()) as channel:
            first = next(watch(channel)(WatchRequest(interval_seconds=60), timeout=WAIT_TIMEOUT))
            assert (first.t, first.seeded) == (0, False)


@pytest.mark.parametrize("claim", [{"unit": "v"}, {"attempt": 2}, {"attempt": 0}, {"job_uid": "other"}, {"unit": "u-0/1"}])
def test_hello_must_say_what_the_certificate_says(place: Place, claim: dict[str, object]) -> None:
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        assert learner.hello(**claim).status() is grpc.StatusCode.UNAUTHENTICATED
        assert f"the certificate belongs to {learner_identity(JOB_UID, 'u-0', 1)}" in learner.ending()
        assert not syncer.report().units


def test_the_operators_certificate_trains_nothing(place: Place) -> None:
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, files=place.certificates.operator()) as learner:
        assert learner.hello().status() is grpc.StatusCode.UNAUTHENTICATED
        assert not syncer.report().units


def test_a_learner_with_the_files_of_another_unit_ends_at_once(place: Place) -> None:
    with LocalSyncer(place) as syncer:
        wrong = str(place.certificates.learner("v").folder)
        learner = LocalLearner(place, syncer.address, "u", DILOCO_TLS_DIR=wrong).start().leaves()
        assert learner.code == Exit.REFUSED_UNAUTHENTICATED
        assert "another pod's Secret" in learner.message
        assert not syncer.report().units


@pytest.mark.slow
@pytest.mark.parametrize("uid", [JOB_UID, "other"])
def test_a_learner_of_another_job_gives_up_after_a_while(
    place: Place, tmp_path: Path, uid: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnect, "TLS_FAILURE_TIMEOUT", 0.3)
    other = Place(tmp_path / "other", a_job(uid=uid))
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(other, syncer.address, "u").start().leaves()
        assert learner.code == Exit.REFUSED_UNAUTHENTICATED
        assert "It belongs to another job" in learner.message
        assert not syncer.report().units
    assert sum("belongs to another job" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_a_learner_that_the_syncer_does_not_trust_reports_it(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "TLS_FAILURE_TIMEOUT", 0.3)
    stranger = JobCertificates(tmp_path / "stranger", place.job)
    both = place.certificates.authority.root.pem + stranger.authority.root.pem
    files = stranger.write("u", Leaf("", learner_identity(JOB_UID, "u", 1)), roots=both)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u", DILOCO_TLS_DIR=str(files.folder)).start().leaves()
        assert learner.code == Exit.REFUSED_UNAUTHENTICATED
        assert "refuses this unit's certificate" in learner.message


@pytest.mark.slow
def test_a_learner_waits_for_a_certificate_that_is_not_there_yet(place: Place, learners: list[LocalLearner]) -> None:
    with LocalSyncer(place) as syncer:
        missing = place.certificates.folder / "u-a1"
        learner = LocalLearner(place, syncer.address, "u")
        (missing / "identity.pem").unlink()
        learners.append(learner.start())
        until(lambda: learner.session is None and not syncer.report().units, "the learner to wait")
        place.certificates.learner("u")
        until(lambda: learner.steps > 3, "the learner to train")


@pytest.mark.slow
def test_both_ends_continue_with_renewed_certificates(place: Place, learners: list[LocalLearner]) -> None:
    """A connection that breaks after the certificates ran out, on both sides."""
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        learners.append(learner)
        until(lambda: learner.steps > 3, "the learner to train")
        place.certificates.issuer = JobCertificates(place.directory, place.job, lifetime=1.0, now=lambda: time.time() - 60).issuer
        place.certificates.syncer()
        files = place.certificates.learner("u")
        with pytest.raises(TlsError, match="certificate has expired"):
            files.examine(learner_identity(JOB_UID, "u", 1))
        before = learner.steps
        until(lambda: learner.steps > before, "who is connected to stay connected")
        cut(learner)
        until(lambda: state(syncer) == UnitReport.DISCONNECTED, "the connection to break")
        place.certificates.issuer = JobCertificates(place.directory, place.job).issuer
        place.certificates.syncer()
        place.certificates.learner("u")
        until(lambda: state(syncer) == UnitReport.CONTRIBUTING, "the learner to come back")
        assert learner.left is None


def carries(link: Link, count: int) -> None:
    """Wait until the link has carried `count` more bytes to the syncer."""
    before = link.up.bytes
    until(lambda: link.up.bytes > before + count, "a push to be under way")


@pytest.mark.slow
def test_certificates_that_are_renewed_while_a_slow_link_carries_pushes_cost_no_push_and_no_session(
    tmp_path: Path, learners: list[LocalLearner]
) -> None:
    """Each of the rotations falls into a push of 256 KiB that is under way. Every merge waits for both learners."""
    place = Place(tmp_path / "large", a_job(training(ENDLESS, quorum=2)))

    def large() -> dict[str, np.ndarray]:
        return {name: np.zeros((256, 512), np.float32) for name in ("w0", "w1")}

    with LocalSyncer(place) as syncer, Links() as links:
        link = links.add()
        link.up.bytes_per_second = 2 << 20  # an eighth of a second for each push
        both = [
            LocalLearner(place, link.relay(syncer.address), "slow", arrays=large()).start(),
            LocalLearner(place, syncer.address, "fast", arrays=large()).start(),
        ]
        learners.extend(both)
        contributes(syncer, "slow", 1)
        calls = [connection_of(learner.session)._call for learner in learners if learner.session is not None]
        for _ in range(3):
            before = contributions(syncer, "slow")
            carries(link, 1 << 16)
            place.certificates.issuer = JobCertificates(place.directory, place.job).issuer
            place.certificates.syncer()
            for learner in learners:
                place.certificates.learner(learner.unit)
            contributes(syncer, "slow", before + 3)
        assert [connection_of(learner.session)._call for learner in learners if learner.session is not None] == calls
        assert len(calls) == 2
        for unit in ("slow", "fast"):  # a busy machine makes a push late, whatever certificates do
            assert not set(syncer.unit(unit).refused) - {"StaleRound"}
        # Who comes now gets through the door of the new files, and is told that its model is another one.
        with ScriptedLearner(syncer, unit="late") as late:
            late.hello()
            assert late.hear("refused").refused.code == Refused.LAYOUT


@pytest.mark.slow
def test_a_hello_of_another_unit_that_is_sent_again_changes_nothing_for_that_unit(place: Place, learners: list[LocalLearner]) -> None:
    with LocalSyncer(place) as syncer:
        learners.append(learner := LocalLearner(place, syncer.address, "u").start())
        until(lambda: state(syncer) == UnitReport.CONTRIBUTING, "the learner to contribute")
        assert learner.session is not None
        link = connection_of(learner.session)
        call = link._call
        with ScriptedLearner(syncer, unit="v") as replay:
            replay.say(FromLearner(hello=link._make_hello()))
            assert replay.status() is grpc.StatusCode.UNAUTHENTICATED
        before = learner.steps
        until(lambda: learner.steps > before + 3, "it to train on")
        assert link._call is call, "its stream is the one that it was"


@pytest.mark.slow
def test_a_hello_that_is_sent_again_with_the_units_own_certificate_costs_it_a_reconnect_and_no_sample(
    place: Place, learners: list[LocalLearner]
) -> None:
    with LocalSyncer(place) as syncer:
        learners.append(learner := LocalLearner(place, syncer.address, "u").start())
        until(lambda: state(syncer) == UnitReport.CONTRIBUTING, "the learner to contribute")
        assert learner.session is not None
        link = connection_of(learner.session)
        call = link._call
        with ScriptedLearner(syncer, unit="u") as replay:
            replay.say(FromLearner(hello=link._make_hello()))
            assert replay.hear("welcome").welcome.resumed
            until(lambda: link._call not in (None, call), "the learner to open another stream")
            assert replay.status() is grpc.StatusCode.UNAVAILABLE
            assert "the same session has opened another stream" in replay.ending()
        contributions = syncer.unit("u").contributions
        until(lambda: syncer.unit("u").contributions > contributions + 2, "it to contribute")
        assert len(learner.numbers) == len(set(learner.numbers)), "no sample is trained twice"


def contributions(syncer: LocalSyncer, unit: str) -> int:
    return syncer.unit(unit).contributions


def contributes(syncer: LocalSyncer, unit: str, count: int) -> None:
    until(lambda: contributions(syncer, unit) >= count, f"{unit} to contribute")


def state(syncer: LocalSyncer) -> int:
    return syncer.unit("u").state


def cut(learner: LocalLearner) -> None:
    """As a broken connection."""
    assert learner.session is not None
    call = connection_of(learner.session)._call
    assert call is not None
    call.cancel()
