"""A job that ends before its last step: a program says so, or its token budget is trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from builders.ports import held_port
from builders.scripted_learner import ScriptedLearner
from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS
from diloco.protocol.diloco_pb2 import Alive, FromLearner, UnitReport
from diloco.protocol.diloco_pb2 import Ending as EndingMessage
from diloco.syncer.config import Timeouts
from diloco.syncer.ending import FILE, EndError, Ending, JobEnding, is_over, load_ending
from diloco.syncer.job.engine import RunOutcome

LONG = 100_000
UID = "of-this-job"


def place_for(path: Path, steps: int = LONG, every: int = 5, **changes: object) -> Place:
    return Place(path, job_file(training(steps, checkpoint={"every_steps": every, "keep": 2}, **changes)))


# --- what a program says ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_program_ends_the_job_for_all_units(tmp_path: Path) -> None:
    place = place_for(tmp_path, quorum=2)
    with LocalSyncer(place) as syncer:

        def finishes(step: int, arrays: object) -> None:
            assert ends.session is not None
            if step >= 20:
                ends.session.finish("the loss is low enough")  # again and again: it changes nothing

        goes_on = LocalLearner(place, syncer.address, "goes-on").start()
        ends = LocalLearner(place, syncer.address, "ends", spoil=finishes).start()
        for learner in (goes_on, ends):
            learner.wait()
            assert learner.session is not None
            assert (learner.left, learner.session.done) == (None, True)
        assert all((goes_on.arrays[name] == ends.arrays[name]).all() for name in goes_on.arrays)
        assert syncer.wait() is RunOutcome.COMPLETE
    result = place.result
    assert result is not None
    assert (result.ended_by, result.end_reason) == (ENDED_BY_PROGRAM, "ends: the loss is low enough")
    assert 0 < result.step < result.steps == LONG
    assert result.held_out_loss == 0.5


@pytest.mark.slow
def test_a_program_that_leaves_its_loop_after_it_has_ended_the_job_gets_the_final_parameters(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u")

        class StopsItself(Exception):
            pass

        def stops(step: int, arrays: object) -> None:
            assert learner.session is not None
            if step == 10:
                learner.session.finish("enough")
                learner.session.close()
                raise StopsItself

        learner._spoil = stops
        learner.start()
        with pytest.raises(StopsItself):
            learner.wait()
        assert learner.session is not None
        assert learner.session.done
        assert syncer.wait() is RunOutcome.COMPLETE
        assert syncer.syncer.engine.result().units[0].contributions > 0


@pytest.mark.slow
def test_the_end_survives_the_syncers_process(tmp_path: Path) -> None:
    place, port = place_for(tmp_path, every=1000), held_port()
    with LocalSyncer(place, port=port) as syncer, ScriptedLearner(syncer, unit="u") as learner:
        learner.join().seed().step(1)
        until(lambda: syncer.report().t >= 1, "an outer step")
        until(lambda: syncer.report().snapshot_t == 0, "the seed to be durable")
        # Its next snapshot would be of outer step 1000: what is durable of outer step 1 is the word alone.
        learner.say(FromLearner(alive=Alive(finish="enough")))
        until(lambda: syncer.report().ending.cause == EndingMessage.PROGRAM, "the end to be decided")
        assert json.loads((place.state / FILE).read_bytes())["reason"] == "enough"
    with LocalSyncer(place, Timeouts(linger=0.1), port=port) as syncer:
        report = syncer.report()
        assert (report.ending.unit, report.ending.reason) == ("u", "enough")
        assert syncer.wait() is RunOutcome.COMPLETE
    assert place.result is not None
    assert place.result.ended_by == ENDED_BY_PROGRAM
    # More steps than it was to take then: the job goes on.
    longer = Place(tmp_path, job_file(training(LONG + 1, checkpoint={"every_steps": 1000, "keep": 2})))
    with LocalSyncer(longer) as syncer:
        assert not syncer.report().HasField("ending")
        learner_of_longer = LocalLearner(longer, syncer.address, "v").start()
        until(lambda: syncer.report().t > report.t + 3, "the job to go on")
        learner_of_longer.drain()
        learner_of_longer.wait()


def test_only_the_first_word_counts_and_the_job_ends_also_if_it_cannot_be_written(tmp_path: Path) -> None:
    async def said(folder: Path) -> Ending | None:
        decided: list[bool] = []
        ending = JobEnding(folder, UID, training(100), None, lambda: decided.append(True))
        assert ending.end_at(7, 10**12) is None, "there is no budget"
        ending.finish("first", "two\nlines" + "x" * 1000, 7)
        ending.finish("second", "late", 8)
        assert ending.end_at(7, 0) is None, "it is not durable yet"
        await ending.idle()
        assert decided == [True]
        ending.finish("third", "later", 9)
        await ending.idle()
        return ending.ending

    found = asyncio.run(said(tmp_path))
    assert found is not None
    assert (found.by, found.t, found.unit, found.reason[:9], len(found.reason)) == (ENDED_BY_PROGRAM, 7, "first", "two lines", 200)
    assert load_ending(tmp_path, UID, training(100)) == found
    (tmp_path / "file").write_text("")
    found = asyncio.run(said(tmp_path / "file"))
    assert found is not None
    assert found.unit == "first"


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        (lambda stored: stored, True),
        (lambda stored: {**stored, "job": "another"}, False),
        (lambda stored: {**stored, "steps": 99}, False),
        (lambda stored: {**stored, "steps": 200}, True),
    ],
)
def test_a_word_holds_for_its_job_and_as_long_as_the_job_gets_no_more_steps(
    tmp_path: Path, change: Callable[[dict[str, object]], object], holds: bool
) -> None:
    stored = {"job": UID, "steps": 100, "t": 7, "unit": "u", "reason": "enough"}
    (tmp_path / FILE).write_text(json.dumps(change(stored)))
    assert (load_ending(tmp_path, UID, training(100)) is not None) == holds


def test_a_damaged_word_is_said_with_what_to_do(tmp_path: Path) -> None:
    assert load_ending(tmp_path, UID, training(100)) is None
    (tmp_path / FILE).write_text("{")
    with pytest.raises(EndError, match="remove it to train on"):
        load_ending(tmp_path, UID, training(100))


# --- the token budget ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_ends_once_its_token_budget_is_committed(tmp_path: Path) -> None:
    place = place_for(tmp_path, tokens=2_000)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u").start()
        learner.wait()
        assert syncer.wait() is RunOutcome.COMPLETE
        report = syncer.syncer.engine.report()
        assert (report.ending.cause, report.token_budget) == (EndingMessage.TOKENS, 2_000)
    result = place.result
    assert result is not None
    assert (result.ended_by, result.step < LONG) == (ENDED_BY_TOKENS, True)
    # 16 tokens a step: what is under way at the end, a few exchanges of at most 1.5 H steps each, comes on top.
    assert 2_000 <= result.tokens < 4_000
    # The same job again finds itself done, and takes no further step.
    with LocalSyncer(place, Timeouts(linger=0.1)) as syncer:
        assert syncer.wait() is RunOutcome.COMPLETE
        assert syncer.syncer.engine.report().t == result.step
    # With a larger budget it goes on.
    more = place_for(tmp_path, tokens=6_000)
    with LocalSyncer(more) as syncer:
        assert not syncer.report().HasField("ending")
        LocalLearner(more, syncer.address, "u", attempt=2).start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert more.result is not None
    assert more.result.tokens >= 6_000


@pytest.mark.slow
def test_the_steps_end_a_job_that_has_tokens_left(tmp_path: Path) -> None:
    place = place_for(tmp_path, steps=20, tokens=10**12)
    with LocalSyncer(place) as syncer:
        LocalLearner(place, syncer.address, "u").start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert place.result is not None
    assert (place.result.step, place.result.ended_by) == (20, "")


@pytest.mark.slow
def test_progress_follows_the_budget_where_that_is_further(tmp_path: Path) -> None:
    place = place_for(tmp_path, tokens=2_000)
    seen: list[float] = []
    with LocalSyncer(place) as syncer:

        def looks(step: int, arrays: object) -> None:
            assert learner.session is not None
            seen.append(learner.session.progress)

        learner = LocalLearner(place, syncer.address, "u", spoil=looks)
        learner.start().wait()
        assert syncer.wait() is RunOutcome.COMPLETE
    assert seen == sorted(seen)
    # By then some 13 of 100,000 outer steps are taken. How near to the budget the last look is depends on how much one merge brings, and a
    # syncer that waits for a core merges much at once.
    assert 0.001 < seen[-1] <= 1.0
    assert learner.session is not None
    assert learner.session.progress == 1.0


@pytest.mark.parametrize(("t", "tokens", "over"), [(99, 9, False), (100, 0, True), (5, 10, True), (7, 0, True), (6, 9, False)])
def test_a_state_is_the_end_by_its_steps_its_tokens_or_a_word(t: int, tokens: int, over: bool) -> None:
    ending = None if t > 50 else Ending(ENDED_BY_PROGRAM, 7, "u", "enough")
    assert is_over(training(100, tokens=10), ending, t, tokens) == over


# --- leaving early ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_that_leaves_its_loop_early_is_said_to_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = place_for(tmp_path)
    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u")

        def leaves(step: int, arrays: object) -> None:
            assert learner.session is not None
            if step == 10:
                learner.session.close()
                raise SystemExit(0)

        learner._spoil = leaves
        learner.start()
        with pytest.raises(SystemExit):
            learner.wait()
        until(lambda: syncer.unit("u").state == UnitReport.DISCONNECTED, "its Bye")
        unit = syncer.unit("u")
        assert (unit.message, unit.left) == ("left its training loop before the job was done", True)
    assert "the job goes on without it" in caplog.text
    assert "session.finish(reason)" in caplog.text
