from __future__ import annotations

from diloco_operator.kube.worker_shares import IN_CONTENTION, PRESENT_SECONDS, WorkerShares
from hypothesis import given
from hypothesis import strategies as st


def held_by(shares: WorkerShares, lane: str, waiting: int = 0, now: float = 0.0) -> int:
    """How many it gets when it asks until it gets none, while so many of its keys wait."""
    count = 0
    while shares.may_have_one(lane, now):
        shares.took(lane, waiting, now)
        count += 1
    return count


def test_a_lane_alone_holds_four_fifths() -> None:
    shares = WorkerShares(20)
    assert held_by(shares, "a") == 16
    assert shares.may_have_one("b", 0.0)


def test_a_crowd_makes_room_while_another_lane_is_present() -> None:
    shares = WorkerShares(20)
    assert held_by(shares, "crowd", waiting=1000) == 16
    shares.took("quiet", 0, 1.0)
    for _ in range(16):  # what it holds ends
        assert held_by(shares, "crowd", 1000, 1.0) == 0
        shares.gave_back("crowd", 1000, 1.0)
    assert held_by(shares, "crowd", 1000, 1.0) == IN_CONTENTION
    shares.gave_back("quiet", 0, 2.0)
    gone = 2.0 + PRESENT_SECONDS
    for now, gets in ((gone, IN_CONTENTION), (gone + 0.1, 16)):  # its key ends, and it asks again
        shares.gave_back("crowd", 1000, now)
        assert held_by(shares, "crowd", 1000, now) == gets


def test_two_crowds_share_as_if_none_were_one() -> None:
    shares = WorkerShares(18)
    assert held_by(shares, "a", waiting=1000) == 15  # four fifths of 18, rounded up
    assert held_by(shares, "b", waiting=1000) == 3  # what is free: 2 is less than 4 x 1


def test_two_lanes_settle_on_equal_shares_and_leave_some() -> None:
    shares = WorkerShares(18)
    holds = {"a": held_by(shares, "a"), "b": 0}
    for _ in range(40):  # keys end, the oldest holder's first, and each lane asks again
        for lane in ("a", "b"):
            if holds[lane]:
                shares.gave_back(lane, 0, 0.0)
                holds[lane] -= 1
            holds[lane] += held_by(shares, lane)
    # n lanes have 4 / (4 n + 1) each: 8 of 18, and 2 are free.
    assert abs(holds["a"] - holds["b"]) <= 1
    assert sum(holds.values()) < 18
    assert shares.may_have_one("c", 0.0)


@given(st.integers(1, 30), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_a_lane_that_holds_none_gets_any_free_worker(workers: int, asks: list[tuple[str, bool]]) -> None:
    shares = WorkerShares(workers)
    holds = dict.fromkeys("abc", 0)
    for lane, ends in asks:
        if ends and holds[lane]:
            shares.gave_back(lane, 0, 0.0)
            holds[lane] -= 1
        free = workers - sum(holds.values())
        if not ends and free and shares.may_have_one(lane, 0.0):
            shares.took(lane, 0, 0.0)
            holds[lane] += 1
        for other, count in holds.items():
            if not count and workers > sum(holds.values()):
                assert shares.may_have_one(other, 0.0)
