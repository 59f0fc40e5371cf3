from __future__ import annotations

from diloco_operator.kube.worker_shares import WorkerShares
from hypothesis import given
from hypothesis import strategies as st


def held_by(shares: WorkerShares, lane: str) -> int:
    """How many it gets when it asks until it gets none."""
    count = 0
    while shares.may_have_one(lane):
        shares.took(lane)
        count += 1
    return count


def test_a_lane_alone_holds_four_fifths() -> None:
    shares = WorkerShares(20)
    assert held_by(shares, "a") == 16
    assert shares.may_have_one("b")


def test_two_lanes_settle_on_equal_shares_and_leave_some() -> None:
    shares = WorkerShares(18)
    holds = {"a": held_by(shares, "a"), "b": 0}
    for _ in range(40):  # keys end, the oldest holder's first, and each lane asks again
        for lane in ("a", "b"):
            if holds[lane]:
                shares.gave_back(lane)
                holds[lane] -= 1
            holds[lane] += held_by(shares, lane)
    # n lanes have 4 / (4 n + 1) each: 8 of 18, and 2 are free.
    assert abs(holds["a"] - holds["b"]) <= 1
    assert sum(holds.values()) < 18
    assert shares.may_have_one("c")


@given(st.integers(1, 30), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_a_lane_that_holds_none_gets_any_free_worker(workers: int, asks: list[tuple[str, bool]]) -> None:
    shares = WorkerShares(workers)
    holds = dict.fromkeys("abc", 0)
    for lane, ends in asks:
        if ends and holds[lane]:
            shares.gave_back(lane)
            holds[lane] -= 1
        free = workers - sum(holds.values())
        if not ends and free and shares.may_have_one(lane):
            shares.took(lane)
            holds[lane] += 1
        for other, count in holds.items():
            if not count and workers > sum(holds.values()):
                assert shares.may_have_one(other)
