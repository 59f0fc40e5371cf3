"""An operator reads from the API server when a node ends."""

from __future__ import annotations

import asyncio

import pytest
from builders.jobs import Obj, gpu_pool
from builders.kube_objects import eventually
from builders.nodes import a_gpu_node
from builders.operator_run import running
from diloco_operator.api import names
from diloco_operator.kube.client import PatchType
from diloco_operator.kube.timestamps import format_timestamp

from . import test_delegated_units as delegated
from .test_missing_rights import TwoTeams, play

ENDS, RUNS = "node.gke.io/machine-termination-datetime", "cloud.google.com/gke-max-run-duration-seconds"
WALL_CLOCK = 1_795_208_400.0
"""Of `TwoTeams`, when it begins."""


def test_unit_starts_on_the_node_that_lasts() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        ends = {"metadata": {"annotations": {ENDS: format_timestamp(WALL_CLOCK + 100)}}}
        await cluster.api.patch(names.NODES, "", "np-0-0", ends, type=PatchType.MERGE)
        await cluster.apply("team-a")
        await cluster.apply("team-b")
        async with running(cluster.operator):
            await cluster.works("team-a")

            async def told() -> bool:
                found = await cluster.condition("team-b", "Placed")
                return "node np-0-0 ends at" in found.get("message", "")

            await eventually(told, "the job without a node to say why")
        found = await cluster.api.list(names.PODS, "team-a", label_selector=f"{names.LABEL_COMPONENT}=learner")
        assert [pod["metadata"]["annotations"][names.ANNOTATION_NODE] for pod in found.items] == ["np-1-0"]

    play(scenario)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(
            a_gpu_node("ends", labels={"cloud.google.com/gke-spot": "true"}, annotations={ENDS: format_timestamp(delegated.EPOCH + 1000)}),
            id="spot, as announced",
        ),
        pytest.param(
            a_gpu_node("ends", labels={"cloud.google.com/gke-flex-start": "true", RUNS: "1000"}), id="flex-start, by its run time"
        ),
    ],
)
def test_unit_leaves_a_node_ahead_of_its_end_and_has_not_failed(node: Obj) -> None:
    async def scenario(scene: delegated.Scene) -> None:
        async with running(delegated.an_operator_of(scene)):
            await scene.cluster.add([node])
            await scene.apply("one", gpu_pool(max=1, provisioning=delegated.AUTOSCALER))
            assert await scene.trains("one") == ["ends"]
            await scene.cluster.add([a_gpu_node("lasts")])
            await asyncio.sleep(delegated.EPOCH + 690 - delegated.wall_clock())
            assert await scene.units("one") == {"h100-0": ("Training", "ends")}
            status = await scene.when(
                "one", lambda status: status["units"][0]["state"] == "Training" and status["units"][0]["attempt"] == 2
            )
            assert 700 <= delegated.wall_clock() - delegated.EPOCH < 730  # 300 s ahead of the end, which is after 1000
            assert (status["units"][0]["slice"], status["units"][0]["failures"]) == ("lasts", [])

    delegated.play(scenario)
