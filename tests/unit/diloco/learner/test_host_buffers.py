"""Host memory is allocated once for what is in use at one time, and given up when it was not needed for long."""

from __future__ import annotations

from diloco.learner.host_buffers import LEAST_FREE, LOOK_BACK, HostBuffers


class Allocator:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.buffers = HostBuffers(self.allocate)

    def allocate(self, size: int) -> object:
        self.sizes.append(size)
        return object()

    def use(self, count: int) -> None:
        """So many at one time."""
        for held in [self.buffers.take(10) for _ in range(count)]:
            self.buffers.give(*held)


def test_what_was_in_use_at_one_time_is_not_allocated_again() -> None:
    allocator = Allocator()
    for _ in range(3 * LOOK_BACK):
        allocator.use(5)
    assert len(allocator.sizes) == 5


def test_buffers_that_were_not_needed_for_long_are_given_up() -> None:
    allocator = Allocator()
    allocator.use(7)
    for _ in range(3 * LOOK_BACK):
        allocator.use(1)
    allocator.use(LEAST_FREE)
    assert len(allocator.sizes) == 7
    allocator.use(7)
    # Of the seven those are left that were free in any case, and the one that was used.
    assert 7 + 7 - LEAST_FREE - 1 <= len(allocator.sizes) <= 7 + 7 - LEAST_FREE


def test_a_buffer_too_small_for_the_largest_fragment_is_not_used_again() -> None:
    allocator = Allocator()
    small = allocator.buffers.take(5)
    large = allocator.buffers.take(10)
    allocator.buffers.give(*small)
    allocator.buffers.give(*large)
    assert allocator.buffers.take(5) == large
    assert allocator.buffers.take(5)[0] == 10
    assert allocator.sizes == [5, 10, 10]
