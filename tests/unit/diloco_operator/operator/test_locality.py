"""Units of several hosts through the API: an operator runs, and zones have more or less room."""

from __future__ import annotations

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import FakeCluster
from builders.jobs import gpu_pool
from builders.nodes import a_gpu_node
from diloco_operator.api import names
from diloco_operator.kube.client import Obj


def hosts(zone: str, count: int) -> list[Obj]:
    return [a_gpu_node(f"{zone}-{i}", labels={names.NODE_ZONE: zone}) for i in range(count)]


@pytest.mark.slow
@operated(*hosts("z1", 1), *hosts("z2", 1))
async def test_unit_of_two_hosts_waits_for_a_zone_with_room_and_says_so(cluster: FakeCluster) -> None:
    await cluster.apply("lm", gpu_pool(hosts=2, max=1))
    status = await cluster.when("lm", lambda status: bool(status.get("pools")) and status["pools"][0]["reason"] == "NoFreeSlice")
    assert "2 free, but a unit needs 2 in one zone (zone z1: 1, zone z2: 1)" in status["pools"][0]["message"]
    await cluster.add(hosts("z3", 2))
    assert await cluster.trains("lm") == ["z3-0+z3-1"]


@operated(*hosts("z1", 1), *hosts("z2", 1))
async def test_pool_of_any_locality_takes_hosts_of_two_zones(cluster: FakeCluster) -> None:
    await cluster.apply("lm", gpu_pool(hosts=2, max=1, locality="Any"))
    assert await cluster.trains("lm") == ["z1-0+z2-0"]
