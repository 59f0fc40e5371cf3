"""How far a session's work is in the model: the minimum over the fragments of what was merged."""

import pytest
from diloco.data.ledger import UnitWork
from diloco.data.watermark import Watermark


def at(step: int) -> UnitWork:
    """After `step` steps of 2 samples and 30 tokens each."""
    return UnitWork(2 * step, 30 * step, step)


def test_a_step_is_committed_once_every_fragment_has_merged_a_contribution_from_then_or_later() -> None:
    mark = Watermark(3)
    for p, t, step in ((0, 1, 4), (1, 2, 6)):
        mark.offered(p, t, at(step))
        assert mark.closed(p, t, merged=True)
        assert mark.committed == UnitWork()
    mark.offered(2, 3, at(5))
    assert mark.committed == UnitWork(), "accepted is not merged"
    assert mark.closed(2, 3, merged=True)
    assert mark.committed == at(4)
    mark.offered(0, 4, at(9))
    mark.closed(0, 4, merged=True)
    assert mark.committed == at(5), "fragment 2 holds it back"


def test_an_exchange_that_changes_nothing_moves_nothing() -> None:
    mark = Watermark(1)
    mark.offered(0, 4, at(3))
    assert mark.closed(0, 4, merged=False)
    assert not mark.closed(0, 4, merged=True)
    assert (mark.committed, mark.waits) == (UnitWork(), False)


def test_the_merge_of_another_outer_step_is_not_this_ones() -> None:
    mark = Watermark(1)
    mark.offered(0, 4, at(3))
    assert not mark.closed(0, 2, merged=True)
    assert not mark.closed(0, 2, merged=False)
    assert (mark.committed, mark.waits) == (UnitWork(), True)


def test_a_later_merge_of_an_earlier_reading_takes_nothing_back() -> None:
    mark = Watermark(1)
    mark.offered(0, 1, at(5))
    mark.closed(0, 1, merged=True)
    mark.offered(0, 2, at(3))
    mark.closed(0, 2, merged=True)
    assert mark.committed == at(5)


def test_it_knows_per_fragment_the_last_merge_that_had_something_of_the_session() -> None:
    mark = Watermark(2)
    for t, merged in ((3, True), (5, False)):
        mark.offered(1, t, at(t))
        mark.closed(1, t, merged=merged)
    mark.closed(1, 7, merged=True)  # of others
    assert (mark.merged_at(0), mark.merged_at(1)) == (0, 3)


def test_reachable_is_what_open_exchanges_may_still_commit() -> None:
    mark = Watermark(2)
    mark.offered(0, 1, at(4))
    assert mark.reachable == UnitWork(), "nothing of fragment 1 waits"
    mark.offered(1, 2, at(6))
    assert mark.reachable == at(4)
    mark.closed(0, 1, merged=True)
    mark.closed(1, 2, merged=True)
    mark.offered(0, 3, at(8))
    assert (mark.reachable, mark.committed) == (at(6), at(4))


def test_an_open_exchange_of_an_earlier_reading_takes_nothing_back() -> None:
    """The push that was read at step 5 overtook the one of step 3. Work up to step 5 is in the model, whatever becomes of the other."""
    mark = Watermark(2)
    for p in (0, 1):
        mark.offered(p, 1 + p, at(5))
        mark.closed(p, 1 + p, merged=True)
    mark.offered(0, 3, at(3))
    assert mark.reachable == at(5)


def test_contributions_may_be_merged_in_another_order_than_they_were_read() -> None:
    mark = Watermark(2)
    mark.offered(1, 2, at(6))
    assert mark.contradiction(at(4)) == ""
    mark.offered(0, 1, at(4))
    mark.closed(1, 2, merged=True)
    mark.closed(0, 1, merged=True)
    assert mark.committed == at(4)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize(
    "done", [UnitWork(11, 149, 6), UnitWork(11, 160, 4), UnitWork(9, 151, 5), UnitWork(9, 150, 6), UnitWork(10, 151, 4)]
)
def test_totals_that_would_shrink_with_time_are_a_contradiction(done: UnitWork, merged: bool) -> None:
    mark = Watermark(2)
    mark.offered(0, 1, at(5))  # 10 samples, 150 tokens, 5 steps
    if merged:
        mark.closed(0, 1, merged=True)
    assert "are not totals of one session" in mark.contradiction(done)


def test_equal_totals_are_no_contradiction() -> None:
    mark = Watermark(2)
    mark.offered(0, 1, at(5))
    assert mark.contradiction(at(5)) == ""
