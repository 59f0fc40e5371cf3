from __future__ import annotations

import asyncio

from diloco.syncer.streams.service import SendTurns


async def passes_of(turns: SendTurns, tasks: int, rounds: int) -> list[list[str]]:
    """Which tasks had a turn in each pass of the event loop that had one."""
    loop, passed = asyncio.get_running_loop(), [0]
    found: dict[int, list[str]] = {}

    def count() -> None:
        passed[0] += 1
        counting[0] = loop.call_soon(count)

    async def work(name: str) -> None:
        for _ in range(rounds):
            await turns.next()
            found.setdefault(passed[0], []).append(name)

    counting = [loop.call_soon(count)]
    await asyncio.gather(*(work(str(index)) for index in range(tasks)))
    counting[0].cancel()
    return [found[key] for key in sorted(found)]


async def test_one_task_goes_on_in_each_pass_of_the_event_loop_in_turn() -> None:
    passes = await passes_of(SendTurns(), tasks=3, rounds=4)
    # The first one finds no other that waits, and goes on at once.
    assert passes == [["0"], *([name] for name in ["0", "1", "2"] * 3), ["1"], ["2"]]


async def test_a_task_that_is_alone_never_waits_for_another() -> None:
    assert await passes_of(SendTurns(), tasks=1, rounds=5) == [["0"]] * 5


async def test_a_cancelled_task_does_not_keep_the_turn() -> None:
    turns = SendTurns()
    await turns.next()
    waiting = [asyncio.create_task(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)  # the first one has its turn in the next pass
    waiting[1].cancel()
    async with asyncio.timeout(180):
        await asyncio.gather(*waiting, return_exceptions=True)
        await turns.next()
    assert [task.cancelled() for task in waiting] == [False, True, False]
