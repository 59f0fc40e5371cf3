"""How the slices of a fleet are counted for the flow."""

from __future__ import annotations

from collections.abc import Generator
from unittest.mock import patch

from builders.allotted_jobs import World, a_pool
from builders.nodes import a_gpu_node, a_tpu_node
from diloco_operator.allotment.flow_problem import NamedProblem, ProblemBuilder
from diloco_operator.allotment.stocks import ROOM, points
from diloco_operator.fleet import Resources, Shape


def gpus(count: int, hosts: int = 1) -> Shape:
    return Shape("nvidia-h100-80gb", "", count, hosts)


def problem_of(world: World) -> NamedProblem:
    """What the allotment would ask the flow now."""
    [found] = asked(world)
    return found


def asked(world: World) -> list[NamedProblem]:
    found: list[NamedProblem] = []
    build = ProblemBuilder.build

    def noted(self: ProblemBuilder, component: int) -> Generator[None, object, NamedProblem]:
        found.append((yield from build(self, component)))
        return found[-1]

    with patch.object(ProblemBuilder, "build", noted):
        world.restarted()
    return found


def rooms(problem: NamedProblem) -> list[int]:
    return sorted(class_.room for class_ in problem.flow.classes)


def test_a_unit_takes_the_largest_fraction_of_any_resource() -> None:
    host = Resources(cpu=16_000, memory=1 << 40, pods=110, devices=(("nvidia.com/gpu", 8),))
    assert points(Resources(pods=1, devices=(("nvidia.com/gpu", 2),)), host) == ROOM // 4
    assert points(Resources(cpu=8_000, pods=1, devices=(("nvidia.com/gpu", 2),)), host) == ROOM // 2


def test_slices_that_no_job_tells_apart_are_one_stock() -> None:
    world = World(*(a_tpu_node(f"tpu-{index}") for index in range(5))).job("a", a_pool(max=2)).job("b", a_pool(max=2))
    assert rooms(problem_of(world)) == [5]


def test_whole_hosts_are_one_stock_where_each_size_is_a_multiple_of_the_smaller_one() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3)))
    world.job("two", a_pool(shape=gpus(2))).job("four", a_pool(shape=gpus(4)))
    assert rooms(problem_of(world)) == [12]  # three hosts with room for four units of two accelerators


def test_each_host_is_a_stock_where_sizes_do_not_divide_each_other() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3)))
    world.job("three", a_pool(shape=gpus(3))).job("four", a_pool(shape=gpus(4)))
    assert rooms(problem_of(world)) == [8, 8, 8]  # in accelerators: 3 and 4 have no larger common part


def test_a_host_in_parts_is_a_stock_of_its_own_that_units_of_several_hosts_do_not_get() -> None:
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3)))
    world.job("small", a_pool(shape=gpus(2), max=1)).settle().job("pair", a_pool(shape=gpus(8, hosts=2), max=1))
    problem = problem_of(world)
    [pair] = [job.pools[0] for job in problem.flow.jobs if job.key == "pair"]
    [shared] = [stock for stock in problem.stocks.values() if stock.host is not None]
    assert shared.hub not in pair.values
    assert len(pair.values) == 1


def test_an_earlier_pool_is_worth_more_and_what_a_unit_has_is_worth_most() -> None:
    world = World(a_tpu_node("tpu-0"), a_tpu_node("tpu-1", labels={"x": "1"}))
    world.job("one", a_pool(max=1, selector=(("x", "1"),)), a_pool(max=2))
    [job] = problem_of(world).flow.jobs
    first, second = job.pools
    assert min(first.values.values()) > max(second.values.values())
    world.settle()
    [job] = problem_of(world).flow.jobs
    assert min(each.value for pool in job.pools for each in pool.held) > max(first.values.values())


def test_requirements_of_jobs_that_want_nothing_more_tell_no_hosts_apart() -> None:
    nodes = [a_gpu_node("gpu-0", labels={"x": "1"}), a_gpu_node("gpu-1", labels={"x": "1"}), a_gpu_node("gpu-2")]
    world = World(*nodes).job("picky", a_pool(shape=gpus(8, hosts=1), max=1, selector=(("x", "1"),))).settle()
    world.job("pair", a_pool(shape=gpus(8, hosts=2), max=1)).settle()
    assert world.counts() == {"picky": 1, "pair": 1}  # one of its hosts has the label
