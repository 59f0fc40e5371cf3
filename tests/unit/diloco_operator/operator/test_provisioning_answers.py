"""Whatever an autoscaler answers to a ProvisioningRequest, or does not: the job trains elsewhere, and the asking has an end."""

from __future__ import annotations

import asyncio

import pytest
from builders.growing_pools import Answer, a_pool, growing_pools
from builders.jobs import gpu_pool, tpu_pool
from builders.operator_run import running
from builders.provisioning import provisioning_crd
from diloco_operator.api import names
from diloco_operator.kube.client import Resource

from .test_delegated_units import Scene, an_operator_of, play

BY_REQUEST = {"mode": "ProvisioningRequest", "class": "queued-provisioning.gke.io", "timeout": "1m"}
QUEUED = {"key": names.QUEUED_TAINT, "value": "true", "effect": "NoSchedule"}


async def _there(scene: Scene, resource: Resource) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in (await scene.api.list(resource)).items)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer.SILENCE, "no nodes came within 1m (provisioning.timeout of pool tpu)"),
        (Answer.ACCEPT, "it says: Accepted=True: Accepted: the request is in the queue"),
        (Answer.FAIL, "ProvisioningRequest one-tpu-0-a1 failed; it says: Failed=True: OutOfResources: max node group size reached"),
        (Answer.NONSENSE, "says what cannot be: its conditions contradict each other"),
        (Answer.LIE, "no node came for one-tpu-0-a1-0 within 1m (provisioning.timeout of pool tpu)"),
    ],
)
def test_pool_whose_request_brings_no_nodes_leaves_its_unit_to_the_next_pool(answer: Answer, words: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        pools = [a_pool("gpus", "nvidia-h100-80gb", hosts=1, per_host=8)]
        said = {"one-tpu-0": answer}
        asked: set[str] = set()

        def answers(name: str) -> Answer:
            asked.add(name)
            return said.get(name.rpartition("-a")[0], Answer.PROVISION)

        async with growing_pools(scene.api, pools, answer=answers), running(an_operator_of(scene)):
            tpus = tpu_pool("tpu", topology="2x2x2", provisioning=BY_REQUEST)
            await scene.apply("one", tpus, gpu_pool("gpu", hosts=1, acceleratorsPerHost=8, max=1, provisioning=BY_REQUEST))
            assert await scene.trains("one") == ["gpus-0"]
            await asyncio.sleep(120)
            events = [event["message"] for event in (await scene.api.list(names.EVENTS)).items if event["reason"] == "UnitGaveSliceUp"]
            assert [words in message for message in events] == [True], events
            assert [unit["failures"] for unit in (await scene.status("one"))["units"]] == [[], []]
            assert asked == {"one-tpu-0-a1", "one-gpu-0-a1"}
            assert await _there(scene, names.PROVISIONING_REQUESTS) == await _there(scene, names.POD_TEMPLATES) == ["one-gpu-0-a1"]

    play(scenario)


def test_job_of_one_pool_that_is_answered_nonsense_asks_less_and_less_often() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        asked: set[str] = set()

        def answers(name: str) -> Answer:
            asked.add(name)
            return Answer.NONSENSE

        async with growing_pools(scene.api, [], answer=answers), running(an_operator_of(scene)):
            await scene.apply("one", tpu_pool("tpu", topology="2x2x2", provisioning=BY_REQUEST))
            await asyncio.sleep(900)
        # The pause doubles from 5 s to 5 min, so six of them pass in the first five minutes; by lot each is cut to half of it at the most.
        assert 900 / 300 <= len(asked) <= 2 * 6 + 900 / 150
        assert len(await _there(scene, names.PROVISIONING_REQUESTS)) <= 1

    play(scenario)


def test_slice_of_two_hosts_comes_by_one_request_and_goes_when_the_job_is_suspended() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.api.create(names.CUSTOM_RESOURCES, provisioning_crd())
        pools = [a_pool(f"np-{index}", "tpu-v5p", topology="2x2x2", hosts=2, queued=True, in_stock=False) for index in range(2)]
        for pool in pools:
            pool.taints = [*pool.taints, QUEUED]
        async with growing_pools(scene.api, pools), running(an_operator_of(scene)):
            await scene.apply("one", tpu_pool("tpu", topology="2x2x2", provisioning={**BY_REQUEST, "timeout": "6h"}), units=2)
            await scene.when("one", lambda status: [unit.get("reason") for unit in status.get("units", ())] == ["WaitingForNodes"] * 2)
            await asyncio.sleep(90)
            assert scene.nodes_of("one") == set()
            for pool in pools:
                pool.in_stock = True
            assert sorted(await scene.trains("one", 2)) == ["np-0", "np-1"]
            assert scene.nodes_of("one") == {"np-0-0", "np-0-1", "np-1-0", "np-1-1"}
            await scene.suspend("one")
            await asyncio.sleep(30)
            assert await _there(scene, names.PROVISIONING_REQUESTS) == await _there(scene, names.POD_TEMPLATES) == []
            assert [name for name in await _there(scene, names.NODES) if name.startswith("np-")] == []

    play(scenario)
