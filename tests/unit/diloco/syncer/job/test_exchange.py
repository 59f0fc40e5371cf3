"""Learners and a syncer over loopback, in one process: what each gets to see, and what becomes of those that do it wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.exchange import WAIT_TIMEOUT, LocalLearner, LocalSyncer, Place, job_file, same_bytes, training, until, weights
from builders.scripted_learner import ScriptedLearner
from builders.wire import watch
from diloco.algorithm.fragments import unpack
from diloco.algorithm.members import Member
from diloco.contract import Exit
from diloco.learner import connection
from diloco.protocol.diloco_pb2 import Alive, Chunk, Evaluation, FromLearner, Pull, Refused, Taken, UnitReport, WatchRequest
from diloco.syncer.config import Timeouts
from diloco.syncer.job.engine import RunOutcome
from diloco.syncer.streams.learner_stream import PushOffered

LONG = 100_000
"""Outer steps of a job that is to last as long as its test."""


def place_for(path: Path, steps: int = LONG, **changes: object) -> Place:
    return Place(path, job_file(training(steps, **changes)))


def whole(syncer: LocalSyncer) -> dict[str, np.ndarray]:
    """The syncer's parameters."""
    core = syncer.core
    return {name: value for fragment in core.fragments for name, value in unpack(fragment, core.value(fragment.index)).items()}


def state(syncer: LocalSyncer, unit: str) -> Callable[[UnitReport.State], bool]:
    return lambda wanted: syncer.unit(unit).state == wanted


@pytest.mark.slow
def test_a_job_completes_and_every_learner_ends_with_the_syncers_very_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take long over the evaluation and Bye.
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", WAIT_TIMEOUT)
    # The quorum keeps the job from its end until all three have joined. Without momentum nothing overshoots: what moves from 0 to the
    # goal, 1, stays between them.
    place = place_for(tmp_path, steps=40, quorum=3, outer_optimizer={"learning_rate": 0.7, "momentum": 0.0})
    with LocalSyncer(place) as syncer:
        units = [LocalLearner(place, syncer.address, f"u-{i}").start() for i in range(3)]
        for learner in units:
            learner.wait()
        assert syncer.wait() is RunOutcome.COMPLETE
        assert all(same_bytes(learner.arrays, whole(syncer)) for learner in units)
    assert all(learner.left is None and learner.session and learner.session.done for learner in units)
    # three learners evaluate 0.5 on 100 tokens each
    assert (place.final().step, place.final().held_out_loss) == (40, 0.5)
    assert 0.1 < units[0].arrays["w1"].min() <= units[0].arrays["w1"].max() < 1.001


def test_a_change_of_membership_is_reported_without_waiting_for_the_interval(tmp_path: Path) -> None:
    certificates = (place := place_for(tmp_path)).certificates
    with LocalSyncer(place) as syncer, certificates.channel(syncer.address, certificates.operator()) as channel:
        reports = watch(channel)(WatchRequest(interval_seconds=600), timeout=WAIT_TIMEOUT)
        assert not next(reports).units
        with ScriptedLearner(syncer) as learner:
            learner.join()
            assert any(report.units for report in reports)


def test_only_the_first_learner_seeds_and_the_rest_start_from_its_bytes(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, weights(2.5), unit="first") as first:
        assert first.welcomed().seed_wanted
        with ScriptedLearner(syncer, weights(-1.0), unit="second") as second:
            assert not second.welcomed().seed_wanted
            first.seed()
            received = [second.receive() for _ in second.fragments]
        assert {transfer.header.coding for transfer in received} == {Chunk.FLOAT32}
        assert all((np.frombuffer(transfer.payload, np.float32) == 2.5).all() for transfer in received)
        until(lambda: syncer.report().snapshot_t == 0, "the seed to be durable")


@pytest.mark.slow
def test_a_learner_whose_seed_was_not_taken_gets_the_one_that_was(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, weights(-1.0), unit="second") as second:
        with ScriptedLearner(syncer, weights(2.5), unit="first") as first:
            incarnation = first.welcomed().incarnation
            second.join()
        asked = second.hear("welcome").welcome
        assert (asked.seed_wanted, asked.resumed) == (True, True), "the first one died before it had seeded"
        second.seed()
        until(lambda: syncer.report().seeded, "the seed")
        # Its connection broke before its seed was complete, and now before it has all of the job's.
        for arrive in (1, 2):
            with ScriptedLearner(syncer, unit="first") as again:
                assert again.welcomed(incarnation=incarnation, versions=[0, 0]).resumed
                received = [again.receive() for _ in range(arrive)]
                assert all((np.frombuffer(transfer.payload, np.float32) == -1.0).all() for transfer in received)
            until(lambda: state(syncer, "first")(UnitReport.DISCONNECTED), "the break to be noticed")
        assert {transfer.header.fragment for transfer in received} == {0, 1}


@pytest.mark.slow
def test_a_drained_learner_hands_its_work_back_and_the_others_go_on(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        stays, goes = (LocalLearner(place, syncer.address, unit).start() for unit in ("stays", "goes"))
        learners.append(stays)
        until(lambda: goes.steps > 10 and stays.steps > 10, "both to train")
        goes.drain()
        assert goes.leaves().code == Exit.DRAINED
        until(lambda: state(syncer, "goes")(UnitReport.DISCONNECTED), "the syncer to hear of it")

        def held() -> set[str]:
            return {session.partition("/")[0] for session in syncer.syncer.engine.work.ledger._sessions}

        # A contribution that was accepted may wait for its merge, and what that may commit stays leased until then.
        until(lambda: syncer.call(held) == {"stays"}, "its work to be free")
        before = stays.steps
        until(lambda: stays.steps > before + 10, "the other to train on")


def test_leases_that_were_lost_on_the_way_are_sent_again(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer:
        with ScriptedLearner(syncer) as first:
            incarnation = first.welcomed().incarnation
            first.seed().want(5).hear("work")
            first.want(7).hear("work")
        until(lambda: state(syncer, "u-0")(UnitReport.DISCONNECTED), "the break to be noticed")
        # it says that only the first five samples arrived
        with ScriptedLearner(syncer) as again:
            welcome = again.welcomed(incarnation=incarnation, versions=[0, 0], samples_leased=5)
            assert welcome.resumed
            work = again.hear("work").work
            assert (work.start, work.end) == (5, 12)


def test_a_session_that_stayed_away_too_long_starts_anew(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path), Timeouts(reconnect_window=0.2)) as syncer:
        with ScriptedLearner(syncer) as first:
            incarnation = first.welcomed().incarnation
            first.seed().want(5).hear("work")
        until(lambda: not syncer.call(lambda: syncer.syncer.engine.work.ledger._sessions), "its work to go back")
        with ScriptedLearner(syncer) as again:
            assert not again.welcomed(incarnation=incarnation, versions=[0, 0], samples_leased=5).resumed
            assert {again.receive().header.fragment for _ in again.fragments} == {0, 1}
            work = again.want(5).hear("work").work
            assert (work.start, work.end) == (0, 5), "the same work, which is not done"


def of_another_layout() -> dict[str, Any]:
    arrays = weights()
    arrays["w1"] = np.zeros((3, 3), np.float32)
    del arrays["w2"]
    return {"arrays": arrays}


def with_nan_from_step_10() -> dict[str, Any]:
    def spoil(step: int, arrays: dict[str, np.ndarray]) -> None:
        if step >= 10:
            arrays["w1"][0, 0] = np.nan

    return {"spoil": spoil}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "options", "code", "said", "reason"),
    [
        ("good", dict, Exit.REFUSED_FENCED, "each process needs an identity of its own", "DuplicateIdentity"),
        ("bad", of_another_layout, Exit.REFUSED_LAYOUT,
         "tensor w1: shape (3,3) here, (4,8) in the job; tensor w2: missing here, (5,8) in the job", "Layout"),
        ("bad", with_nan_from_step_10, Exit.REFUSED_NONFINITE, "", "NonFinite"),
    ],
    ids=["a second process of an identity", "another layout", "NaN parameters"],
)  # fmt: skip
def test_a_learner_that_is_refused_ends_and_is_counted_and_the_other_trains_on(
    tmp_path: Path, learners: list[LocalLearner], unit: str, options: Callable[[], dict[str, Any]], code: Exit, said: str, reason: str
) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        learners.append(good := LocalLearner(place, syncer.address, "good").start())
        until(lambda: good.steps > 5, "the good one to train")
        left = LocalLearner(place, syncer.address, unit, **options()).start().leaves()
        assert (left.code, said in left.message) == (code, True), left.message
        steps, t = good.steps, syncer.report().t
        until(lambda: good.steps > steps + 5 and syncer.report().t > t + 5, "the job to go on")
        assert syncer.unit(unit).refused[reason] == 1
        until(lambda: state(syncer, "good")(UnitReport.CONTRIBUTING), "the good one to contribute")
        assert unit == "good" or syncer.unit(unit).state == UnitReport.REFUSED
        assert all(np.isfinite(array).all() for array in syncer.call(whole, syncer).values())


@pytest.mark.slow
def test_a_newer_attempt_takes_over_and_the_older_one_is_fenced(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        old = LocalLearner(place, syncer.address, "u", attempt=1).start()
        until(lambda: old.steps > 5, "the older attempt to train")
        new = LocalLearner(place, syncer.address, "u", attempt=2).start()
        learners.append(new)
        assert (old.leaves().code, "fenced" in old.leaves().message) == (Exit.REFUSED_FENCED, True)
        until(lambda: new.steps > 5, "the newer attempt to train")
        assert LocalLearner(place, syncer.address, "u", attempt=1).start().leaves().code == Exit.REFUSED_FENCED
        unit = syncer.unit("u")
        assert (unit.attempt, dict(unit.refused)["Fenced"]) == (2, 2)
        until(lambda: syncer.unit("u").recover_seconds > 0, "the time to recover")


@pytest.mark.slow
def test_a_nan_seed_is_refused_and_the_next_learner_seeds(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        arrays = weights()
        arrays["w3"][1, 1] = np.inf
        bad = LocalLearner(place, syncer.address, "bad", arrays=arrays).start().leaves()
        assert bad.code == Exit.REFUSED_NONFINITE
        good = LocalLearner(place, syncer.address, "good").start()
        learners.append(good)
        until(lambda: good.steps > 3 and syncer.report().t > 0, "the good one to train")


# --- what only a broken program does ------------------------------------------------------------------------------------


def test_an_answer_whose_stream_ended_before_it_was_judged_harms_nobody(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer) as learner:
        header = learner.join().seed().offer(Pull(fragment=0, t=77))
        engine = syncer.syncer.engine

        def offer_and_cancel() -> None:
            """As a stream's reader that is cancelled while it waits."""
            ((stream, _),) = engine._job.streams.joined()
            offered = PushOffered(stream, header, asyncio.get_running_loop().create_future())
            engine.submit(offered)
            offered.admitted.cancel()

        syncer.call(offer_and_cancel)
        until(lambda: syncer.unit("u-0").refused.get("NotAsked"), "the refusal")
        learner.want(1).hear("work")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=0, t=1, coding=Chunk.FLOAT32), b"short"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=9, t=1, coding=Chunk.FLOAT32), b"none"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.BROADCAST, fragment=0, t=1, coding=Chunk.FLOAT32), b"none"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=0, t=1), b"none"),
        lambda learner: learner.say(FromLearner(chunk=Chunk(kind=Chunk.PUSH, t=1, coding=99, total=4, data=b"abcd"))),  # type: ignore[arg-type]
        lambda learner: learner.say(FromLearner(chunk=Chunk(kind=99, t=1, coding=Chunk.FLOAT32, total=4, data=b"abcd"))),  # type: ignore[arg-type]
        lambda learner: learner.hello(),
        lambda learner: learner.say(FromLearner(taken=Taken(bytes=1 << 40))),
    ],
    ids=[
        "wrong length",
        "no such fragment",
        "a broadcast",
        "no coding",
        "unknown coding",
        "unknown kind",
        "hello twice",
        "more taken than sent",
    ],
)
def test_a_protocol_violation_ends_the_stream_with_a_reason_and_no_other_stream(
    tmp_path: Path, break_it: Callable[[ScriptedLearner], object]
) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer) as learner:
        break_it(learner.join().seed())
        refused = learner.hear("refused").refused
        assert refused.code == Refused.PROTOCOL
        assert refused.message
        with ScriptedLearner(syncer, unit="other") as other:
            other.join()
            assert {other.receive().header.fragment for _ in other.fragments} == {0, 1}


def test_a_push_that_breaks_off_in_the_middle_is_never_used(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer:
        with ScriptedLearner(syncer) as learner:
            asked = learner.join().seed().step(1).pulled()
            header, size = learner.offer(asked), 2 * learner.fragments[asked.fragment].size
            header.total, header.data = size, bytes(size // 2)
            learner.say(FromLearner(chunk=header))
        until(lambda: state(syncer, "u-0")(UnitReport.DISCONNECTED), "the break to be noticed")
        assert syncer.unit("u-0").contributions == 0


def test_a_seed_that_was_not_asked_for_is_refused_at_its_first_chunk(tmp_path: Path) -> None:
    """It is a whole model in memory."""
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, unit="first") as first:
        assert first.welcomed().seed_wanted
        for when in ("before the job has parameters", "afterwards"):
            with ScriptedLearner(syncer, unit="other") as other:
                other.join()
                header = Chunk(kind=Chunk.SEED, fragment=0, coding=Chunk.FLOAT32, total=4 * other.fragments[0].size, data=b"abcd")
                refused = other.say(FromLearner(chunk=header)).hear("refused").refused
                assert (refused.code, refused.message) == (Refused.PROTOCOL, "this learner sends a seed, and was not asked for one"), when
            if when != "afterwards":
                first.seed()
                until(lambda: syncer.report().seeded, "the seed")


def test_a_held_out_loss_that_cannot_be_one_is_not_used(tmp_path: Path) -> None:
    place = place_for(tmp_path, steps=2, fragments=1)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as learner:
        learner.join().seed()
        learner.say(FromLearner(evaluation=Evaluation(held_out_loss=9.0, tokens=10, t=2)))  # before the parameters are final
        learner.step(1)
        until(lambda: syncer.unit("u-0").local_step == 1, "step 1 to be reported")
        learner.push(learner.step(2).pulled())
        learner.hear("done")
        for loss, tokens, t in [
            (float("nan"), 10, 2), (float("inf"), 10, 2), (1e308, 10, 2), (-1e308, 10, 2), (9.0, 0, 2), (9.0, 2**64 - 1, 2), (9.0, 10, 1)
        ]:  # fmt: skip
            learner.say(FromLearner(evaluation=Evaluation(held_out_loss=loss, tokens=tokens, t=t)))
            learner.want(1).hear("work")  # messages keep their order
            assert not syncer.report().HasField("held_out_loss")
        learner.say(FromLearner(evaluation=Evaluation(held_out_loss=0.25, tokens=10, t=2))).leave()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert place.final().held_out_loss == 0.25


@pytest.mark.slow
def test_a_unit_that_pauses_after_the_last_step_is_waited_for(tmp_path: Path) -> None:
    """An evaluation of the final parameters may take longer than the farewell."""
    place = Place(tmp_path, job_file(training(1, quorum=1)))
    timeouts = Timeouts(farewell=0.2, linger=0.1, final_retry=0.1)
    with LocalSyncer(place, timeouts) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join().seed().say(FromLearner(alive=Alive(pause="evaluation\n", pause_left=WAIT_TIMEOUT)))
        learner.step(1, step_seconds=0.01)
        learner.push(learner.pulled())
        learner.hear("done")
        # It was told the end; now it evaluates for longer than the farewell of 0.2 s.
        waits_until = syncer.call(lambda: (syncer.syncer.engine.shutdown_grace.until or 0.0) - time.monotonic())
        assert waits_until > WAIT_TIMEOUT / 2
        unit = syncer.unit("u")
        assert unit.pause == "evaluation"
        learner.say(FromLearner(evaluation=Evaluation(held_out_loss=0.5, tokens=8, t=1)))
        assert learner.leave() == []
        assert syncer.wait() is RunOutcome.COMPLETE


def test_the_report_says_that_a_unit_has_the_parameters_and_has_not_stepped_yet(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join().seed().say(FromLearner(alive=Alive()))

        def reported() -> tuple[int, bool]:
            unit = next(each for each in syncer.call(syncer.syncer.engine.report).units if each.unit == "u")
            return unit.state, unit.holds_parameters

        assert reported() == (UnitReport.JOINING, False)
        learner.say(FromLearner(alive=Alive(holds_parameters=True)))
        until(lambda: reported() == (UnitReport.JOINING, True), "the word of the learner")


def test_a_unit_is_lost_a_minute_after_its_process_was_last_heard_from_and_a_declared_pause_is_no_silence(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join().seed().step(1, step_seconds=0.01)

        def seconds_left(of: Callable[[Member], float]) -> float:
            """Return -1 before it is a member that has reported."""
            u = syncer.core.coordinator._members.get("u")
            return -1.0 if u is None or u.last_report_at is None else of(u)

        def lost_in() -> float:
            return float(syncer.call(seconds_left, lambda u: u.lost_at - time.monotonic()))

        until(lambda: 0 < lost_in() <= 60, "the report")
        learner.say(FromLearner(alive=Alive(local_step=1)))
        until(lambda: syncer.call(seconds_left, lambda u: u.alive_at - u.last_report_at) > 0, "the process to be heard from")
        assert syncer.call(seconds_left, lambda u: u.lost_at - u.alive_at) == pytest.approx(60)
        learner.say(FromLearner(alive=Alive(local_step=1, pause="evaluation", pause_left=600.0)))
        until(lambda: 600 < lost_in() <= 660, "the pause")
        learner.say(FromLearner(alive=Alive(local_step=1)))
        until(lambda: lost_in() <= 60, "the end of the pause")
