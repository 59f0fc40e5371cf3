"""Which job gives slices back for the demand of others, and how many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builders.nodes import a_tpu_node, an_inventory
from diloco_operator.fleet import Shape, Slice
from diloco_operator.operator.preemption import Preemption
from diloco_operator.placement.matching import SliceRequirements

V5P = Shape("tpu-v5p", "2x2x1", 4)
REQUIREMENTS = SliceRequirements(V5P, "")


def slices(count: int) -> tuple[Slice, ...]:
    return tuple(an_inventory(*(a_tpu_node(f"tpu-{index}") for index in range(count))).free(V5P))


class World:
    def __init__(self) -> None:
        self.free_slices: tuple[Slice, ...] = ()
        self.woken: list[str] = []
        fleet: Any = self
        self.preemption = Preemption(fleet, lambda key: self.woken.append(key[1]))

    def free(self, _: Shape) -> Iterator[Slice]:
        return iter(self.free_slices)

    def has(self, name: str, *, demand: int = 0, reclaimable: int = 0, priority: int = 0, created: float = 0.0) -> None:
        demands = {REQUIREMENTS: demand} if demand else {}
        self.preemption.set(("ns", name), priority=priority, created=created, demand=demands, reclaimable=slices(reclaimable))

    def due(self, name: str) -> int | None:
        """None: no other job has demand for such slices."""
        return self.preemption.reclaims(("ns", name)).get(REQUIREMENTS)


def test_one_missing_slice_comes_from_one_job_the_lowest_and_youngest() -> None:
    world = World()
    world.has("high", reclaimable=2, priority=5, created=3.0)
    world.has("old", reclaimable=2, created=1.0)
    world.has("young", reclaimable=2, created=2.0)
    assert world.due("young") is None
    world.has("hungry", demand=3)
    assert (world.due("young"), world.due("old"), world.due("high")) == (2, 1, 0)
    assert sorted(world.woken) == ["old", "young"]


def test_free_slices_need_not_be_given_back() -> None:
    world = World()
    world.has("scavenger", reclaimable=2)
    world.free_slices = slices(1)
    world.has("hungry", demand=2)
    assert world.due("scavenger") == 1


def test_no_job_gives_slices_back_for_its_own_demand() -> None:
    world = World()
    world.has("both", demand=1, reclaimable=2)
    assert world.due("both") is None
    assert world.woken == []


def test_no_job_is_woken_twice_for_the_same_demand_and_met_demand_is_forgotten() -> None:
    world = World()
    world.has("scavenger", reclaimable=1)
    world.has("hungry", demand=1)
    world.has("hungry", demand=1)
    assert world.woken == ["scavenger"]
    world.has("hungry")
    assert world.due("scavenger") is None


def test_job_without_reclaimable_slices_still_sees_the_demand_of_others() -> None:
    world = World()
    world.has("hungry", demand=1)
    assert world.due("scavenger") == 0
