"""Jobs with units of several sizes come to rest: none takes from another what that one takes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders.allotted_jobs import World, a_pool
from builders.exploration import examples
from builders.nodes import a_gpu_node
from builders.random_worlds import ZONE, gpus, of_parts, of_two_zones, of_two_zones_and_parts
from diloco_operator.api.spec import Locality

EXCHANGED: dict[Callable[[int], World], tuple[int, ...]] = {
    of_two_zones: (1664, 2070, 3049, 4064, 4598, 4863, 4985, 5672, 6590),
    of_parts: (1991, 3508, 4218, 4434, 4653, 4923, 5867, 6121, 6173, 6337),
    of_two_zones_and_parts: (),
}
"""Seeds of fleets on which units were exchanged for ever before: of two zones all of the first 8,000, of parts of the first 6,400."""


def check_at_rest(world: World) -> None:
    left = world.left
    world.settle()
    assert world.left == left, "nothing changed, and yet a unit left"


@pytest.mark.slow
@pytest.mark.parametrize("a_world", EXCHANGED)
def test_units_that_were_exchanged_for_ever_come_to_rest(a_world: Callable[[int], World]) -> None:
    for seed in EXCHANGED[a_world]:
        check_at_rest(a_world(seed))


@pytest.mark.slow
@pytest.mark.parametrize("a_world", EXCHANGED)
def test_any_fleet_comes_to_rest(a_world: Callable[[int], World]) -> None:
    for seed in range(examples(50)):
        check_at_rest(a_world(seed))


def test_a_minimum_of_a_group_and_single_hosts_gets_them_once_units_have_left_for_it() -> None:
    """While `old` has most of the larger zone, the single units of `young` find room in the other one alone; once it has left, they would
    take hosts of the group first, and `young` would wait for ever."""
    zones = ["z1"] * 4 + ["z2"] * 2
    world = World(*(a_gpu_node(f"gpu-{index}", labels={ZONE: zone}) for index, zone in enumerate(zones)))
    groups, singles = a_pool(shape=gpus(8, 3), locality=Locality.ZONE), a_pool(shape=gpus(8))
    world.job("old", replace(groups, max=1), replace(singles, max=3), min=1).settle()
    world.job("young", replace(groups, max=3), replace(singles, max=2), min=3).settle()
    assert (world.counts(), world.left) == ({"old": 1, "young": 3}, 3)
    check_at_rest(world)
