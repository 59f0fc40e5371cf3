"""An operator reads from the API server when a node ends."""

from __future__ import annotations

from builders.kube_objects import eventually
from builders.operator_run import running
from diloco_operator.api import names
from diloco_operator.kube.client import PatchType
from diloco_operator.kube.timestamps import format_timestamp

from .test_missing_rights import TwoTeams, play

WALL_CLOCK = 1_795_208_400.0
"""Of `TwoTeams`, when it begins."""


def test_unit_starts_on_the_node_that_lasts() -> None:
    async def scenario(cluster: TwoTeams) -> None:
        ends = {"metadata": {"annotations": {"node.gke.io/machine-termination-datetime": format_timestamp(WALL_CLOCK + 100)}}}
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
