from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from diloco_operator.fleet import Shape
from diloco_operator.operator.capacity import CapacityQueue

V5P = Shape("tpu-v5p", "2x2x2", 4, 2)
PAIR = Shape("nvidia-h100-80gb", "", 8, 2)


class Fleet:
    """The part of a fleet that the queue uses: how many slices of each shape are free."""

    def __init__(self) -> None:
        self.free_slices: dict[Shape, int] = {}

    def free(self, shape: Shape) -> Iterator[int]:
        return iter(range(self.free_slices.get(shape, 0)))


class World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.woken: list[str] = []
        fleet: Any = self.fleet
        self.queue = CapacityQueue(fleet, lambda key: self.woken.append(key[1]))

    def waits(self, name: str, created: float, *shapes: Shape) -> None:
        self.queue.set_demand(("ns", name), created, shapes)

    def reconciles(self, name: str, takes: Shape | None = None) -> None:
        """The job is reconciled and takes a slice, or takes none."""
        if takes is not None:
            self.fleet.free_slices[takes] -= takes.slots
            self.waits(name, 0.0)
        self.queue.reconciled(("ns", name))


@pytest.fixture
def world() -> World:
    world = World()
    world.waits("young", 30.0, V5P)
    world.waits("old", 10.0, V5P)
    world.waits("middle", 20.0, V5P, PAIR)
    return world


def test_the_oldest_job_is_woken_first_and_alone(world: World) -> None:
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    assert world.woken == ["old"]


def test_priority_comes_before_age(world: World) -> None:
    world.queue.set_demand(("ns", "urgent"), 40.0, [V5P], priority=100)
    world.queue.set_demand(("ns", "idle"), 5.0, [V5P], priority=-1)
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    for name in ("urgent", "old", "middle", "young"):
        world.reconciles(name)
    assert world.woken == ["urgent", "old", "middle", "young", "idle"]


def test_what_the_first_leaves_is_offered_to_the_next(world: World) -> None:
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    world.reconciles("old")
    assert world.woken == ["old", "middle"]
    world.reconciles("middle", takes=V5P)
    assert world.woken == ["old", "middle"]


def test_what_is_left_after_one_took_its_share_is_offered_again(world: World) -> None:
    world.fleet.free_slices[V5P] = 2
    world.queue.slices_freed()
    world.reconciles("old", takes=V5P)
    assert world.woken == ["old", "middle"]


def test_jobs_are_not_woken_in_a_circle(world: World) -> None:
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    for name in ("old", "middle", "young"):
        world.reconciles(name)
    assert world.woken == ["old", "middle", "young"]


def test_a_reconcile_that_was_not_woken_wakes_no_other_job(world: World) -> None:
    world.fleet.free_slices[V5P] = 1
    world.reconciles("old")
    assert world.woken == []


def test_fewer_hosts_than_a_unit_needs_wake_no_job(world: World) -> None:
    world.fleet.free_slices[PAIR] = 1
    world.queue.slices_freed()
    assert world.woken == []
    world.fleet.free_slices[PAIR] = 2
    world.queue.slices_freed()
    assert world.woken == ["middle"]


def test_a_job_that_got_its_slice_is_not_woken_again(world: World) -> None:
    world.waits("old", 10.0)
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    assert world.woken == ["middle"]


def test_another_job_under_the_same_name_has_its_own_age(world: World) -> None:
    world.waits("old", 40.0, V5P)
    world.fleet.free_slices[V5P] = 1
    world.queue.slices_freed()
    assert world.woken == ["middle"]
