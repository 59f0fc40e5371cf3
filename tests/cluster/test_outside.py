"""A job whose learners are in two clusters and on a machine of neither: those outside find its syncer by one address alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.kube_jobs import KubeCluster, kube_cluster, nodes_command, operator
from builders.load_balancer import a_plain_process, check_tokens, load_balancer, syncer_of
from builders.local import WAIT_SECONDS, has_phase, is_true, wait_for
from builders.local_jobs import PROGRAM, a_fleet, a_quadratic_job
from builders.nodes import a_fleet_node
from diloco_operator.api.names import PODS
from diloco_operator.kube.rest import RestClient, load_config

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("many-learners")]

STEP_MS: dict[str, object] = {"QUADRATIC_STEP_MS": "50"}


def a_pod_with(bundle: Path) -> list[Obj]:
    """In another cluster: the bundle as a Secret (`kubectl create secret generic diloco --from-file=FOLDER`), and a pod that mounts it."""
    files = {file.name: file.read_text() for file in bundle.iterdir()}
    container = {
        "name": "learner",
        "image": "none",
        "command": ["diloco-launch", "--bundle", "/bundle", "python", str(PROGRAM)],
        "env": [{"name": name, "value": str(value)} for name, value in STEP_MS.items()],
        "volumeMounts": [{"name": "bundle", "mountPath": "/bundle"}],
    }
    volumes = [{"name": "bundle", "secret": {"secretName": "diloco"}}]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never", "automountServiceAccountToken": False}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "diloco"}, "stringData": files},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tokyo"}, "spec": spec},
    ]


def trains(learner: str) -> Callable[[Obj | None], bool]:
    """Whether tokens of a learner outside are committed."""

    def holds(job: Obj | None) -> bool:
        outside = (job or {}).get("status", {}).get("outside", ())
        return any(each["name"] == learner and each.get("state") == "Contributing" and each.get("tokens") for each in outside)

    return holds


def have_joined_again(cluster: KubeCluster, *learners: str) -> bool:
    """Whether each has joined the process of the syncer that took the place of the first one; both write one log."""
    _, again, since = cluster.log("quad-syncer").rpartition(" goes on from outer step ")
    return bool(again) and all(f"unit {learner} joins as attempt 1 " in since for learner in learners)


async def test_learners_of_two_clusters_and_of_none_train_one_job(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    """Pods of the other cluster and the plain processes know the load balancer's address alone, also for a syncer that takes the place of
    the first one. The last learner that joins ends the job, once all others have found that syncer."""

    def bundle_of(learner: str) -> Path:
        folder = tmp_path / learner
        said = jobs_plane.kubectl("diloco", "join-bundle", "quad", learner, "--output", str(folder)).stdout
        assert said.startswith(f"{folder}: joins quad at {address}; its certificate is good until 20")
        return folder

    job = a_quadratic_job(units={"v5p": 1}, steps=1_000_000, environment=STEP_MS)
    job["spec"]["learners"]["outside"] = ["lab", "osaka", "tokyo"]
    with contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(load_balancer(syncer_of(jobs_plane, "quad")))
        other = stack.enter_context(ControlPlane(tmp_path / "other"))
        job["spec"]["syncer"] = {"externalAddress": address}
        async with kube_cluster(jobs_plane, tmp_path / "first", a_fleet(tpus=1, gpus=0)) as cluster:
            stack.enter_context(operator(jobs_plane, tmp_path))
            await cluster.apply(job)
            await cluster.job("quad", is_true("Training"))
            check_doctor(await asyncio.to_thread(jobs_plane.kubectl, "diloco", "doctor", "quad"))
            manifests = a_pod_with(await asyncio.to_thread(bundle_of, "tokyo"))
            other.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=180s")
            stack.enter_context(nodes_command(tmp_path / "second", other.kubeconfig, [a_fleet_node("far", cpu=8)], "--all-pods"))
            other.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
            await cluster.job("quad", trains("tokyo"))
            lab, osaka = [await asyncio.to_thread(bundle_of, name) for name in ("lab", "osaka")]
            processes = [stack.enter_context(a_plain_process(lab, QUADRATIC_STEP_MS="50"))]
            await cluster.job("quad", trains("lab"))
            await cluster.kubectl("delete", "pod", "quad-syncer", "--wait=false")
            others = ("lab", "tokyo", "v5p-0")
            await asyncio.to_thread(jobs_plane.wait_for, lambda: have_joined_again(cluster, *others), "all to find the other syncer")
            processes.append(stack.enter_context(a_plain_process(osaka, QUADRATIC_FINISH_AT_STEP="3")))
            found = await cluster.job("quad", is_true("Complete"))
            for process in processes:
                assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
            async with RestClient.connect(load_config(other.kubeconfig)) as client:
                await wait_for(client, PODS, "default", "tokyo", has_phase("Succeeded"))
            check_tokens(jobs_plane, found, ["v5p-0", "tokyo", "lab"], "osaka")


def check_doctor(done: subprocess.CompletedProcess[str]) -> None:
    """All is well on nodes with kubelets but one thing: the operator is a process beside the chart."""
    wrong = [line for line in done.stdout.splitlines()[:-1] if not line.startswith("ok ")]
    assert [line.split()[:2] for line in wrong] == [["warning", "operator"]], done.stdout
    assert "agree within 10 s, and so do 2 nodes" in done.stdout
