"""The tutorials on quota and autoscalers, typed as they stand with the real Kueue and the real Karpenter.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from builders.control_plane import ControlPlane
from builders.document_reader import Reader, a_checkout, environment_of, reading, write_files
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.karpenter import Karpenter
from builders.kube_jobs import operator
from builders.kueue import Kueue
from builders.nodes import a_fleet_gpu_node

pytestmark = pytest.mark.timeout(1800)


async def test_two_units_get_their_quota_one_after_the_other_as_the_tutorial_says(
    plane: ControlPlane, queues: Kueue, tmp_path: Path
) -> None:
    checkout = a_checkout(tmp_path)
    write_files("docs/your-program.md", checkout)
    write_files("docs/tutorials/kueue.md", checkout)

    def follow(reader: Reader) -> None:
        reader.type("docs/tutorials/kueue.md#a-queue")
        explained = list(reader.type("docs/tutorials/kueue.md#a-job-of-the-queue").values())[-1]
        assert "insufficient unused quota for nvidia.com/gpu in flavor gpu-hosts" in " ".join(explained.split())
        reader.type("docs/tutorials/kueue.md#more-quota")
        reader.type("docs/tutorials/kueue.md#more-quota/2")

    fleet = [a_fleet_gpu_node(f"gpu-{index}") for index in range(2)]
    async with growing_cluster(plane, tmp_path, nodes="made-by=nobody", fleet=fleet):
        with operator(plane, tmp_path), reading("kueue", tmp_path, environment_of(plane, activated=True)) as reader:
            await asyncio.to_thread(follow, reader)


async def test_a_job_brings_its_nodes_and_gives_them_back_as_the_tutorial_says(
    cluster: GrowingCluster, autoscaler: Karpenter, tmp_path: Path
) -> None:
    write_files("docs/your-program.md", a_checkout(tmp_path))

    def follow(reader: Reader) -> None:
        shown = reader.type("docs/tutorials/karpenter.md#karpenter")
        assert len(re.findall(r"^h100-\w+ .*True", shown["kubectl get nodeclaims"], re.MULTILINE)) == 1
        assert re.search(r"nvidia-h100-80gb-0|h100-80gb-0", shown["kubectl diloco units train"])
        reader.type("docs/tutorials/karpenter.md#karpenter/2")

    environment = environment_of(cluster.control, activated=True)
    with operator(cluster.control, tmp_path), reading("karpenter", tmp_path, environment) as reader:
        await asyncio.to_thread(follow, reader)
