"""The fence, opened and shut by a thread that is not that of the writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from diloco_operator.kube.fence import Fence, NotLeading, boot_clock

LONG = 3600.0


async def elsewhere(work: Callable[[], None]) -> None:
    """In another thread, while this loop goes on."""
    await asyncio.to_thread(work)


def meanwhile(work: Callable[[], None]) -> None:
    """In another thread, while this loop stands still."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Write:
    """One that is under way until it is told to end."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._end = asyncio.Event()
        self._begun = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._fence.write():
            self._begun.set()
            await self._end.wait()

    async def begun(self) -> Write:
        await self._begun.wait()
        return self

    async def ends(self) -> None:
        self._end.set()
        await self.task


async def test_a_write_under_way_ends_when_another_thread_shuts_the_fence() -> None:
    fence = Fence()
    fence.open_until(boot_clock() + LONG)
    write = await Write(fence).begun()
    await elsewhere(fence.shut)
    with pytest.raises(NotLeading, match="during the write"):
        await write.task
    with pytest.raises(NotLeading):
        fence.check()


async def test_a_write_under_way_outlasts_a_loop_that_stood_still_past_its_deadline_if_the_lease_was_renewed() -> None:
    fence = Fence()
    until = boot_clock() + 0.05
    fence.open_until(until)
    write = await Write(fence).begun()

    def renew_and_wait() -> None:
        fence.open_until(until + LONG)
        while boot_clock() <= until:
            pass

    meanwhile(renew_and_wait)  # both the timer of the old deadline and the new one wait for the loop now
    await asyncio.sleep(0)
    await write.ends()


async def test_a_fence_that_was_shut_stays_shut_whatever_a_late_renewal_says() -> None:
    fence = Fence()
    fence.open_until(boot_clock() + LONG)
    fence.shut()
    await elsewhere(lambda: fence.open_until(boot_clock() + LONG))
    with pytest.raises(NotLeading):
        fence.check()


async def test_a_long_turn_before_writing_is_allowed_does_no_harm() -> None:
    turn = 60.0
    fence = Fence(turn=lambda: turn, longest_turn=15.0)
    fence.look()
    turn = 1.0
    fence.open_until(boot_clock() + LONG)
    fence.check()
    turn = 15.5
    with pytest.raises(NotLeading):
        fence.check()
    turn = 0.0
    with pytest.raises(NotLeading):
        fence.check()
    assert fence.stall == 15.5
