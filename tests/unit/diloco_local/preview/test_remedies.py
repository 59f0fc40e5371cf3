"""What a pool that waits says would help is tried, on a copy of the cluster: each remedy alone gives the job more."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import Obj, a_manifest, gpu_pool
from builders.nodes import a_gpu_node
from diloco_local.preview.changes import Changes
from diloco_local.preview.cluster import VirtualCluster
from diloco_local.preview.contents import Contents, of_fleet
from diloco_local.preview.virtual_time import run_virtual

BEGIN = 1_800_000_000.0
KINDS = ("nvidia-h100-80gb", "nvidia-a100-80gb")
ZONE = "topology.kubernetes.io/zone"
SPOT = {"cloud.google.com/gke-spot": "true"}
PLENTY = 40
HIGH = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}

type Change = Callable[[VirtualCluster], Awaitable[None]]


def a_world(seed: int) -> tuple[Contents, list[Obj]]:
    """Hosts of two kinds in two zones, some of them Spot; jobs with units of one to three hosts, whose minima are often too large."""
    rng = random.Random(seed)
    nodes = [
        a_gpu_node(f"gpu-{index}", kind=rng.choice(KINDS), labels={ZONE: rng.choice("ab"), **(SPOT if rng.random() < 0.3 else {})})
        for index in range(rng.randint(3, 10))
    ]
    jobs = []
    for index in range(rng.randint(2, 4)):
        pools = []
        for name in ("p0", "p1")[: rng.randint(1, 2)]:
            pool = {**gpu_pool(name, rng.choice(KINDS), max=rng.randint(1, 3)), "hosts": rng.choice((1, 1, 2, 3))}
            pool |= {"capacity": rng.choice(("Spot", "OnDemand"))} if rng.random() < 0.2 else {}
            pools.append(pool | ({"locality": "Any"} if rng.random() < 0.2 else {}))
        most = sum(pool["learners"]["max"] for pool in pools)
        jobs.append(a_manifest(f"j{index}", namespace="team", min=rng.randint(1, most), max=most, pools=pools))
    return replace(of_fleet(nodes, BEGIN), priorities=(HIGH,)), jobs


def settled(contents: Contents, jobs: Sequence[Obj], change: Change | None = None) -> dict[str, Any]:
    """The status of each job once all are applied, and the change is made."""

    async def run() -> dict[str, Any]:
        async with VirtualCluster(contents, BEGIN) as cluster:
            for job in jobs:
                await cluster.apply(job)
            await cluster.settle()
            if change is not None:
                await change(cluster)
                await cluster.settle()
            return {job["metadata"]["name"]: job["status"] for job in await cluster.jobs()}

    return run_virtual(run())


def followed(remedy: str, job: Obj, pool: str, jobs: Sequence[Obj]) -> tuple[str, Change]:
    """What a person who reads the remedy does, and its kind."""

    def edit(edited: Obj, **fields: object) -> Change:
        return lambda cluster: cluster.apply({**edited, "spec": {**edited["spec"], **fields}})

    def edit_pool(**fields: object) -> Change:
        mine = next(each for each in job["spec"]["pools"] if each["name"] == pool)
        edited = {key: value for key, value in {**mine, **fields}.items() if value is not None}
        return edit(job, pools=[edited if each is mine else each for each in job["spec"]["pools"]])

    if found := re.fullmatch("more nodes(?:, also for pools? (.*))?", remedy):
        names = (pool, *(found[1].split(", ") if found[1] else ()))
        return "more nodes", lambda cluster: cluster.change(Changes(added=tuple(nodes_for(job, names))))
    if found := re.fullmatch("wait until job team/(j.) ends, or suspend it", remedy):
        return "end of a job", edit(next(each for each in jobs if each["metadata"]["name"] == found[1]), suspend=True)
    if re.fullmatch("raise (learners.min or )?the priority of this job", remedy):
        return "priority", edit(job, priorityClassName="high")
    if re.fullmatch(r"leave out capacity \w+", remedy):
        return "capacity", edit_pool(capacity=None)
    if remedy.startswith("set locality of the pool to Any"):
        return "locality", edit_pool(locality="Any")
    if found := re.fullmatch(r"wait until (one|enough) of these jobs .*", remedy):
        others = [each for each in jobs if each is not job]

        async def suspend(cluster: VirtualCluster) -> None:
            for other in others:
                await edit(other, suspend=True)(cluster)

        return "end of jobs", suspend
    pytest.fail(f"nobody knows how to follow: {remedy}")


def nodes_for(job: Obj, names: Sequence[str]) -> list[Obj]:
    """Enough new hosts for these pools, and for jobs that come before this one."""
    found = []
    for pool in (each for each in job["spec"]["pools"] if each["name"] in names):
        labels = {ZONE: "new", **(SPOT if pool.get("capacity") == "Spot" else {})}
        for index in range(PLENTY * pool["hosts"]):
            node = a_gpu_node(f"new-{pool['name']}-{index}", kind=pool["accelerator"], labels=labels)
            del node["metadata"]["uid"]
            found.append(node)
    return found


def followed_in(seed: int) -> set[str]:
    """Follow each remedy of each job of a world. Returns their kinds."""
    contents, jobs = a_world(seed)
    before, kinds = settled(contents, jobs), set()
    for job in jobs:
        name = job["metadata"]["name"]
        for pool in before[name].get("pools", ()):
            for remedy in pool.get("remedies", ()):
                if remedy.startswith("an autoscaler"):
                    continue  # here is none
                kind, change = followed(remedy, job, pool["name"], jobs)
                after = settled(contents, jobs, change)
                assert after[name]["learners"]["placed"] > before[name]["learners"]["placed"], (seed, name, pool["message"], remedy)
                kinds.add(kind)
    return kinds


def test_each_remedy_that_a_pool_names_gives_its_job_more() -> None:
    assert followed_in(4) | followed_in(13) | followed_in(31) == {"more nodes", "end of a job", "locality", "capacity"}


@pytest.mark.full
@pytest.mark.parametrize("seed", range(30))
def test_each_remedy_gives_more_in_many_worlds(seed: int) -> None:
    followed_in(seed)
