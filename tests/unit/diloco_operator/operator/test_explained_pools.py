"""Each pool that is not used says why, with numbers, and what would help: in status, in Events and by `kubectl diloco explain`."""

from __future__ import annotations

import pytest
from builders.jobs import Obj, gpu_pool, template, tpu_pool
from builders.kube_objects import eventually
from builders.nodes import TPU, a_gpu_node, a_tpu_node, a_tpu_slice
from builders.operator_run import running
from diloco_operator.api import names
from diloco_operator.cli.explain import explained
from diloco_operator.cli.explanation_text import explanation_text
from diloco_operator.kube.client import PatchType

from .test_delegated_units import AUTOSCALER, Scene, an_operator_of, play, wall_clock

THEIRS = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
NODES = [
    *(a_tpu_node(f"small-{index}") for index in range(3)),
    *a_tpu_slice("shared", 4, topology="2x2x4"),
    a_gpu_node("theirs", taints=THEIRS),
]


async def a_notebook(scene: Scene, node: str) -> None:
    container = {"name": "main", "image": "image:1", "resources": {"limits": {TPU: "4"}, "requests": {TPU: "4"}}}
    await scene.api.create(
        names.PODS, {"metadata": {"name": "notebook-0", "namespace": "default"}, "spec": {"containers": [container], "nodeName": node}}
    )


@pytest.mark.parametrize(
    ("pool", "reason", "why", "help"),
    [
        pytest.param(
            tpu_pool(),
            "NoMatchingNodes",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x2; the fleet has no such nodes; 3 free tpu-v5p slices are 2x2x1, "
            "0 of 1 free 2x2x4, a unit needs 2x2x2",
            ["a pool with topology 2x2x1", "more nodes", "an autoscaler, which provisioning.mode of the pool asks"],
            id="a unit larger than any slice that is free",
        ),
        pytest.param(
            tpu_pool(topology="8x8x8", provisioning=AUTOSCALER),
            "WaitingForNodes",
            "pool v5p needs 1 more slice of tpu-v5p 8x8x8; the fleet has no such nodes; 3 free tpu-v5p slices are 2x2x1, "
            "0 of 1 free 2x2x4, a unit needs 8x8x8; nodes for it were asked of the autoscaler",
            ["a pool with topology 2x2x1"],
            id="the same while an autoscaler is asked",
        ),
        pytest.param(
            gpu_pool(hosts=40),
            "NoFreeSlice",
            "pool h100 needs 1 more slice of nvidia-h100-80gb, 40 hosts with 8 accelerators; the fleet has 1: 1 free, but tainted, and the "
            "pool's template does not tolerate it: team=vision:NoSchedule on theirs",
            [
                "tolerate team=vision:NoSchedule in the pool's template",
                "more nodes",
                "an autoscaler, which provisioning.mode of the pool asks",
            ],
            id="a taint",
        ),
        pytest.param(
            tpu_pool(topology="2x2x1", template=template(nodeSelector={"disk": "fast"})),
            "NoFreeSlice",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x1; the fleet has 3: 3 free, but not fitting: the pool asks for label disk=fast "
            "(small-0 has no label disk); 1 tpu-v5p slice is 2x2x4, none of them free, a unit needs 2x2x1",
            [
                "leave out label disk=fast",
                "a pool with topology 2x2x4",
                "more nodes",
                "an autoscaler, which provisioning.mode of the pool asks",
            ],
            id="a label",
        ),
        pytest.param(
            tpu_pool(topology="2x2x4"),
            "NoFreeSlice",
            "pool v5p needs 1 more slice of tpu-v5p 2x2x4; the fleet has 1: 1 used by other pods: default/notebook-0 (1 of 4 hosts of "
            "shared is used: shared-1 by default/notebook-0); 3 free tpu-v5p slices are 2x2x1, a unit needs 2x2x4",
            [
                "end these pods, or wait until they have ended",
                "a pool with topology 2x2x1",
                "more nodes",
                "an autoscaler, which provisioning.mode of the pool asks",
            ],
            id="a host that another pod uses",
        ),
    ],
)
def test_pool_that_is_not_used_says_why_and_what_would_help(pool: Obj, reason: str, why: str, help: list[str]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.cluster.add(NODES)
        await a_notebook(scene, "shared-1")
        async with running(an_operator_of(scene)):
            await scene.apply("lm", {**pool, "learners": {"min": 0, "max": 1}})
            message = f"{why}. What would help: {'; '.join(help)}"
            status = await scene.when("lm", lambda status: bool(status.get("pools")) and status["pools"][0]["reason"] == reason)
            assert status["pools"][0]["message"] == message

            async def told() -> bool:
                events = (await scene.api.list(names.EVENTS, "default")).items
                return f"{reason}: {message}" in [event["message"] for event in events if event["reason"] == "PoolChanged"]

            await eventually(told, "the Event of the pool")
        page = explanation_text(await explained(scene.api, "default", "lm", wall_clock), wall_clock()).splitlines()
        at = next(index for index, line in enumerate(page) if line.startswith("  why not more    "))
        assert page[at].startswith(f"  why not more    {reason} since ")
        assert page[at].endswith(f": {why}")
        assert [line[20:] for line in page[at + 1 : at + 1 + len(help)]] == help

    play(scenario)


def test_pool_that_is_not_used_because_another_one_has_all_units_says_so_and_what_would_help() -> None:
    async def scenario(scene: Scene) -> None:
        async with running(an_operator_of(scene)):
            await scene.apply("lm", tpu_pool(topology="2x2x1", max=1), gpu_pool(max=1, provisioning=AUTOSCALER))
            await scene.cluster.add([a_tpu_node("tpu-0")])
            await scene.trains("lm")
            status = await scene.when("lm", lambda status: status["pools"][1]["reason"] == "JobAtMaximum")
            helps = "raise learners.max, or learners.min of the pool, which comes before other pools"
            assert status["pools"][1]["message"].endswith(f". What would help: {helps}")
            learners = {"spec": {"pools": [tpu_pool(topology="2x2x1", max=1), gpu_pool(min=1, max=1, provisioning=AUTOSCALER)]}}
            await scene.api.patch(names.DILOCO_JOBS, "default", "lm", learners, type=PatchType.MERGE)
            await scene.when("lm", lambda status: status["pools"][1]["reason"] == "WaitingForNodes")
            assert await scene.trains("lm") == ["tpu-0"]
            await scene.cluster.add([a_gpu_node("gpu-0")])
            await scene.when("lm", lambda status: ("gpu-0", "Training") in [(unit["slice"], unit["state"]) for unit in status["units"]])
            assert await scene.trains("lm") == ["gpu-0"]

    play(scenario)
