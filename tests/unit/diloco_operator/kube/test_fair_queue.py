from __future__ import annotations

from collections import defaultdict

from diloco_operator.kube.fair_queue import FairQueue
from hypothesis import given
from hypothesis import strategies as st

type Key = tuple[str, int]

STEPS = st.lists(st.one_of(st.sampled_from("abcd"), st.none()), max_size=80)
"""A lane in which a key comes to wait; None: the next key is taken."""


def fair() -> FairQueue[Key]:
    return FairQueue(lambda key: key[0])


@given(STEPS)
def test_no_lane_waits_for_more_than_one_key_of_each_other_lane(steps: list[str | None]) -> None:
    queue = fair()
    waiting: dict[str, list[Key]] = defaultdict(list)
    passed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # lane -> other lane -> keys taken while it waited
    for number, lane in enumerate(steps):
        if lane is not None:
            queue.append((lane, number))
            waiting[lane].append((lane, number))
        elif any(waiting.values()):
            key = queue.pop()
            assert key is not None
            assert key == waiting[key[0]].pop(0), "within a lane the oldest key comes first"
            passed[key[0]].clear()
            for other in "abcd":
                if other != key[0] and waiting[other]:
                    passed[other][key[0]] += 1
                    assert passed[other][key[0]] <= 1, f"{other} waits, and {key[0]} has its second turn"
        assert len(queue) == sum(map(len, waiting.values())), "no key is lost, and none comes twice"


def test_a_key_waits_behind_one_of_ten_thousand_of_another_lane() -> None:
    queue = fair()
    for number in range(10_000):
        queue.append(("crowd", number))
    queue.append(("quiet", 0))
    assert [queue.pop(), queue.pop()] == [("crowd", 0), ("quiet", 0)]


def test_an_empty_lane_is_forgotten() -> None:
    queue = fair()
    queue.append(("a", 0))
    queue.pop()
    assert not queue._lanes
    assert queue.pop() is None


def test_a_lane_that_may_have_none_now_is_passed_over_and_keeps_its_turn() -> None:
    queue = fair()
    for key in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        queue.append(key)
    assert [queue.pop(lambda lane: lane != "a"), queue.pop(lambda lane: lane != "a")] == [("b", 0), ("b", 1)]
    assert queue.pop(lambda lane: lane != "a") is None
    assert [queue.pop(), queue.pop()] == [("a", 0), ("a", 1)]
