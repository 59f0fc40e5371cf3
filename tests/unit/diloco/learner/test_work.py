from diloco.learner.work import AHEAD_BATCHES, MOST_AHEAD_BATCHES, LeasedWork
from hypothesis import given
from hypothesis import strategies as st


@given(leases=st.lists(st.integers(1, 9), max_size=8), count=st.integers(1, 7))
def test_every_leased_number_is_taken_once_and_in_order(leases: list[int], count: int) -> None:
    work, start = LeasedWork(), 0
    numbers: list[int] = []
    for length in leases:
        work.granted(start, start + length)
        numbers += range(start, start + length)
        start += length + 3
    taken: list[int] = []
    while (batch := work.take(count)) is not None:
        assert len(batch) == count
        taken += batch.tolist()
    assert taken == numbers[: len(numbers) // count * count]
    assert work.remaining == len(numbers) % count


def test_work_is_asked_for_well_ahead_and_only_once() -> None:
    work = LeasedWork()
    assert work.wanted(4, batch_seconds=10.0) == AHEAD_BATCHES * 4
    assert work.wanted(4, batch_seconds=10.0) == 0
    work.granted(0, AHEAD_BATCHES * 4)
    assert (work.asked, work.remaining) == (0, AHEAD_BATCHES * 4)
    work.take(4)
    assert work.wanted(4, batch_seconds=10.0) == 0, "not for every single batch"


def test_fast_steps_hold_more_batches_up_to_a_bound() -> None:
    # 20 s ahead: 0.1 s a step makes 200 batches, 1 ms a step would make 20,000
    assert LeasedWork().wanted(2, batch_seconds=0.1) == 400
    assert LeasedWork().wanted(2, batch_seconds=0.001) == 2 * MOST_AHEAD_BATCHES


def test_a_session_that_starts_anew_forgets_its_leases() -> None:
    work = LeasedWork()
    work.granted(0, 10)
    work.asked = 7
    work.forget()
    assert (work.take(1), work.remaining, work.asked) == (None, 0, 7)


def test_a_unit_that_rests_takes_nothing_and_asks_for_nothing_and_keeps_what_it_has() -> None:
    work = LeasedWork()
    work.granted(0, 4)
    work.quorum = 2
    assert work.take(2) is None
    assert work.wanted(2, batch_seconds=1.0) == 0
    assert "rests until a quorum of 2 learners trains" in work.why_none
    work.quorum = 0
    assert work.take(2) is not None
    assert work.wanted(2, batch_seconds=1.0) > 0
