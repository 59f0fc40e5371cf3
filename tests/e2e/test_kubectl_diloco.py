"""`kubectl diloco` at work: a real control plane, the operator, and units that train."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import start
from builders.kube_jobs import install_chart, kube_cluster, operator
from builders.local_jobs import a_fleet, a_quadratic_job

pytestmark = pytest.mark.timeout(300)


def contribute(count: int) -> Any:
    return lambda job: bool(job) and job.get("status", {}).get("learners", {}).get("contributing") == count


async def test_a_unit_is_drained_and_a_job_suspended_and_resumed_while_it_trains(tmp_path: Path) -> None:
    with start(tmp_path / "plane", node_grace="50s") as plane:
        install_chart(plane, progressInterval="500ms")

        async def diloco(*args: str) -> str:
            return (await asyncio.to_thread(plane.kubectl, "diloco", *args)).stdout

        async with kube_cluster(plane, tmp_path, a_fleet(tpus=2, gpus=1)) as cluster:
            with operator(plane, tmp_path):
                await cluster.apply(a_quadratic_job(steps=1_000_000, environment={"QUADRATIC_STEP_MS": 20}))
                await cluster.job("quad", contribute(3))

                said = await diloco("drain", "quad", "v5p-0", "--timeout", "2m")
                assert said.startswith("pod/quad-v5p-0-a1-0 evicted\n")
                assert said.splitlines()[-1].startswith("unit v5p-0 contributes again after ")
                assert said.endswith("failures on its restart budget: 0\n")
                drained = await cluster.job("quad", contribute(3))
                assert {unit["name"]: unit["attempt"] for unit in drained["status"]["units"]} == {"v5p-0": 2, "v5p-1": 1, "h100-0": 1}
                shown = await diloco("status", "quad")
                assert "\n  Training: 3 of 3 learners contribute\n" in shown
                assert [line.split()[:2] for line in shown.splitlines() if line.startswith("v5p-0 ")] == [["v5p-0", "Training"]]

                said = await diloco("suspend", "quad", "--wait", "--timeout", "2m")
                assert said.splitlines()[-1] == "dilocojob.diloco.dev/quad: no pod runs any more, the state is saved"
                parked = await cluster.job("quad", contribute(0))
                pods = plane.request("GET", "/api/v1/namespaces/default/pods?labelSelector=diloco.dev/job=quad")["items"]
                assert pods == []

                said = await diloco("resume", "quad", "--wait", "--timeout", "2m")
                assert said.splitlines()[-1].startswith("dilocojob.diloco.dev/quad trains: ")
                resumed = await cluster.job("quad", contribute(3))
                assert resumed["status"]["progress"]["step"] >= parked["status"]["progress"]["step"]
                await cluster.kubectl("delete", "dlj/quad", "--timeout=60s")
