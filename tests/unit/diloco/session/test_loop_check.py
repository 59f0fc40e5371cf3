"""What a training loop may call, and what each mistake says."""

from __future__ import annotations

import numpy as np
import pytest
from diloco.learner.leave import LoopError
from diloco.session.loop_check import EMPTY_STEPS, MOST_AHEAD, UPDATES_WINDOW, LoopCheck


def holding(batches: int) -> LoopCheck:
    """A loop that has fetched so many batches, numbered from 0."""
    check = LoopCheck()
    for number in range(batches):
        check.fetch(MOST_AHEAD)
        check.unsettled.append(np.array([number]))
    return check


# --- batches and steps --------------------------------------------------------------------------------------------------


def test_a_step_settles_the_oldest_batches() -> None:
    check = holding(5)
    assert check.step(10, 1) == (10, 1)
    assert check.step(30, 3) == (30, 3)
    assert [numbers.tolist() for numbers in check.unsettled] == [[4]]


def test_a_second_step_for_one_batch_is_refused_and_settles_nothing() -> None:
    check = holding(1)
    check.step(8, 1)
    with pytest.raises(LoopError, match=r"settles 1 batch, but the program holds none that no step has settled: a batch would count twice"):
        check.step(8, 1)
    check.unsettled.append(np.array([1]))
    with pytest.raises(LoopError, match=r"settles 2 batches, but the program holds 1 "):
        check.step(8, 2)
    assert len(check.unsettled) == 1


def test_a_loop_that_never_calls_step_hears_at_the_bound_what_to_do() -> None:
    check = holding(MOST_AHEAD)
    with pytest.raises(LoopError, match=r"holds 64 batches that no step\(\) has settled\. .*batches=N.*needs ahead=… above 64"):
        check.fetch(MOST_AHEAD)
    check.fetch(MOST_AHEAD + 1)


def test_a_program_that_feeds_itself_settles_nothing_and_may_not_begin_to_take_batches() -> None:
    check = LoopCheck()
    assert check.step(100, 4) == (100, None)
    assert check.feeds_itself
    with pytest.raises(LoopError, match="takes a batch from the session after steps with data of its own"):
        check.fetch(MOST_AHEAD)


def test_only_the_newest_loop_and_one_thread_take_batches() -> None:
    check = LoopCheck()
    first, _ = check.begin()
    check.again(first)
    second, _ = check.begin()
    check.again(second)
    with pytest.raises(LoopError, match="two loops take batches"):
        check.again(first)
    check.called("MainThread")
    with pytest.raises(LoopError, match=r"in the thread Thread-1, and was used in MainThread before"):
        check.called("Thread-1")


# --- numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [7, 7.0, np.int64(7), np.float64(7.0)])
def test_tokens_may_be_any_whole_number(tokens: float) -> None:
    assert LoopCheck().step(tokens, 1) == (7, None)


@pytest.mark.parametrize(("tokens", "error"), [(-1, ValueError), (7.5, TypeError), ("7", TypeError), (None, TypeError)])
def test_tokens_that_are_no_count_are_refused(tokens: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="tokens must"):
        LoopCheck().step(tokens, 1)


def test_a_loop_that_skips_batches_is_told_how_to_settle_them() -> None:
    def train(check: LoopCheck, *, settles: bool) -> None:
        for number in range(4 * MOST_AHEAD):
            check.fetch(MOST_AHEAD)
            check.unsettled.append(np.array([number]))
            if number % 2:  # a loss of NaN
                if settles:
                    check.step(0, 1, [number // 2 + 1])
                continue
            check.step(8, 1, [number // 2 + 1])

    with pytest.raises(LoopError, match=r"the program skips \(a loss of NaN, no memory\) is settled by session\.step\(tokens=0\)"):
        train(LoopCheck(), settles=False)
    train(LoopCheck(), settles=True)


def test_steps_without_tokens_are_refused_once_they_are_no_accident() -> None:
    check = LoopCheck()
    for _ in range(EMPTY_STEPS - 1):
        check.step(0, 1)
    check.step(1, 1)
    for _ in range(EMPTY_STEPS - 1):
        check.step(0, 1)
    with pytest.raises(LoopError, match=r"the last 16 steps had tokens=0: .*Pass the number of real tokens.*has skipped"):
        check.step(0, 1)


# --- updates of the optimizer -------------------------------------------------------------------------------------------


def loop(steps: int, updates_at: dict[int, int] | None = None, *, every: int = 1, each: int = 1) -> None:
    """A loop of `steps` steps whose one optimizer makes `each` updates at every `every`-th of them, and at some `updates_at` others."""
    check, updates = LoopCheck(), 0
    for step in range(1, steps + 1):
        updates += (updates_at or {}).get(step, each if step % every == 0 else 0)
        check.step(8, 1, [updates])


@pytest.mark.parametrize("every", [2, 4, 16])
def test_a_step_for_each_micro_batch_is_found(every: int) -> None:
    loop(UPDATES_WINDOW - 1, every=every)
    with pytest.raises(LoopError, match=rf"called 64 times for {64 // every} updates .* too small a weight .*batches=N"):
        loop(UPDATES_WINDOW, every=every)


def test_a_step_for_several_updates_is_found() -> None:
    with pytest.raises(LoopError, match=r"called 64 times for 256 updates .* too large a weight .* after every update"):
        loop(UPDATES_WINDOW, each=4)


def test_updates_that_a_gradient_scaler_leaves_out_are_no_mistake() -> None:
    loop(5 * UPDATES_WINDOW, dict.fromkeys(range(1, 17), 0) | dict.fromkeys(range(100, 320, 20), 0))


def test_updates_that_nobody_counts_are_no_mistake() -> None:
    loop(3 * UPDATES_WINDOW, every=10_000)
    loop(3 * UPDATES_WINDOW, dict.fromkeys(range(12, 193), 0))  # eleven to warm up, the rest are replays of a captured graph


def test_optimizers_may_take_turns_or_update_at_each_step() -> None:
    turns, both, critic = LoopCheck(), LoopCheck(), LoopCheck()
    for step in range(1, 3 * UPDATES_WINDOW):
        turns.step(8, 1, [step // 2, (step + 1) // 2])
        both.step(8, 1, [step, step])
        critic.step(8, 1, [5 * step, step])
