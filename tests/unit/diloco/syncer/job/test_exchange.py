"""Learners and a syncer over loopback, in one process: what each gets to see, and what becomes of those that do it wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

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
from diloco.syncer.streams.peer import PushOffered

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
@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_a_job_completes_and_every_learner_ends_with_the_syncers_very_bytes(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take long over the evaluation and Bye.
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", WAIT_TIMEOUT)
    # The quorum keeps the job from its end until all three have joined. Without momentum nothing overshoots: what moves from 0 to the
    # goal, 1, stays between them.
    place = place_for(tmp_path, steps=40, quorum=3, compression=compression, outer_optimizer={"learning_rate": 0.7, "momentum": 0.0})
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


@pytest.mark.slow
def test_a_late_joiner_has_the_current_parameters_before_its_first_step(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        learners.append(LocalLearner(place, syncer.address, "early", arrays=weights(0.0)).start())
        until(lambda: syncer.report().t >= 20, "20 outer steps")
        late = LocalLearner(place, syncer.address, "late", arrays=weights(-5.0)).start()
        learners.append(late)
        until(lambda: late.steps >= 3, "the late learner's first steps")
        assert late.joined_with is not None
        # the job began at 0 and moves towards 1; -5 is what the late model was initialised with
        assert min(float(array.min()) for array in late.joined_with.values()) >= 0.0
        assert late.session is not None
        assert late.session.t >= 20


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


def test_another_learner_seeds_when_the_first_one_dies_before_it_has(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer, unit="second") as second:
        with ScriptedLearner(syncer, unit="first") as first:
            assert first.welcomed().seed_wanted
            assert not second.welcomed().seed_wanted
        asked = second.hear("welcome").welcome
        assert (asked.seed_wanted, asked.resumed) == (True, True)
        second.seed()
        until(lambda: syncer.report().seeded, "the seed")


@pytest.mark.slow
def test_a_learner_whose_seed_was_not_taken_gets_the_one_that_was(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, weights(-1.0), unit="second") as second:
        with ScriptedLearner(syncer, weights(2.5), unit="first") as first:
            incarnation = first.welcomed().incarnation
            second.join()
        assert second.hear("welcome").welcome.seed_wanted
        second.seed()
        until(lambda: syncer.report().seeded, "the seed")
        # The connection broke before its seed was complete. It holds a version 0, but not the job's.
        with ScriptedLearner(syncer, unit="first") as again:
            assert again.welcomed(incarnation=incarnation, versions=[0, 0]).resumed
            received = [again.receive() for _ in again.fragments]
            assert all((np.frombuffer(transfer.payload, np.float32) == -1.0).all() for transfer in received)
        # What it holds now is the job's.
        until(lambda: state(syncer, "first")(UnitReport.DISCONNECTED), "the break to be noticed")
        with ScriptedLearner(syncer, unit="first") as again:
            assert again.hello(incarnation=incarnation, versions=[0, 0]).leave() == ["welcome"]


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


@pytest.mark.slow
def test_a_second_process_with_the_same_identity_is_refused_and_the_first_trains_on(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        first = LocalLearner(place, syncer.address, "u").start()
        learners.append(first)
        until(lambda: first.steps > 5, "the first to train")
        second = LocalLearner(place, syncer.address, "u").start().leaves()
        assert second.code == Exit.REFUSED_FENCED
        assert "each process needs an identity of its own" in second.message
        before = first.steps
        until(lambda: first.steps > before + 5, "the first to train on")
        until(lambda: state(syncer, "u")(UnitReport.CONTRIBUTING), "the first to contribute")
        assert syncer.unit("u").refused["DuplicateIdentity"] == 1


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
def test_another_layout_is_refused_with_the_differences_and_the_job_goes_on(tmp_path: Path, learners: list[LocalLearner]) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        good = LocalLearner(place, syncer.address, "good").start()
        learners.append(good)
        until(lambda: good.steps > 5, "training")
        odd = weights()
        odd["w1"] = np.zeros((3, 3), np.float32)
        del odd["w2"]
        bad = LocalLearner(place, syncer.address, "bad", arrays=odd).start().leaves()
        assert bad.code == Exit.REFUSED_LAYOUT
        assert "tensor w1: shape (3,3) here, (4,8) in the job; tensor w2: missing here, (5,8) in the job" in bad.message
        unit = syncer.unit("bad")
        assert (unit.state, dict(unit.refused)) == (UnitReport.REFUSED, {"Layout": 1})
        before = good.steps
        until(lambda: good.steps > before + 5, "the good one to train on")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_nan_parameters_are_refused_and_counted_and_never_merged(tmp_path: Path, learners: list[LocalLearner], compression: str) -> None:
    def spoil(step: int, arrays: dict[str, np.ndarray]) -> None:
        if step >= 10:
            arrays["w1"][0, 0] = np.nan

    place = place_for(tmp_path, compression=compression)
    with LocalSyncer(place) as syncer:
        good = LocalLearner(place, syncer.address, "good").start()
        learners.append(good)
        bad = LocalLearner(place, syncer.address, "bad", spoil=spoil).start().leaves()
        assert bad.code == Exit.REFUSED_NONFINITE
        unit = syncer.unit("bad")
        assert (unit.state, dict(unit.refused)["NonFinite"]) == (UnitReport.REFUSED, 1)
        before = syncer.report().t
        until(lambda: syncer.report().t > before + 5, "the job to go on")
        assert all(np.isfinite(array).all() for array in syncer.call(whole, syncer).values())


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


def pull(learner: ScriptedLearner, steps: int = 10) -> Pull:
    """Report steps until the syncer asks for a fragment."""
    for step in range(1, steps):
        learner.step(step)
    return learner.pulled()


def walk(learner: ScriptedLearner, syncer: LocalSyncer, first: int, last: int) -> None:
    """Report the steps from `first` to `last`, each once the syncer has taken the one before."""
    for step in range(first, last + 1):
        learner.step(step)
        until(lambda step=step: syncer.unit("u-0").local_step == step, f"step {step} to be reported")  # type: ignore[misc]


def counted(syncer: LocalSyncer, reason: str, unit: str = "u-0") -> bool:
    found = syncer.unit(unit)
    return found is not None and found.refused.get(reason, 0) > 0


def test_an_answer_whose_stream_ended_before_it_was_judged_harms_nobody(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer) as learner:
        header = learner.join().seed().offer(Pull(fragment=0, t=77))
        engine = syncer.syncer.engine

        def offer_and_cancel() -> None:
            """As a stream's reader that is cancelled while it waits."""
            ((peer, _),) = engine._peers.joined()
            offered = PushOffered(peer, header, asyncio.get_running_loop().create_future())
            engine.submit(offered)
            offered.admitted.cancel()

        syncer.call(offer_and_cancel)
        until(lambda: counted(syncer, "NotAsked"), "the refusal")
        learner.want(1).hear("work")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=0, t=1, coding=Chunk.FLOAT32), b"short"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=9, t=1, coding=Chunk.FLOAT32), b"none"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.BROADCAST, fragment=0, t=1, coding=Chunk.FLOAT32), b"none"),
        lambda learner: learner.transfer(Chunk(kind=Chunk.PUSH, fragment=0, t=1), b"none"),
        lambda learner: learner.hello(),
        lambda learner: learner.say(FromLearner(taken=Taken(bytes=1 << 40))),
    ],
    ids=["wrong length", "no such fragment", "a broadcast", "no coding", "hello twice", "more acknowledged than sent"],
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
            asked = pull(learner.join().seed())
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
        walk(learner, syncer, 1, 2)
        learner.push(learner.pulled())
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


def test_more_work_than_was_leased_cannot_be_committed(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path)) as syncer, ScriptedLearner(syncer) as learner:
        learner.push(pull(learner.join().seed()), samples_done=1000, tokens_done=8000)
        assert "only 0 were leased" in learner.hear("refused").refused.message
        assert syncer.report().tokens == 0


@pytest.mark.slow
def test_a_unit_that_pauses_after_the_last_step_is_waited_for(tmp_path: Path) -> None:
    """An evaluation of the final parameters may take longer than the farewell."""
    place = Place(tmp_path, job_file(training(1, quorum=1)))
    timeouts = Timeouts(farewell=0.2, linger=0.1, final_retry=0.1)
    with LocalSyncer(place, timeouts) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join().seed().say(FromLearner(alive=Alive(pause="evaluation\n", pause_left=WAIT_TIMEOUT)))
        learner.step(1, step_seconds=0.01)  # the syncer asks it for its last work, and waits a second for the answer
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

        def member() -> Member | None:
            core = syncer.core
            return core.coordinator._members.get("u")

        def lost_in() -> float:
            u = member()
            return -1.0 if u is None else u.lost_at - time.monotonic()

        def alive_after_report() -> float:
            u = member()
            return -1.0 if u is None or u.heard is None else u.alive_at - u.heard

        until(lambda: 0 < syncer.call(lost_in) <= 60, "the report")
        learner.say(FromLearner(alive=Alive(local_step=1)))
        until(lambda: syncer.call(alive_after_report) > 0, "the process to be heard from")
        assert syncer.call(lambda: (u := member()) is not None and u.lost_at == u.alive_at + 60)
        learner.say(FromLearner(alive=Alive(local_step=1, pause="evaluation", pause_left=600.0)))
        until(lambda: 600 < syncer.call(lost_in) <= 660, "the pause")
        learner.say(FromLearner(alive=Alive(local_step=1)))
        until(lambda: syncer.call(lost_in) <= 60, "the end of the pause")
