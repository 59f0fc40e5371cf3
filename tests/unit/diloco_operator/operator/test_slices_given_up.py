"""Units whose pods no scheduler binds, and two operators that choose one slice in the same moment. Operators and a scheduler run."""

from __future__ import annotations

import asyncio

from builders.jobs import Obj, cpu_pool
from builders.nodes import a_node
from builders.shared_cluster import Scene, play
from diloco_operator.api import names
from diloco_operator.operator import RunConfig

BLIND = RunConfig(stop_grace=0, watch_other_pods=False)
"""An operator that does not see what other pods use, so that it chooses slices that are not free."""


async def unit(scene: Scene, name: str = "lm", namespace: str = "default") -> Obj:
    units = (await scene.status(name, namespace)).get("units") or [{}]
    found: Obj = units[0]
    return found


async def events(scene: Scene, reason: str) -> list[Obj]:
    return [event for event in (await scene.api.list(names.EVENTS)).items if event["reason"] == reason]


def now() -> float:
    return asyncio.get_running_loop().time()


# --- pods that no scheduler binds -------------------------------------------------------------------------------------
def test_unit_gives_a_taken_slice_up_in_less_than_a_minute_and_fails_not_once() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("train-0", "np-0-0", tpu="4")
        await scene.occupy("train-1", "np-1-0", tpu="4")
        async with scene.operator(BLIND):
            begun = now()
            await scene.train("lm", 1)

            async def given_up() -> bool:
                return (await unit(scene)).get("reason") == "Unschedulable"

            await scene.until(given_up, "the unit gives np-0-0 up")
            assert now() - begun < 60
            assert "Insufficient google.com/tpu" in (await unit(scene))["message"]  # the scheduler's words
            await scene.until_training("lm", "np-2-0")  # by way of np-1-0, not back and forth between the two
            found = await unit(scene)
            assert (found["attempt"], found["restarts"], found["failures"]) == (3, 0, [])
            assert [node["name"] for node in (await scene.status("lm"))["unschedulableNodes"]] == ["np-1-0", "np-0-0"]
            assert sum(event.get("count", 1) for event in await events(scene, "UnitGaveSliceUp")) == 2

    play(scenario)


def test_unit_that_finds_no_other_slice_tries_ever_more_rarely_and_starts_when_there_is_room() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("train-0", "np-0-0", tpu="4")
        async with scene.operator(BLIND):
            await scene.train("lm", 1)
            await asyncio.sleep(3600)
            found = await unit(scene)
            assert 10 <= found["attempt"] <= 20  # without a growing pause it would be a hundred
            assert (found["restarts"], found["failures"]) == (0, [])
            await scene.free("train-0")
            await scene.until_training("lm", "np-0-0")
            assert (await unit(scene))["failures"] == []
            assert "unschedulable" not in await unit(scene)

    play(scenario, slices=1)


def test_pause_goes_on_when_another_operator_takes_over() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("train-0", "np-0-0", tpu="4")
        async with scene.operator(BLIND):
            await scene.train("lm", 1)
            await asyncio.sleep(600)
        before = (await unit(scene))["unschedulable"]
        assert before >= 4
        async with scene.operator(BLIND):
            await asyncio.sleep(300)
            assert (await unit(scene))["unschedulable"] in (before, before + 1)

    play(scenario, slices=1)


# --- two operators ----------------------------------------------------------------------------------------------------
TEAMS = ("team-a", "team-b")


def of(namespace: str) -> RunConfig:
    return RunConfig(stop_grace=0, namespaces=(namespace,))


def learner_nodes(pods: list[Obj]) -> list[str]:
    """Nodes of the learner pods that have not ended."""
    learners = [pod for pod in pods if pod["metadata"].get("labels", {}).get(names.LABEL_COMPONENT) == names.COMPONENT_LEARNER]
    return sorted(pod["spec"].get("nodeName", "") for pod in learners)


async def until_both_train(scene: Scene, kind: str) -> list[Obj]:
    async def holds() -> bool:
        return [(await unit(scene, namespace=team)).get("state") for team in TEAMS] == ["Training"] * 2

    await scene.until(holds, f"both units train on {kind}")
    return [await unit(scene, namespace=team) for team in TEAMS]


def check(units: list[Obj], reason: str, given_up: list[Obj]) -> None:
    """They chose one slice at first; one gave way, and none failed."""
    assert sorted(each["attempt"] for each in units) == [1, 2]
    assert {each["restarts"] for each in units} == {0}
    assert [each["failures"] for each in units] == [[], []]
    assert len({each["slice"] for each in units}) == 2
    [event] = given_up
    assert reason in event["message"]


def test_two_operators_that_choose_one_tpu_slice_in_the_same_moment_part_without_a_failure() -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.operator(of("team-a")), scene.operator(of("team-b")):
            for team in TEAMS:
                await scene.train("lm", 1, namespace=team)
            units = await until_both_train(scene, "TPUs")
            check(units, "(learners.timeouts.schedule)", await events(scene, "UnitGaveSliceUp"))

    play(scenario, slices=2)


def test_two_operators_whose_pods_both_fit_on_one_host_do_not_stay_on_it_together() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.cluster.add([a_node(f"host-{index}", labels={"for": "learners"}, resources={"cpu": "64"}) for index in range(2)])
        pool = cpu_pool(max=1)
        pool["template"]["spec"]["nodeSelector"] = {"for": "learners"}
        async with scene.operator(of("team-a")), scene.operator(of("team-b")):
            for team in TEAMS:
                await scene.train("lm", 1, namespace=team, pool=pool)
            units = await until_both_train(scene, "hosts")
            check(units, "a learner of another operator, was created before", await events(scene, "UnitGaveSliceUp"))
            assert {each["slice"] for each in units} == {"host-0", "host-1"}
            await asyncio.sleep(600)
            assert learner_nodes([*scene.cluster.pods(("team-a", "lm")), *scene.cluster.pods(("team-b", "lm"))]) == ["host-0", "host-1"]

    play(scenario, slices=0)


def test_host_with_a_learner_of_another_operator_is_not_chosen() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.cluster.add([a_node(f"host-{index}", labels={"for": "learners"}, resources={"cpu": "64"}) for index in range(2)])
        pool = cpu_pool(max=2)
        pool["template"]["spec"]["nodeSelector"] = {"for": "learners"}
        async with scene.operator(of("team-a")), scene.operator(of("team-b")):
            await scene.train("lm", 1, namespace="team-a", pool={**pool, "learners": {"min": 0, "max": 1}})
            await scene.until_training("lm", "host-0", namespace="team-a")
            await scene.train("lm", 2, namespace="team-b", pool=pool)
            await scene.until_training("lm", "host-1", namespace="team-b")
            assert (await unit(scene, namespace="team-b"))["attempt"] == 1
            message = (await scene.status("lm", "team-b"))["pools"][0]["message"]
            assert "used by other pods: team-a/lm-cpu-0-a1-0" in message

    play(scenario, slices=0)
