"""Memory that is used again."""

import threading
from collections.abc import Buffer, Callable

import numpy as np
import pytest
from diloco.algorithm.spare import SpareMemory


def kept(limit: int, *sizes: int) -> SpareMemory:
    memory = SpareMemory(sizes or (400,))
    for size in sizes or (400,):
        memory.keep(size, limit)
    return memory


def address(memory: SpareMemory, n: int = 100) -> int:
    """Where an array would lie that is let go at once."""
    return memory.floats(n).ctypes.data


def test_what_nobody_refers_to_is_taken_again_also_for_another_size() -> None:
    memory = kept(1)
    where = address(memory, 100)
    again = memory.floats(60)
    assert again.shape == (60,)
    assert again.ctypes.data == where


@pytest.mark.parametrize("view", [lambda x: x[7:], lambda x: x.reshape(10, 10)[3], lambda x: memoryview(x).cast("B")[8:]])
def test_a_view_of_a_view_keeps_its_memory(view: Callable[[np.ndarray], Buffer]) -> None:
    memory = kept(2)
    array = memory.floats(100)
    where = array.ctypes.data
    array[:] = 5
    seen = view(array[:])
    del array
    assert address(memory) != where
    assert set(np.frombuffer(seen, np.float32).tolist()) == {5.0}
    del seen
    assert address(memory) == where


def test_what_is_in_use_is_never_handed_out() -> None:
    memory = kept(4)
    arrays = [memory.floats(100) for _ in range(3)]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_read_only_arrays_come_back_writable() -> None:
    memory = kept(1)
    memory.floats(100).flags.writeable = False
    assert memory.floats(100).flags.writeable


def test_no_more_are_kept_than_the_limit() -> None:
    memory = kept(1)
    arrays = [memory.floats(100) for _ in range(3)]
    del arrays
    assert len(memory._spare[400]) == 1
    memory.keep(400, 0)
    assert not memory._spare[400]


def test_a_request_gets_the_smallest_size_with_room_for_it() -> None:
    memory = kept(1, 200, 400)
    small, large = memory.take(200).ctypes.data, memory.take(400).ctypes.data
    assert (memory.take(150).ctypes.data, memory.take(201).ctypes.data) == (small, large)


def test_what_is_much_smaller_or_larger_than_the_sizes_is_not_kept() -> None:
    memory = kept(4)
    for size in (199, 401):
        assert memory.take(size).shape == (size,)
    assert not memory._spare[400]


def test_each_size_has_pieces_that_are_not_too_large_for_it_and_no_two_sizes_of_a_kind() -> None:
    memory = SpareMemory((800, 400, 390, 130, 100))
    assert {size: memory.piece_size(size) for size in (800, 400, 390, 130, 100)} == {800: 800, 400: 400, 390: 400, 130: 130, 100: 130}


def test_memory_comes_back_from_any_thread() -> None:
    memory = kept(8)

    def use() -> None:
        for value in range(300):
            first, second = memory.floats(100), memory.floats(90)
            first[:], second[:] = value, -value
            assert (first == value).all()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pieces = [memory.take(400) for _ in range(8)]
    assert len({piece.ctypes.data for piece in pieces}) == len(pieces)
