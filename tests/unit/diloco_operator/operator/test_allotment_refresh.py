"""The allotment beside the reconciles, for units of several sizes."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from builders.allotted_jobs import World, a_pool
from builders.nodes import a_gpu_node
from diloco_operator.allotment.flow import integers
from diloco_operator.fleet import Shape
from diloco_operator.operator.allotment_refresh import AllotmentRefresh


def test_the_log_says_that_time_ran_out_and_the_job_gets_its_minimum_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World(*(a_gpu_node(f"gpu-{index}") for index in range(3)))
    for hosts, name in ((1, "team/single/uid-1"), (2, "team/pair/uid-2")):
        world.job(name, a_pool(max=1, shape=Shape("nvidia-h100-80gb", "", 8, hosts)))
    woken: list[tuple[str, str]] = []
    refresh = AllotmentRefresh(world.allotment, woken.append, lambda jobs, error: None)
    with patch.object(integers, "SECONDS", 0.0):
        asyncio.run(refresh.in_steps())
    assert woken == []
    assert [record.getMessage() for record in caplog.records] == [
        "the allotment of 2 jobs is worth up to 100.00 % less than the best one: their units have several sizes",
        "time ran out for the minima of 2 of these jobs: they keep waiting, and are decided on again",
    ]
    asyncio.run(refresh.in_steps())
    assert sorted(woken) == [("team", "pair"), ("team", "single")]
