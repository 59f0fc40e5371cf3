"""Keys take turns for slots. Virtual time: a request takes one second, so a second is a round."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from builders.virtual_time import run_virtual
from diloco_operator.kube.request_fairness import FairSlots


class Stage:
    def __init__(self, slots: int, *, most: int | None = None, light: int = 1, most_in_contention: int | None = None) -> None:
        self.slots: FairSlots[str] = FairSlots(slots, most=most, light=light, most_in_contention=most_in_contention)
        self.ended: dict[str, list[float]] = {}
        self.busy: dict[str, int] = {}
        self.busiest: dict[str, int] = {}

    async def request(self, key: str, seconds: float = 1.0) -> None:
        async with self.slots.slot(key):
            for name in (key, "all"):
                self.busy[name] = self.busy.get(name, 0) + 1
                self.busiest[name] = max(self.busiest.get(name, 0), self.busy[name])
            try:
                await asyncio.sleep(seconds)
            finally:
                for name in (key, "all"):
                    self.busy[name] -= 1
        self.ended.setdefault(key, []).append(asyncio.get_running_loop().time())


def play(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtual(scenario)


def test_a_single_request_does_not_wait_behind_a_thousand_of_another_key() -> None:
    async def scenario() -> None:
        stage = Stage(8)
        heavy = [asyncio.create_task(stage.request("big")) for _ in range(1000)]
        await asyncio.sleep(0.5)
        await stage.request("small")
        # One second until one of the heavy flow's 8 requests ends, and one for itself. Alone it would take one second.
        assert stage.ended["small"] == [2.0]
        await asyncio.gather(*heavy)
        assert stage.ended["big"][-1] == 126.0  # 1001 requests, 8 a second

    play(scenario())


def test_with_a_limit_for_each_key_it_does_not_wait_at_all() -> None:
    async def scenario() -> None:
        stage = Stage(8, most=6)
        heavy = [asyncio.create_task(stage.request("big")) for _ in range(100)]
        await asyncio.sleep(0.5)
        await stage.request("small")
        assert stage.ended["small"] == [1.5]
        await asyncio.gather(*heavy)
        assert stage.busiest == {"big": 6, "small": 1, "all": 7}

    play(scenario())


def test_in_contention_a_heavy_flow_has_few_slots_and_alone_again_many() -> None:
    async def scenario() -> None:
        stage = Stage(8, most=6, light=2, most_in_contention=2)
        held: list[tuple[float, int]] = []

        async def note() -> None:
            while True:
                await asyncio.sleep(1)
                held.append((asyncio.get_running_loop().time(), stage.busy["big"]))

        heavy = [asyncio.create_task(stage.request("big")) for _ in range(60)]
        await asyncio.sleep(0.5)
        noting = asyncio.create_task(note())
        await asyncio.sleep(0.1)
        await stage.request("small", 3.2)  # from 0.6 to 3.8, which counts for a second more
        await asyncio.gather(*heavy)
        noting.cancel()
        # At 1.0 the first six end. Only two may follow, after a cool-down of a second, and another two after theirs. At 5.0 "big" has been
        # alone for more than a second.
        assert held[:7] == [(1.5, 0), (2.5, 2), (3.5, 0), (4.5, 2), (5.5, 6), (6.5, 6), (7.5, 6)]

    play(scenario())


def test_a_light_flow_is_never_limited_and_limits_a_heavy_flow() -> None:
    async def scenario() -> None:
        stage = Stage(20, most=12, light=4, most_in_contention=1)
        heavy = [asyncio.create_task(stage.request("big")) for _ in range(24)]
        units = [asyncio.create_task(stage.request(key, 0.5)) for key in ("small", "other") for _ in range(4)]
        await asyncio.gather(*heavy, *units)
        # The four hosts of a unit are requested together, whatever other keys request. That counts until 1.5, so the heavy flow, whose
        # first twelve requests end at 1.0, cools down until 2.0.
        assert stage.ended["small"] == stage.ended["other"] == [0.5] * 4
        assert stage.ended["big"] == [1.0] * 12 + [3.0] * 12

    play(scenario())


def test_after_a_very_slow_request_a_heavy_flow_has_only_a_short_cool_down() -> None:
    async def scenario() -> None:
        stage = Stage(8, most=6, most_in_contention=1)
        small = asyncio.create_task(stage.request("small", 100.0))
        await asyncio.sleep(0)
        await asyncio.gather(*(stage.request("big", 30.0) for _ in range(3)))
        small.cancel()
        # Two are sent before the third makes the flow heavy. The third follows a second after them.
        assert stage.ended["big"] == [30.0, 30.0, 61.0]

    play(scenario())


def test_two_heavy_flows_share_the_slots_also_while_one_of_them_ends() -> None:
    async def scenario() -> None:
        stage = Stage(8, most=6, light=2, most_in_contention=2)
        crowds = [asyncio.create_task(stage.request(key)) for key, count in (("a", 16), ("b", 28)) for _ in range(count)]
        await asyncio.gather(*crowds)
        # A round a second: "a" has 6 + 4 + 4 + 2, for it came first, and "b" 2 + 4 + 4 + 6 + 6 + 6: never 2 because of the other.
        assert stage.ended["a"][-1] == 4.0
        assert stage.ended["b"][-1] == 6.0

    play(scenario())


def test_keys_take_turns() -> None:
    async def scenario() -> None:
        stage = Stage(1)
        waiting = [asyncio.create_task(stage.request(key)) for key in ["a"] * 4 + ["b"] * 2 + ["c"]]
        await asyncio.gather(*waiting)
        # The first "a" gets the slot before another key waits; then a b c a b a.
        assert stage.ended == {"a": [1, 2, 5, 7], "b": [3, 6], "c": [4]}

    play(scenario())


def test_a_slot_granted_to_a_request_that_is_cancelled_goes_to_the_next() -> None:
    async def scenario() -> None:
        stage = Stage(1)
        first = asyncio.create_task(stage.request("a"))
        await asyncio.sleep(0.5)
        given_up = asyncio.create_task(stage.request("b"))
        last = asyncio.create_task(stage.request("c"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)  # the slot is b's now, and b has not run yet
        given_up.cancel()
        await last
        assert stage.ended == {"c": [1.5]}
        assert stage.slots.waiting == 0

    play(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_cancellations_never_lose_or_create_a_slot(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        stage = Stage(4, most=3)
        tasks = []
        for _ in range(200):
            tasks.append(asyncio.create_task(stage.request(rng.choice("abcde"), rng.random())))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() / 10)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert stage.busiest["all"] <= 4
        assert all(stage.busiest.get(key, 0) <= 3 for key in "abcde")
        before = asyncio.get_running_loop().time()
        await asyncio.gather(*(stage.request(key) for key in "abcd"))  # all four slots are free again
        assert asyncio.get_running_loop().time() == before + 1

    play(scenario())


def test_no_slot_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="every limit must be 1 or more"):
        FairSlots(0)
    with pytest.raises(ValueError, match="every limit must be 1 or more"):
        FairSlots(4, most_in_contention=0)
