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


class Jobs:
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
    jobs = Jobs()
    jobs.has("high", reclaimable=2, priority=5, created=3.0)
    jobs.has("old", reclaimable=2, created=1.0)
    jobs.has("young", reclaimable=2, created=2.0)
    assert jobs.due("young") is None
    jobs.has("waiting", demand=3)
    assert (jobs.due("young"), jobs.due("old"), jobs.due("high")) == (2, 1, 0)
    assert sorted(jobs.woken) == ["old", "young"]


def test_free_slices_need_not_be_given_back() -> None:
    jobs = Jobs()
    jobs.has("scavenger", reclaimable=2)
    jobs.free_slices = slices(1)
    jobs.has("waiting", demand=2)
    assert jobs.due("scavenger") == 1


def test_no_job_gives_slices_back_for_its_own_demand() -> None:
    jobs = Jobs()
    jobs.has("both", demand=1, reclaimable=2)
    assert jobs.due("both") is None
    assert jobs.woken == []


def test_no_job_is_woken_twice_for_the_same_demand_and_met_demand_is_forgotten() -> None:
    jobs = Jobs()
    jobs.has("scavenger", reclaimable=1)
    jobs.has("waiting", demand=1)
    jobs.has("waiting", demand=1)
    assert jobs.woken == ["scavenger"]
    jobs.has("waiting")
    assert jobs.due("scavenger") is None


def test_job_without_reclaimable_slices_still_sees_the_demand_of_others() -> None:
    jobs = Jobs()
    jobs.has("waiting", demand=1)
    assert jobs.due("scavenger") == 0
