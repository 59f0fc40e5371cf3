"""Units whose pods no scheduler binds, and two operators that choose one slice in the same moment. Operators and a scheduler run."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import occupy, play_shared, vacate
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, cpu_pool
from builders.kube_objects import eventually
from builders.nodes import a_node
from diloco_operator.api import names
from diloco_operator.operator import RunConfig

BLIND = RunConfig(stop_grace=0, watch_other_pods=False)
"""An operator that does not see what other pods use, so that it chooses slices that are not free."""


async def unit(cluster: FakeCluster, name: str = "lm", namespace: str = "default") -> Obj:
    units = (await cluster.status(name, namespace)).get("units") or [{}]
    found: Obj = units[0]
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


# --- pods that no scheduler binds -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_unit_gives_a_taken_slice_up_in_less_than_a_minute_and_fails_not_once() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "train-0", "np-0-0", tpu="4")
        await occupy(cluster, "train-1", "np-1-0", tpu="4")
        async with cluster.operating(BLIND):
            begun = now()
            await cluster.apply("lm")
            await cluster.when("lm", lambda status: status.get("units", [{}])[0].get("reason") == "Unschedulable", what="giving np-0-0 up")
            assert now() - begun < 60
            assert "Insufficient google.com/tpu" in (await unit(cluster))["message"]  # the scheduler's words
            await cluster.trains_on("lm", "np-2-0")  # by way of np-1-0, not back and forth between the two
            found = await unit(cluster)
            assert (found["attempt"], found["restarts"], found["failures"]) == (3, 0, [])
            assert [node["name"] for node in (await cluster.status("lm"))["unschedulableNodes"]] == ["np-1-0", "np-0-0"]
            assert sum(event.get("count", 1) for event in await cluster.events("UnitGaveSliceUp")) == 2

    play_shared(scenario)


@pytest.mark.slow
def test_unit_that_finds_no_other_slice_tries_ever_more_rarely_and_starts_when_there_is_room() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "train-0", "np-0-0", tpu="4")
        async with cluster.operating(BLIND):
            await cluster.apply("lm")
            await asyncio.sleep(3600)
            found = await unit(cluster)
            assert 10 <= found["attempt"] <= 20  # without a growing pause it would be a hundred
            assert (found["restarts"], found["failures"]) == (0, [])
            await vacate(cluster, "train-0")
            await cluster.trains_on("lm", "np-0-0")
            assert (await unit(cluster))["failures"] == []
            assert "unschedulable" not in await unit(cluster)

    play_shared(scenario, slices=1)


@pytest.mark.slow
def test_pause_goes_on_when_another_operator_takes_over() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await occupy(cluster, "train-0", "np-0-0", tpu="4")
        async with cluster.operating(BLIND):
            await cluster.apply("lm")
            await asyncio.sleep(600)
        before = (await unit(cluster))["unschedulable"]
        assert before >= 4
        async with cluster.operating(BLIND):
            await asyncio.sleep(300)
            assert (await unit(cluster))["unschedulable"] in (before, before + 1)

    play_shared(scenario, slices=1)


# --- two operators ----------------------------------------------------------------------------------------------------
TEAMS = ("team-a", "team-b")


def of(namespace: str) -> RunConfig:
    return RunConfig(stop_grace=0, namespaces=(namespace,))


def learner_nodes(pods: list[Obj]) -> list[str]:
    """Nodes of the learner pods that have not ended."""
    learners = [pod for pod in pods if pod["metadata"].get("labels", {}).get(names.LABEL_COMPONENT) == names.COMPONENT_LEARNER]
    return sorted(pod["spec"].get("nodeName", "") for pod in learners)


async def until_both_train(cluster: FakeCluster) -> list[Obj]:
    async def both() -> bool:
        return [(await unit(cluster, namespace=team)).get("state") for team in TEAMS] == ["Training"] * 2

    await eventually(both, "both units to train", seconds=300)
    return [await unit(cluster, namespace=team) for team in TEAMS]


def check(units: list[Obj], reason: str, given_up: list[Obj]) -> None:
    """They chose one slice at first; one gave way, and none failed."""
    assert sorted(each["attempt"] for each in units) == [1, 2]
    assert {each["restarts"] for each in units} == {0}
    assert [each["failures"] for each in units] == [[], []]
    assert len({each["slice"] for each in units}) == 2
    [event] = given_up
    assert reason in event["message"]


@pytest.mark.slow
def test_two_operators_that_choose_one_tpu_slice_in_the_same_moment_part_without_a_failure() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating(of("team-a")), cluster.operating(of("team-b")):
            for team in TEAMS:
                await cluster.apply("lm", namespace=team)
            units = await until_both_train(cluster)
            check(units, "(learners.timeouts.schedule)", await cluster.events("UnitGaveSliceUp"))

    play_shared(scenario, slices=2)


@pytest.mark.slow
def test_two_operators_whose_pods_both_fit_on_one_host_do_not_stay_on_it_together() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.add([a_node(f"host-{index}", labels={"for": "learners"}, resources={"cpu": "64"}) for index in range(2)])
        pool = cpu_pool(max=1)
        pool["template"]["spec"]["nodeSelector"] = {"for": "learners"}
        pool["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        async with cluster.operating(of("team-a")), cluster.operating(of("team-b")):
            for team in TEAMS:
                await cluster.apply("lm", pool, namespace=team)
            units = await until_both_train(cluster)
            check(units, "a learner of another operator, was created before", await cluster.events("UnitGaveSliceUp"))
            assert {each["slice"] for each in units} == {"host-0", "host-1"}
            await asyncio.sleep(600)
            assert learner_nodes([*cluster.pods(("team-a", "lm")), *cluster.pods(("team-b", "lm"))]) == ["host-0", "host-1"]

    play_shared(scenario, slices=0)


def test_host_with_a_learner_of_another_operator_is_not_chosen() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.add([a_node(f"host-{index}", labels={"for": "learners"}, resources={"cpu": "64"}) for index in range(2)])
        pool = cpu_pool(max=2)
        pool["template"]["spec"]["nodeSelector"] = {"for": "learners"}
        pool["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        async with cluster.operating(of("team-a")), cluster.operating(of("team-b")):
            await cluster.apply("lm", {**pool, "learners": {"min": 0, "max": 1}}, namespace="team-a")
            await cluster.trains_on("lm", "host-0", namespace="team-a")
            await cluster.apply("lm", pool, max=2, namespace="team-b")
            await cluster.trains_on("lm", "host-1", namespace="team-b")
            assert (await unit(cluster, namespace="team-b"))["attempt"] == 1
            message = (await cluster.status("lm", "team-b"))["pools"][0]["message"]
            assert "used by other pods: team-a/lm-cpu-0-a1-0" in message

    play_shared(scenario, slices=0)
