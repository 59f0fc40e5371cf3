"""On virtual time: an event takes as long as a test says, and the loop's turns are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders.virtual_time import VirtualLoop, run_virtual, until
from diloco_operator.kube.client import EventType, WatchEvent
from diloco_operator.kube.event_turns import (
    LONGEST_TURN_SECONDS,
    MOST_BYTES,
    MOST_EVENTS,
    TURN_EVENTS,
    TURN_SECONDS,
    EventTurns,
)

MILLISECOND = 0.001


class Watch:
    """A watch whose events each take `seconds`. Notes what was applied, and how much in each turn of the loop."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.turns = EventTurns(self._apply)
        self.seconds = seconds
        self.applied: list[str] = []
        self.in_turns: list[int] = [0]
        self._counting = False

    def _apply(self, event: WatchEvent) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if not self._counting:
            self._counting = True
            self.in_turns.append(0)
            loop.call_soon(self._end_turn)
        self.in_turns[-1] += 1
        loop._jumping.now += self.seconds
        if event.object["metadata"]["name"] == "defect":
            raise ValueError("a defect")
        self.applied.append(event.object["metadata"]["name"])

    def _end_turn(self) -> None:
        self._counting = False

    async def read(self, *names: str, namespace: str = "crowd", size: int = 0) -> None:
        for name in names:
            self.turns.add(WatchEvent(EventType.ADDED, {"metadata": {"namespace": namespace, "name": name}}, size))
            await self.turns.pause()


def play(scenario: Callable[[Watch], Coroutine[Any, Any, None]], seconds: float = 0.0) -> Watch:
    async def run() -> Watch:
        watch = Watch(seconds)
        await scenario(watch)
        return watch

    return run_virtual(run())


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_few_events_are_applied_as_they_come() -> None:
    async def scenario(watch: Watch) -> None:
        reading = asyncio.create_task(watch.read("a", "b", "c"))
        await asyncio.sleep(0)
        assert watch.applied == ["a", "b", "c"]
        await reading

    play(scenario)


def test_a_turn_of_the_loop_has_few_of_many_events_and_all_keep_their_order() -> None:
    async def scenario(watch: Watch) -> None:
        await watch.read(*numbers(500))
        await until(lambda: len(watch.applied) == 500)

    watch = play(scenario)
    assert watch.applied == numbers(500)
    assert max(watch.in_turns) <= TURN_EVENTS


def test_events_that_take_long_get_half_of_the_time() -> None:
    async def scenario(watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await watch.read(*numbers(100))
        await until(lambda: len(watch.applied) == 100, step=MILLISECOND)
        # 100 ms of work in turns of 2 or 3 ms, each but the last followed by a pause of the same length.
        assert 0.195 <= loop.time() - begun <= 0.201

    watch = play(scenario, MILLISECOND)
    assert max(watch.in_turns) <= TURN_SECONDS / MILLISECOND + 1  # the sum of two times 1 ms may be a little less than 2 ms


def test_a_busy_loop_applies_for_longer_in_a_turn() -> None:
    async def scenario(watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        async def others() -> None:
            while True:
                loop._jumping.now += 50 * MILLISECOND
                await asyncio.sleep(0)

        busy = asyncio.create_task(others())
        await watch.read(*numbers(100))
        begun = loop.time()
        await until(lambda: len(watch.applied) == 100, step=MILLISECOND)
        # Turns of 10 ms, each after at most two of the others: 10 rounds of 110 ms, and at most 10 while turns grow. Turns of 2 ms would
        # need 50.
        assert loop.time() - begun <= 20 * 0.11
        busy.cancel()

    watch = play(scenario, MILLISECOND)
    assert LONGEST_TURN_SECONDS / MILLISECOND <= max(watch.in_turns) <= LONGEST_TURN_SECONDS / MILLISECOND + 1


def test_an_event_of_another_namespace_does_not_wait_for_those_of_a_crowd() -> None:
    async def scenario(watch: Watch) -> None:
        await watch.read(*numbers(1000))
        before = len(watch.applied)
        await watch.read("mine", namespace="quiet")
        await until(lambda: "mine" in watch.applied, step=MILLISECOND)
        # One event of each namespace in turn; a turn of the loop may have begun.
        assert watch.applied.index("mine") <= before + TURN_SECONDS / MILLISECOND + 2
        await until(lambda: len(watch.applied) == 1001)

    play(scenario, MILLISECOND)


@pytest.mark.parametrize(("size", "most"), [(0, MOST_EVENTS), (MOST_BYTES // 100, 100)])
def test_no_more_is_read_while_too_much_waits(size: int, most: int) -> None:
    async def scenario(watch: Watch) -> None:
        read = 0

        async def reader() -> None:
            nonlocal read
            for name in numbers(3 * most):
                await watch.read(name, size=size)
                read += 1

        reading = asyncio.create_task(reader())
        while not reading.done():
            assert read - len(watch.applied) <= most
            await asyncio.sleep(MILLISECOND)
        await until(lambda: len(watch.applied) == 3 * most)

    play(scenario, MILLISECOND)


def test_what_waits_is_forgotten_once_all_is_known_from_elsewhere() -> None:
    async def scenario(watch: Watch) -> None:
        await watch.read(*numbers(100))
        watch.turns.clear()
        applied = len(watch.applied)
        await watch.read("later")
        await until(lambda: watch.applied[applied:] == ["later"])

    play(scenario, MILLISECOND)


def test_what_an_event_raises_is_raised_at_the_next_one() -> None:
    async def scenario(watch: Watch) -> None:
        await watch.read(*numbers(TURN_EVENTS), "defect")
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="a defect"):
            await watch.read("next")

    play(scenario, MILLISECOND)


def test_nothing_is_applied_after_the_end() -> None:
    async def scenario(watch: Watch) -> None:
        await watch.read(*numbers(100))
        await watch.turns.close()
        applied = len(watch.applied)
        await asyncio.sleep(1)
        assert len(watch.applied) == applied < 100

    play(scenario, MILLISECOND)
