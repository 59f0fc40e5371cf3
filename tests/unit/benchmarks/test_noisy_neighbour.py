"""The job whose units a benchmark fails one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from builders.pods import a_bare_pod
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.kube.noisy_neighbour import Neighbour
from benchmarks.kube.rig import Rig, watching
from benchmarks.simulated_cluster import POOL

UNIT = f"{POOL}-0"


def pod(attempt: int) -> Obj:
    labels = {names.LABEL_COMPONENT: names.COMPONENT_LEARNER, names.LABEL_UNIT: UNIT, names.LABEL_ATTEMPT: str(attempt)}
    return a_bare_pod("team", names.learner_pod_name("alpha", UNIT, attempt, 0), meta={"labels": labels})


async def test_the_successor_that_is_waited_for_belongs_to_the_given_job() -> None:
    api = MemoryApi()
    no_plane: Any = None
    bench = Rig(no_plane, api, Path())
    await bench.namespace("team")
    await api.create(names.PODS, pod(1))
    async with watching(api, "team") as watch:
        neighbour = Neighbour(bench, watch, "alpha", "team", 1)
        await neighbour.begin()
        wait, _ = await asyncio.gather(asyncio.wait_for(neighbour.fail_one(), 60), api.create(names.PODS, pod(2)))
    assert wait.ended == watch.added[f"alpha-{UNIT}-a2-0"]
