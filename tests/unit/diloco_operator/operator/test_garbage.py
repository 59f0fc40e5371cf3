"""Full garbage collections look at what is new; all is collected when memory has grown and nothing waits."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest
from builders.virtual_time import run_virtual
from diloco_operator.operator.garbage import GROWTH, LEAST_GROWTH, Garbage

GIB = 1 << 30


class Cycle:
    """Only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


class Memory:
    """The memory of a process that the test lets grow."""

    def __init__(self) -> None:
        self.bytes = GIB

    def __call__(self) -> int:
        return self.bytes


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As it was, after the test."""
    yield
    gc.unfreeze()


def is_looked_at(kept: object) -> bool:
    """Whether the next full collection looks at it."""
    return any(each is kept for each in gc.get_objects())


def test_a_full_collection_leaves_what_survives_it_out_of_the_next_ones() -> None:
    with Garbage().short_collections():
        kept = Cycle()
        assert is_looked_at(kept)
        gc.collect()
        assert not is_looked_at(kept)
        new = Cycle()
        assert is_looked_at(new)


def test_a_collection_of_the_young_leaves_all_as_it_is() -> None:
    with Garbage().short_collections():
        kept = Cycle()
        gc.collect(1)
        assert is_looked_at(kept)


@pytest.mark.slow
def test_no_collection_looks_at_many_objects_however_many_are_kept() -> None:
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(len(gc.get_objects()))

    with Garbage().short_collections():
        gc.collect()
        gc.collect()  # Python waits for a quarter of what the last full collection kept, so that must be none of what this process has
        gc.callbacks.append(note)
        kept = [[each] for each in range(500_000)]
        gc.callbacks.remove(note)
    # Three collections of the middle generation, each after eleven of the youngest of 2,000 new objects: 66,000.
    assert len(looked_at) >= 5
    assert max(looked_at) < 80_000
    assert len(kept) == 500_000


def test_what_was_there_is_left_out_of_later_collections_but_for_young_garbage() -> None:
    kept, gone = Cycle(), Cycle()
    seen = weakref.ref(gone)
    del gone
    Garbage().leave_out()
    assert seen() is None
    assert not is_looked_at(kept)


def test_everything_is_collected_with_the_cycles_that_were_left_out() -> None:
    gone = Cycle()
    seen = weakref.ref(gone)
    garbage = Garbage()
    garbage.leave_out()
    del gone
    gc.collect()
    assert seen() is not None
    assert garbage.collect_all() >= 1
    assert seen() is None


def test_everything_is_due_once_memory_has_grown_by_half_since_the_last_time() -> None:
    memory = Memory()
    garbage = Garbage(memory)
    memory.bytes = int(GROWTH * GIB) - 1
    assert not garbage.look()
    memory.bytes = int(GROWTH * GIB)
    assert garbage.look()
    garbage.collect_all()
    assert not garbage.look()


def test_memory_that_was_given_back_counts_as_little_as_there_was() -> None:
    memory = Memory()
    garbage = Garbage(memory)
    memory.bytes = GIB // 2
    assert not garbage.look()
    memory.bytes = GIB
    assert garbage.look()


def test_a_small_process_may_grow_by_more() -> None:
    memory = Memory()
    memory.bytes = 1
    garbage = Garbage(memory)
    memory.bytes = LEAST_GROWTH
    assert not garbage.look()
    memory.bytes = LEAST_GROWTH + 1
    assert garbage.look()


def test_everything_is_collected_when_it_is_due_and_nothing_waits() -> None:
    memory, busy = Memory(), True
    gone = Cycle()
    seen = weakref.ref(gone)
    garbage = Garbage(memory)
    garbage.leave_out()
    del gone

    async def scene() -> None:
        nonlocal busy
        task = asyncio.create_task(garbage.collect_when_grown(lambda: not busy))
        memory.bytes = 2 * GIB
        await asyncio.sleep(60)
        assert seen() is not None
        busy = False
        await asyncio.sleep(60)
        assert seen() is None
        assert not garbage.look()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run_virtual(scene())
