"""`diloco submit` and `diloco init` on a real control plane: a script becomes a job that trains, and goes with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.control_plane import ControlPlane
from builders.kube_jobs import kube_cluster, operator
from builders.local import is_gone, is_true, wait_for
from builders.local_jobs import PROGRAM, a_fleet
from diloco_operator.api.names import CONFIG_MAPS, DILOCO_JOBS

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("many-learners")]

DILOCO = Path(sys.executable).parent / "diloco"
SUBMIT = ["submit", str(PROGRAM), "--name", "quad", "--image", "none", "--pool", "v5p=1", "--pool", "h100=1", "--processes", "1"]
RANKS = Path(PROGRAM).with_name("unit_learner.py")
TRAINING = ["--steps", "60", "--sync-interval", "8", "--fragments", "8"]


async def diloco(plane: ControlPlane, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with the kubeconfig of the plane and nothing else of it."""
    return await asyncio.to_thread(
        subprocess.run, [str(DILOCO), *arguments], cwd=folder, env=plane.environment, capture_output=True, text=True, check=False
    )


async def test_a_script_is_submitted_watched_to_its_end_and_deleted_with_its_job(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    """The kinds and the topology of `v5p` and `h100` are those of the nodes."""
    async with kube_cluster(jobs_plane, tmp_path, a_fleet(tpus=1, gpus=1)) as cluster:
        with operator(jobs_plane, tmp_path):
            done = await diloco(jobs_plane, tmp_path, "init", "-o", "starter.yaml")
            assert done.returncode == 0, done.stderr
            pools = yaml.safe_load((tmp_path / "starter.yaml").read_text())["spec"]["pools"]
            assert [(each["accelerator"], each["learners"]["max"]) for each in pools] == [("nvidia-h100-80gb", 1), ("tpu-v5p", 1)]

            done = await diloco(jobs_plane, tmp_path, *SUBMIT, *TRAINING, "--watch")
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.startswith("dilocojob.diloco.dev/quad created in namespace default\n")
            assert "60 of 60 steps" in done.stdout

            again = await diloco(jobs_plane, tmp_path, *SUBMIT, *TRAINING)
            assert again.returncode == 1
            assert 'there is a job "quad" in namespace "default" already' in again.stderr

            listed = jobs_plane.request("GET", "/api/v1/namespaces/default/configmaps")["items"]
            [script] = [each["metadata"]["name"] for each in listed if each["metadata"]["name"].startswith("quad-script-")]
            await cluster.kubectl("delete", "dlj", "quad", "--wait=false")
            await wait_for(cluster.client, CONFIG_MAPS, "default", script, is_gone)


async def test_a_unit_of_several_hosts_gets_hosts_that_are_held_as_the_command_says(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    """Two of four hosts are spot, and the pods of the unit meet as the two ranks of one process each."""
    fleet = a_fleet(tpus=0, gpus=4)
    for node in fleet[2:4]:
        node["metadata"]["labels"]["cloud.google.com/gke-spot"] = "true"
    async with kube_cluster(jobs_plane, tmp_path, fleet) as cluster:
        with operator(jobs_plane, tmp_path):
            ranks = ["submit", str(RANKS), "ddp", "--name", "wide", "--image", "none", "--processes", "1", "--fragments", "2"]
            done = await diloco(jobs_plane, tmp_path, *ranks, "--pool", "h100=1,hosts=2", "--spot", "--steps", "1000000")
            assert done.returncode == 0, done.stdout + done.stderr
            job = await cluster.job("wide", is_true("Training"))
            spec = job["spec"]["pools"][0]
            assert (spec["accelerator"], spec["hosts"], spec["capacity"]) == ("nvidia-h100-80gb", 2, "Spot")
            pods = jobs_plane.request("GET", "/api/v1/namespaces/default/pods?labelSelector=diloco.dev/job=wide,diloco.dev/unit=h100-0")[
                "items"
            ]
            assert {pod["spec"]["nodeName"] for pod in pods} == {"gpu-1", "gpu-2"}
            await cluster.kubectl("delete", "dlj", "wide", "--wait=false")
            await wait_for(cluster.client, DILOCO_JOBS, "default", "wide", is_gone)
