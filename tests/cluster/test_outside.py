"""A job whose learners are in two clusters and on a machine of neither: those outside find its syncer by one address alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.child_processes import Launcher
from builders.control_plane import ControlPlane, start
from builders.kube_jobs import KubeCluster, kube_cluster, nodes_command, operator
from builders.local import WAIT_SECONDS, has_phase, is_true, wait_for
from builders.local_jobs import PROGRAM, a_fleet, a_quadratic_job
from builders.nodes import a_fleet_node
from diloco import contract
from diloco_operator.api.names import ANNOTATION_ADDRESS, COMPONENT_SYNCER, LABEL_COMPONENT, LABEL_JOB, PODS
from diloco_operator.kube.rest import RestClient, load_config

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("many-learners")]

LAUNCH = str(Path(sys.executable).parent / "diloco-launch")
STEP_MS: dict[str, object] = {"QUADRATIC_STEP_MS": "50"}
SYNCERS = f"{LABEL_JOB}=quad,{LABEL_COMPONENT}={COMPONENT_SYNCER}"


class LoadBalancer:
    """What a cloud puts before the syncer: an address of its own, from which bytes go to the syncer's pod and back. `target`: where that is
    now; None: no pod has an address, and connections are closed."""

    def __init__(self, target: Callable[[], str | None]) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.2", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            host = self._target()
            far = socket.create_connection((host, contract.SYNCER_PORT)) if host is not None else None
        except OSError:  # its program does not listen yet, or not any more
            far = None
        if far is None:
            near.close()
            return
        self._sockets.append(far)
        for source, drain in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, drain), daemon=True).start()

    def _pass(self, source: socket.socket, drain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                drain.sendall(piece)
        for each in (source, drain):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def load_balancer(target: Callable[[], str | None]) -> Iterator[LoadBalancer]:
    made = LoadBalancer(target)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def a_plain_process(bundle: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program on a machine of no cluster: nothing but the bundle says that there is a job. What it writes is in `<bundle>.log`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DILOCO_", "KUBE"))}
    command = [LAUNCH, "--bundle", str(bundle), sys.executable, str(PROGRAM)]
    launcher = Launcher()

    def begin(prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        with bundle.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(command, env={**clean, **environment}, stdout=log, stderr=log, preexec_fn=prepare)

    process = launcher.start(begin)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        launcher.close()


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

    def syncer() -> str | None:
        """As a cloud follows the endpoints of a Service: while the pod is made anew there is none, and then it has no address yet."""
        listed = jobs_plane.request("GET", f"/api/v1/namespaces/default/pods?labelSelector={SYNCERS}")["items"]
        found = (pod["metadata"].get("annotations", {}).get(ANNOTATION_ADDRESS) for pod in listed)
        return next((str(address) for address in found if address), None)

    def bundle_of(learner: str) -> Path:
        folder = tmp_path / learner
        said = jobs_plane.kubectl("diloco", "join-bundle", "quad", learner, "--output", str(folder)).stdout
        assert said.startswith(f"{folder}: joins quad at {balancer.address}; its certificate is good until 20")
        return folder

    job = a_quadratic_job(units={"v5p": 1}, steps=1_000_000, environment=STEP_MS)
    job["spec"]["learners"]["outside"] = ["lab", "osaka", "tokyo"]
    with contextlib.ExitStack() as stack:
        balancer = stack.enter_context(load_balancer(syncer))
        other = stack.enter_context(start(tmp_path / "other"))
        job["spec"]["syncer"] = {"externalAddress": balancer.address}
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
            check_shares(jobs_plane, found)


def check_doctor(done: subprocess.CompletedProcess[str]) -> None:
    """All is well on nodes with kubelets but one thing: the operator is a process beside the chart."""
    wrong = [line for line in done.stdout.splitlines()[:-1] if not line.startswith("ok ")]
    assert [line.split()[:2] for line in wrong] == [["warning", "operator"]], done.stdout
    assert "agree within 10 s, and so do 2 nodes" in done.stdout


def check_shares(plane: ControlPlane, job: Obj) -> None:
    """Each of the first three has trained a part, the last one perhaps, and every token is of one of them."""
    pod = plane.request("GET", "/api/v1/namespaces/default/pods/quad-syncer")
    [container] = pod["status"]["containerStatuses"]
    result = contract.Result.model_validate_json(container["state"]["terminated"]["message"])
    tokens = {unit.unit: unit.tokens for unit in result.units}
    assert set(tokens) == {"v5p-0", "tokyo", "lab", "osaka"}
    assert min(tokens[unit] for unit in ("v5p-0", "tokyo", "lab")) > 0
    assert sum(tokens.values()) == result.tokens == job["status"]["progress"]["tokens"]
