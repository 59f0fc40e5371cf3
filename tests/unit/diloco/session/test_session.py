"""A session with a scripted connection: what it does at step boundaries, and what it tells the syncer."""

from __future__ import annotations

import itertools
import math
import signal
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from builders.exchange import until
from builders.scripted_connection import ScriptedSession
from builders.training_loop import BATCH, TOKENS
from diloco.contract import Exit
from diloco.learner.final_values import complaint
from diloco.learner.inbox import Finished, InboxEvent, Leased, PullWanted, RestWanted
from diloco.learner.leave import Leave, LoopError
from diloco.learner.unit_plan import most_at_once
from diloco.session.step_timer import StepTimer


def pull(fragment: int, t: int, generation: int = 1) -> PullWanted:
    return PullWanted(generation, fragment, t)


# --- joining ------------------------------------------------------------------------------------------------------------


def test_a_seed_is_the_models_values_and_stays_as_it_is_while_the_program_trains_on() -> None:
    learner = ScriptedSession()
    learner.comes(learner.welcome(t=0, seed_wanted=True), Leased(0, 100))
    learner.session._wait_for_parameters()
    learner.train(2)
    [(generation, values)] = learner.connection.seeded
    assert generation == 1
    assert [set(value.tolist()) for value in values] == [{0.0}, {0.0}]


def test_it_joins_once_it_has_all_parameters_and_tells_the_program_which_came() -> None:
    told: list[str] = []
    learner = ScriptedSession(told.extend)
    learner.join()
    assert learner.connection.started
    assert (learner.of(0), learner.of(1), sorted(told)) == ({5.0}, {5.0}, ["a", "b"])
    assert (learner.session.t, learner.session.steps, learner.session.step_count) == (4, 1000, 0)


# --- reads and adoptions ------------------------------------------------------------------------------------------------


def test_what_one_boundary_cannot_move_comes_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.learner.solo.most_at_once", lambda step_seconds: 3)
    learner = ScriptedSession().join(5.0)
    learner.comes(learner.broadcast(0, 5, 50.0), learner.broadcast(1, 6, 60.0))
    learner.train()
    assert (learner.of(0), learner.of(1)) == ({50.0}, {6.0})
    learner.comes(learner.broadcast(1, 8, 80.0))
    learner.train()
    assert (learner.of(0), learner.of(1)) == ({51.0}, {80.0})


def test_the_boundary_of_a_long_step_may_move_more() -> None:
    # 64 MiB, which take 10 ms to copy, for each half second: 2 %
    assert [most_at_once(seconds) // (1 << 20) for seconds in (0.0, 0.1, 0.5, 1.0, 10.0)] == [16, 16, 16, 32, 320]


# --- batches ahead of steps ---------------------------------------------------------------------------------------------


def test_a_program_fetches_ahead_and_each_step_settles_the_oldest_batches() -> None:
    learner = ScriptedSession().join()
    assert [learner.batch() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    learner.step()
    assert (learner.progress.samples_done, learner.progress.local_step, learner.progress.own_data) == (BATCH, 1, False)
    learner.session.step(tokens=3 * TOKENS, batches=3)
    assert (learner.progress.samples_done, learner.progress.tokens_done, learner.progress.local_step) == (4 * BATCH, 4 * TOKENS, 2)
    assert list(learner.progress.steps) == [2, 2], "one step for each update, whatever it was made from"


def test_how_far_ahead_a_program_fetches_is_bounded() -> None:
    learner = ScriptedSession().join()
    batches = learner.session.batches(lambda numbers: numbers.tolist(), BATCH, ahead=3)
    for _ in range(3):
        next(batches)
    with pytest.raises(LoopError, match=r"holds 3 batches that no step\(\) has settled"):
        next(batches)


def test_leases_cover_what_is_fetched_ahead() -> None:
    learner = ScriptedSession().join()
    for _ in range(30):
        learner.batch()
    # It holds 32 batches of 2 samples beyond those that the program has, and asks for 8 at least: of 100 leased samples 2k are fetched
    # after k batches, and 64 - (100 - 2k) >= 16 for the first time at k = 26.
    assert learner.connection.wanted == [(1, 16)]


def test_what_is_leased_ahead_follows_the_time_of_a_batch_not_of_an_update() -> None:
    learner = ScriptedSession().join()
    ticks = itertools.count()
    learner.session._timer = StepTimer(1.0, lambda: next(ticks) / 10)
    for _ in range(4):
        learner.batch()
    learner.session.step(tokens=4 * TOKENS, batches=4)
    # 20 s ahead: an update of four batches of 2 samples.
    ahead = math.ceil(20 / (learner.session._timer.step_seconds / 4)) * BATCH
    assert learner.member._work.remaining + learner.member._work.asked == ahead > 2 * 100


def test_batches_that_no_step_settled_come_again_in_the_next_loop() -> None:
    learner = ScriptedSession().join()
    first = [learner.batch() for _ in range(4)]
    learner.step()
    again = learner.session.batches(lambda numbers: numbers.tolist(), BATCH)
    assert [next(again) for _ in range(4)] == [*first[1:], [8, 9]]
    with pytest.raises(LoopError, match="two loops take batches"):
        learner.batch()
    learner.session.step(tokens=4 * TOKENS, batches=4)
    assert learner.progress.samples_done == 5 * BATCH


def test_a_drain_gives_back_what_was_fetched_and_not_settled() -> None:
    learner = ScriptedSession().join()
    for _ in range(4):
        learner.batch()
    learner.step()
    learner.member.drain()
    with pytest.raises(StopIteration):
        learner.batch()
    with pytest.raises(Leave) as left:
        learner.session.close()
    [bye] = learner.connection.closed
    assert bye is not None
    assert (left.value.status, learner.session.over, bye.drained, bye.samples_done) == (Exit.DRAINED, True, True, BATCH)


def test_a_program_that_feeds_itself_reports_tokens_and_no_samples() -> None:
    learner = ScriptedSession().join()
    learner.session.step(tokens=TOKENS)
    learner.session.step(tokens=TOKENS, batches=4)
    assert (learner.progress.samples_done, learner.progress.tokens_done, learner.progress.local_step) == (0, 2 * TOKENS, 2)
    assert learner.progress.own_data
    assert not learner.connection.wanted
    with pytest.raises(LoopError, match="after steps with data of its own"):
        learner.batch()


def test_shards_count_once_they_are_read_and_a_step_is_done() -> None:
    learner = ScriptedSession().join()
    shards = learner.session.shards(10, seed=3)
    taken = [next(shards)]
    for _ in range(3):
        learner.step()
    assert (learner.progress.samples_done, learner.progress.tokens_done) == (0, 3 * TOKENS)
    taken.append(next(shards))
    learner.step()
    assert learner.progress.samples_done == 1
    again = learner.session.shards(10, seed=3)
    assert next(again) == taken[1], "a loop that was left in the middle of a shard begins it again"
    taken += [next(again) for _ in range(9)]
    assert sorted(shard.index for shard in taken[:10]) == list(range(10))
    assert [(shard.count, shard.epoch) for shard in taken[:11]] == [(10, 0)] * 10 + [(10, 1)]


def test_of_shards_no_more_is_leased_than_the_next_one() -> None:
    learner = ScriptedSession()
    learner.comes(learner.welcome(), learner.broadcast(0, 4, 5.0), learner.broadcast(1, 4, 5.0), Leased(0, 1))
    learner.session._wait_for_parameters()
    shards = learner.session.shards(10)
    next(shards)
    learner.step()
    assert (learner.connection.initial_request, learner.connection.wanted) == (1, [(1, 1)])


def test_shards_and_batches_do_not_mix_and_shards_want_steps() -> None:
    learner = ScriptedSession().join()
    shards = learner.session.shards(10)
    with pytest.raises(LoopError, match="holds 64 shards that no step"):
        list(shards)
    with pytest.raises(LoopError, match="takes both batches and shards"):
        learner.batch()


def test_a_loop_that_trains_on_once_the_job_is_done_gets_the_final_parameters_back_and_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []
    learner = a_session_of_a_job_that_is_done(told.extend)
    told.clear()
    for _ in range(2):
        learner.step()
    assert (learner.of(0), learner.of(1), sorted(set(told))) == ({5.0}, {9.0}, ["a", "b"])
    assert (learner.session.step_count, learner.progress.tokens_done) == (1, TOKENS)
    assert caplog.text.count("trained on once the job was done: its final parameters are put back") == 1


def a_session_of_a_job_that_is_done(on_adopt: Callable[[Sequence[str]], None] | None = None) -> ScriptedSession:
    learner = ScriptedSession(on_adopt).join(5.0)
    learner.batch()
    learner.comes(learner.broadcast(1, 9, 9.0), Finished(10))
    learner.step()
    assert learner.session.done
    return learner


def test_a_program_that_loads_another_state_once_the_job_is_done_ends_with_an_error() -> None:
    learner = a_session_of_a_job_that_is_done()
    learner.arrays["b"][0, 1] += 1  # an average of weights, the best checkpoint, an update without a step
    with pytest.raises(LoopError, match=r"no longer holds its final parameters: b changed after the last step.*after session.close\(\)"):
        learner.session.close()
    [bye] = learner.connection.closed
    assert bye is not None, "its work counts as before"
    learner.session.close()


def test_the_error_names_a_few_of_many_tensors() -> None:
    assert ": a, b, c and 2 more changed" in complaint(list("abcde"))
    assert ": a, b, c changed" in complaint(list("abc"))


def test_a_program_may_change_its_model_while_it_evaluates_and_after_close() -> None:
    learner = a_session_of_a_job_that_is_done()
    learner.arrays["a"] += 1
    learner.session.evaluate(1.0, 10)
    learner.arrays["a"] -= 1
    learner.session.close()
    learner.arrays["a"] += 1
    learner.session.close()


def test_an_error_of_the_program_goes_on_as_it_is_though_it_has_changed_the_model() -> None:
    learner = a_session_of_a_job_that_is_done()

    def program() -> None:
        with learner.session:
            learner.arrays["a"] += 1
            raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="the program's own"):
        program()


# --- work ---------------------------------------------------------------------------------------------------------------


def test_work_that_could_not_be_asked_for_is_asked_for_at_the_next_step() -> None:
    learner = ScriptedSession().join()
    learner.connection.has_stream = False
    learner.train(40)
    assert not learner.connection.wanted
    learner.connection.has_stream = True
    learner.train()
    [(generation, samples)] = learner.connection.wanted
    assert (generation, samples) == (1, learner.connection.initial_request - (100 - 41 * BATCH))


def while_it_waits(learner: ScriptedSession, monkeypatch: pytest.MonkeyPatch, *then: Callable[[], None]) -> None:
    """Each time that it waits one of these is called."""
    calls = iter(then)
    monkeypatch.setattr(learner.member, "wait", lambda seconds: next(calls)())


def test_work_that_could_not_be_asked_for_is_asked_for_while_the_program_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = ScriptedSession().join()
    learner.connection.has_stream = False
    learner.train(50)  # all that is leased

    def comes_back() -> None:
        learner.connection.has_stream = True

    def answers() -> None:
        assert learner.connection.wanted
        learner.comes(Leased(100, 110))

    while_it_waits(learner, monkeypatch, comes_back, answers)
    assert learner.train() == [100, 101]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_time_of_a_step_has_neither_the_wait_for_its_batch_nor_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("diloco.session.session.time", clock)
    learner = ScriptedSession().join()
    learner.session._timer = StepTimer(1.0, clock.monotonic)

    def step() -> float:
        """The time that it measures of a step that computes for 2 s."""
        learner.batch()
        clock.now += 2
        learner.step()
        return learner.session._timer.step_seconds

    def comes_after_a_minute(event: InboxEvent) -> Callable[[], None]:
        def call() -> None:
            clock.now += 60
            learner.comes(event)

        return call

    learner.train(49)
    assert step() == 2
    while_it_waits(learner, monkeypatch, comes_after_a_minute(Leased(100, 110)), comes_after_a_minute(RestWanted(0)))
    assert step() == 2, "after a minute without work"
    learner.comes(RestWanted(2))
    step()
    assert step() == 2, "after a rest of a minute"


def test_the_programs_own_handler_of_sigterm_is_back_after_close() -> None:
    came: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda signum, frame: came.append(signum))
    try:
        learner = ScriptedSession().join()
        signal.raise_signal(signal.SIGTERM)
        assert (came, learner.session.draining) == ([], True)
        with pytest.raises(Leave):
            learner.session.close()
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)


# --- misuse, the end ----------------------------------------------------------------------------------------------------


def test_a_batch_without_samples_and_an_end_without_a_reason_are_refused() -> None:
    learner = ScriptedSession().join()
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        next(learner.session.batches(lambda numbers: numbers, 0))
    with pytest.raises(ValueError, match="the end of a job needs a reason"):
        learner.session.finish("")


def test_a_loss_that_is_not_given_is_no_number() -> None:
    learner = ScriptedSession().join()
    learner.train()
    assert np.isnan(learner.progress.loss)
    learner.batch()
    learner.session.step(tokens=1, loss=0.25)
    assert learner.progress.loss == 0.25


# --- progress -----------------------------------------------------------------------------------------------------------


def test_progress_follows_the_job_and_not_the_local_steps() -> None:
    learner = ScriptedSession().join(5.0)
    assert learner.session.progress == 4 / 1000
    learner.train(10)
    assert learner.session.progress == 4 / 1000, "its steps alone say nothing of the job's"
    learner.comes(learner.broadcast(0, 14, 50.0))
    learner.train()
    assert learner.session.progress == 14 / 1000


# --- the end ------------------------------------------------------------------------------------------------------------


def test_after_finish_close_waits_for_the_end_of_the_job() -> None:
    learner = ScriptedSession().join()
    learner.train()
    learner.session.finish("loss below 2.0")
    learner.comes(Finished(9))
    learner.session.close()
    [bye] = learner.connection.closed
    assert bye is not None
    assert (bye.drained, bye.left, learner.session.done) == (False, False, True)


def test_bye_tells_a_program_that_left_from_one_that_was_told_to() -> None:
    leaves, drains = ScriptedSession().join(), ScriptedSession().join()
    leaves.session.close()
    drains.session._drain(15, None)
    with pytest.raises(Leave):
        drains.session.close()
    byes = [learner.connection.closed[0] for learner in (leaves, drains)]
    assert [(bye.drained, bye.left) for bye in byes if bye is not None] == [(True, True), (True, False)]


# --- rest ---------------------------------------------------------------------------------------------------------------


def once_it_has_said_that_it_rests(learner: ScriptedSession, then: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        until(lambda: len(learner.connection.reported) > 3, "progress to be repeated")
        then()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("own_data", [False, True])
def test_a_unit_that_rests_stays_in_its_step_wherever_its_batches_come_from(own_data: bool) -> None:
    learner = ScriptedSession().join()
    learner.comes(RestWanted(2))
    ending = once_it_has_said_that_it_rests(learner, lambda: learner.comes(RestWanted(0)))
    if own_data:
        learner.step()
    else:
        learner.train()
    ending.join()
    assert len(learner.connection.reported) > 3, "it has waited"
    assert {progress.local_step for _, progress in learner.connection.reported} == {1}
    assert all(np.isnan(progress.step_seconds) for _, progress in learner.connection.reported[1:]), "these are no new steps"


def test_a_unit_that_drains_does_not_wait_for_the_end_of_its_rest() -> None:
    learner = ScriptedSession().join()
    learner.comes(RestWanted(2))
    ending = once_it_has_said_that_it_rests(learner, lambda: learner.session._drain(signal.SIGTERM, None))
    learner.train()
    ending.join()
    assert learner.session.draining
    with pytest.raises(StopIteration):
        learner.batch()
