"""Simulated nodes joined to a real control plane: its scheduler binds, its controllers watch, and the pods are processes here."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.kube_objects import eventually
from builders.local import WAIT_SECONDS, Holds, condition, has_phase, is_gone, is_gone_after, is_true, wait_for
from builders.nodes import a_fleet_node
from builders.pods import a_pod
from diloco_local.supervisor import has_mark, processes
from diloco_operator.api.names import (
    ANNOTATION_ADDRESS,
    LABEL_JOB,
    NODES,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
)
from diloco_operator.kube.client import NotFound, Obj, Resource
from diloco_operator.kube.lease import LEASES
from diloco_operator.kube.rest import RestClient, load_config
from simulated_nodes.cluster_nodes import LEASE_NAMESPACE, ForeignNodes
from simulated_nodes.joined import SimulatedNodes
from simulated_nodes.names import LABEL_SERVER

FLEET = [a_fleet_node("sim-one"), a_fleet_node("sim-two", tpu=4)]


class Joined:
    """Simulated nodes and the namespace of one test."""

    def __init__(self, plane: ControlPlane, client: RestClient, namespace: str, state_dir: Path) -> None:
        self.plane, self.client, self.namespace, self.state_dir = plane, client, namespace, state_dir
        self.nodes: SimulatedNodes

    @contextlib.asynccontextmanager
    async def serving(self, *fleet: Obj, leave: bool = True, **options: Any) -> AsyncIterator[SimulatedNodes]:
        """`leave`: at the end in good order. Without it: as if the command were killed."""
        async with SimulatedNodes(self.client, self.state_dir, fleet or FLEET, volume_sync=0.1, **options) as nodes:
            self.nodes = nodes
            yield nodes
            if leave:
                await nodes.leave()

    async def kubectl(self, *args: str) -> str:
        """In the test's namespace. Not in the event loop's thread, which the nodes need meanwhile."""
        done = await asyncio.to_thread(self.plane.kubectl, "-n", self.namespace, *args)
        return done.stdout

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        return await self.client.create(resource, {**obj, "metadata": {**obj["metadata"], "namespace": self.namespace}})

    async def run(self, name: str, script: str, **spec: Any) -> Obj:
        """Create a pod of a job that runs a shell script."""
        metadata = {"labels": {LABEL_JOB: "job"}, **spec.pop("metadata", {})}
        pod = a_pod(name, "sh", "-c", script.replace("$$", "$$$$"), metadata=metadata, automountServiceAccountToken=False, **spec)
        pod["metadata"]["name"] = name
        return await self.create(PODS, pod)

    async def pod(self, name: str, holds: Holds) -> Obj:
        found = await wait_for(self.client, PODS, self.namespace, name, holds)
        return found or {}

    def log(self, pod: str) -> str:
        return "".join(path.read_text() for path in self.nodes.kubelet.logs(self.namespace, pod))


@pytest.fixture
async def joined(control_plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Joined]:
    namespace = f"nodes-{abs(hash(request.node.name)) % 10**8}"
    control_plane.kubectl("create", "namespace", namespace)
    exists = ("-n", namespace, "get", "serviceaccount", "default")
    control_plane.wait_for(lambda: control_plane.kubectl(*exists, check=False).returncode == 0, "the namespace's ServiceAccount")
    try:
        async with RestClient.connect(load_config(control_plane.kubeconfig)) as client:
            yield Joined(control_plane, client, namespace, tmp_path / "state")
    finally:
        control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
        control_plane.kubectl("delete", "nodes", "-l", LABEL_SERVER, "--ignore-not-found")
        control_plane.kubectl("delete", "storageclasses", "-l", LABEL_SERVER, "--ignore-not-found")


def runs(pod: Obj) -> bool:
    """Whether a process of the pod's first container lives."""
    mark = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("local://")
    return any(process.alive and has_mark(process.pid, mark) for process in processes())


async def test_nodes_are_ready_schedulable_and_named_by_kubectl(joined: Joined) -> None:
    async with joined.serving():
        await joined.kubectl("wait", "node", "sim-one", "sim-two", "--for=condition=Ready", "--timeout=180s")
        listed = json.loads(await joined.kubectl("get", "nodes", "-l", LABEL_SERVER, "-o", "json"))
        assert {node["metadata"]["name"] for node in listed["items"]} == {"sim-one", "sim-two"}
        two = next(node for node in listed["items"] if node["metadata"]["name"] == "sim-two")
        assert two["status"]["allocatable"]["google.com/tpu"] == "4"
        assert "cpu" in two["status"]["allocatable"], "what the fleet file leaves out is this machine's"
        lease = await joined.client.get(LEASES, LEASE_NAMESPACE, "sim-one")
        assert lease["spec"]["holderIdentity"] == "sim-one"


async def test_a_pod_that_the_scheduler_binds_runs_and_ends_as_kubectl_expects(joined: Joined) -> None:
    async with joined.serving():
        script = "trap 'echo drained; exit 143' TERM; echo at $POD_IP; while true; do sleep 0.02; done"
        env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        limits = {"limits": {"google.com/tpu": "4"}}
        await joined.run("worker", script, container={"env": env, "resources": limits})
        await joined.kubectl("wait", "pod/worker", "--for=condition=Ready", "--timeout=180s")
        pod = await joined.pod("worker", is_true("Ready"))
        await until(lambda: joined.log("worker").startswith("at "))  # Ready comes before the shell has set its trap
        assert pod["spec"]["nodeName"] == "sim-two", "the one with the accelerators"
        assert pod["status"]["qosClass"] == "BestEffort"
        seen: list[Obj] = []
        ending = asyncio.create_task(joined.pod("worker", is_gone_after(seen)))
        await joined.kubectl("delete", "pod", "worker", "--timeout=180s")
        await ending
        assert joined.log("worker") == f"at {pod['metadata']['annotations'][ANNOTATION_ADDRESS]}\ndrained\n"
        last = seen[-1]
        assert last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143


async def test_the_endpoint_controllers_have_nothing_to_complain_about_in_a_service_for_pods_here(joined: Joined) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL_JOB: "job"}, "ports": [{"port": 7077}]}
    async with joined.serving():
        await joined.create(SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "job"}, "spec": spec})
        await joined.run("worker", "while true; do sleep 0.02; done")
        await joined.pod("worker", is_true("Ready"))
        await joined.kubectl("label", "service/job", "seen=yes")
        slices = ("get", "endpointslices", "--selector", "kubernetes.io/service-name=job,seen=yes", "-o", "name")

        async def listed() -> bool:
            return bool((await joined.kubectl(*slices)).strip())

        await eventually(listed, "the controller copies the label, as it does once it accepts what the Service selects")
        warnings = await joined.kubectl("get", "events", "--field-selector", "type=Warning,involvedObject.kind=Service", "-o", "name")
        assert warnings == ""


async def test_kubectl_logs_shows_what_a_pod_writes_while_it_runs_and_afterwards(joined: Joined) -> None:
    async with joined.serving():
        script = "for i in 1 2 3; do echo line $i; done; while [ ! -e $GO ]; do sleep 0.02; done; echo end"
        await joined.run("writer", script, container={"env": [{"name": "GO", "value": str(joined.state_dir / "go")}]})
        await until(lambda: joined.log("writer").endswith("line 3\n"))
        assert await joined.kubectl("logs", "writer") == "line 1\nline 2\nline 3\n"
        assert await joined.kubectl("logs", "writer", "--tail=1") == "line 3\n"
        following = asyncio.create_task(joined.kubectl("logs", "writer", "--follow"))
        (joined.state_dir / "go").touch()
        assert await following == "line 1\nline 2\nline 3\nend\n"
        await joined.pod("writer", has_phase("Succeeded"))
        assert await joined.kubectl("logs", "writer", "-c", "main", "--tail=2") == "line 3\nend\n"


async def test_force_deletion_kills_and_eviction_is_marked_as_a_disruption(joined: Joined) -> None:
    async with joined.serving():
        stubborn = "trap '' TERM; echo deaf; while true; do sleep 0.02; done"
        for name in ("forced", "evicted"):
            await joined.run(name, stubborn, terminationGracePeriodSeconds=3600)
        forced = await joined.pod("forced", is_true("Ready"))
        evicted = await joined.pod("evicted", is_true("Ready"))
        await until(lambda: joined.log("forced") == joined.log("evicted") == "deaf\n")
        await joined.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
        await joined.pod("forced", is_gone)
        await until(lambda: not runs(forced))
        await joined.client.evict(joined.namespace, "evicted", grace_seconds=1)
        marked = await joined.pod("evicted", lambda pod: bool(pod) and "deletionTimestamp" in pod["metadata"])
        assert condition(marked, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
        await joined.pod("evicted", is_gone)
        assert not runs(evicted), "it was killed after its grace period, before the API forgot it"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():  # noqa: ASYNC110 - the end of a foreign process has no event
            await asyncio.sleep(0.01)


async def test_a_claim_gets_a_folder_that_outlives_the_pod_and_goes_with_the_claim(joined: Joined) -> None:
    async with joined.serving():
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await joined.create(VOLUME_CLAIMS, {"metadata": {"name": "state"}, "spec": claim})
        mounted = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "state"}}]}
        container = {"volumeMounts": [{"name": "v", "mountPath": "/state"}]}
        await joined.run("writer", "echo kept > /state/file", container=container, **mounted)
        await joined.pod("writer", has_phase("Succeeded"))
        await joined.run("reader", "cat /state/file", container=container, **mounted)
        await joined.pod("reader", has_phase("Succeeded"))
        assert joined.log("reader") == "kept\n"
        bound = await joined.client.get(VOLUME_CLAIMS, joined.namespace, "state")
        volume = await joined.client.get(PERSISTENT_VOLUMES, "", bound["spec"]["volumeName"])
        folder = Path(volume["spec"]["local"]["path"])
        assert folder.is_relative_to(joined.state_dir)
        await joined.kubectl("delete", "pod", "--all", "--timeout=180s")
        await joined.kubectl("delete", "pvc", "state", "--timeout=180s")
        await wait_for(joined.client, PERSISTENT_VOLUMES, "", volume["metadata"]["name"], is_gone)
        assert not folder.exists()  # noqa: ASYNC240 - at once


async def test_a_running_pod_sees_all_files_of_a_changed_secret_at_once(joined: Joined) -> None:
    def pair(text: str) -> Obj:
        return {key: base64.b64encode(f"{text} of {key}\n".encode()).decode() for key in ("tls.crt", "tls.key", "unused")}

    async with joined.serving():
        await joined.create(SECRETS, {"metadata": {"name": "tls"}, "data": pair("first")})
        items = [{"key": "tls.crt", "path": "pair/crt"}, {"key": "tls.key", "path": "pair/key", "mode": 0o400}]
        volumes = [{"name": "tls", "projected": {"sources": [{"secret": {"name": "tls", "items": items}}]}}]
        container = {"volumeMounts": [{"name": "tls", "mountPath": "/tls"}]}
        script = "cat /tls/pair/*; ls /tls; until grep -q second /tls/pair/crt; do sleep 0.02; done; cat /tls/pair/*"
        await joined.run("reader", script, volumes=volumes, container=container)
        await joined.pod("reader", is_true("Ready"))
        await until(lambda: joined.log("reader").endswith("pair\n"))
        secret = await joined.client.get(SECRETS, joined.namespace, "tls")
        await joined.client.update(SECRETS, {**secret, "data": pair("second")})
        await joined.pod("reader", has_phase("Succeeded"))
        assert joined.log("reader") == (
            "first of tls.crt\nfirst of tls.key\npair\nsecond of tls.crt\nsecond of tls.key\n"
        )  # fmt: skip


async def test_after_a_kill_the_same_command_takes_up_its_nodes_and_reports_the_end_of_their_pods(joined: Joined) -> None:
    async with joined.serving(leave=False):
        await joined.run("once", "echo ready; exec sleep 1000")
        await joined.run("service", "exec sleep 1000", policy="OnFailure")
        await joined.run("deleted", "exec sleep 1000")
        before = {name: await joined.pod(name, is_true("Ready")) for name in ("once", "service", "deleted")}
        await until(lambda: joined.log("once") == "ready\n")
        registered = await joined.client.get(NODES, "", "sim-one")
    assert not any(map(runs, before.values())), "processes die with the command"
    await joined.kubectl("delete", "pod", "deleted", "--wait=false")
    async with joined.serving():
        assert (await joined.client.get(NODES, "", "sim-one"))["metadata"]["uid"] == registered["metadata"]["uid"]
        once = await joined.pod("once", has_phase("Failed"))
        ended = once["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
        assert await joined.kubectl("logs", "once") == "ready\n", "a pod that has ended keeps its log"
        service = await joined.pod("service", lambda pod: is_true("Ready")(pod) and restarts(pod) == 1)
        assert runs(service)
        await joined.pod("deleted", is_gone)


def restarts(pod: Obj | None) -> int:
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))


async def test_leaving_drains_the_nodes_and_touches_nothing_else(joined: Joined) -> None:
    joined.plane.add_node("stranger", taints=[{"key": "of", "value": "another-team", "effect": "NoSchedule"}])
    try:
        async with joined.serving():
            await joined.run("worker", "trap 'echo ended; exit 143' TERM; echo ready; while true; do sleep 0.02; done")
            await until(lambda: joined.log("worker") == "ready\n")
        assert joined.log("worker") == "ready\nended\n"
        with pytest.raises(NotFound):
            await joined.client.get(PODS, joined.namespace, "worker")
        nodes = {node["metadata"]["name"] for node in (await joined.client.list(NODES)).items}
        assert "stranger" in nodes
        assert not nodes & {"sim-one", "sim-two"}
        with pytest.raises(NotFound):
            await joined.client.get(LEASES, LEASE_NAMESPACE, "sim-one")
        assert (await joined.client.list(STORAGE_CLASSES, label_selector=LABEL_SERVER)).items == []
    finally:
        joined.plane.kubectl("delete", "node", "stranger")


async def test_the_name_of_a_foreign_node_is_refused_before_anything_is_written(joined: Joined) -> None:
    joined.plane.add_node("sim-two")
    try:
        with pytest.raises(ForeignNodes, match=r"not of this state directory: sim-two\. Rename"):
            async with joined.serving():
                pass
        with pytest.raises(NotFound):
            await joined.client.get(NODES, "", "sim-one")
    finally:
        joined.plane.kubectl("delete", "node", "sim-two")


async def test_pods_of_no_job_run_only_with_all_pods(joined: Joined) -> None:
    async with joined.serving():
        await joined.run("foreign", "exec sleep 1000", metadata={"labels": {"app": "proxy"}})
        waiting = await joined.pod("foreign", lambda pod: bool((pod or {}).get("status", {}).get("containerStatuses")))
        state = waiting["status"]["containerStatuses"][0]["state"]["waiting"]
        assert state["reason"] == "NotAdmitted"
        assert "--all-pods" in state["message"]
        await joined.kubectl("delete", "pod", "foreign", "--timeout=180s")
    async with joined.serving(all_pods=True):
        await joined.run("welcome", "echo here", metadata={"labels": {}})
        await joined.pod("welcome", has_phase("Succeeded"))


async def test_a_stopped_node_comes_back(joined: Joined) -> None:
    async with joined.serving(a_fleet_node("sim-one"), heartbeat=0.2):
        await joined.run("worker", "exec sleep 1000")
        worker = await joined.pod("worker", is_true("Ready"))
        await joined.kubectl("annotate", "node", "sim-one", "local.diloco.dev/simulate=stopped")
        await until(lambda: not runs(worker))
        lease = await joined.client.get(LEASES, LEASE_NAMESPACE, "sim-one")
        still = await joined.client.get(PODS, joined.namespace, "worker")
        assert still["status"]["phase"] == "Running", "the node reports nothing"
        await joined.kubectl("annotate", "node", "sim-one", "local.diloco.dev/simulate-")
        renewed = await wait_for(
            joined.client, LEASES, LEASE_NAMESPACE, "sim-one",
            lambda now: (now or {}).get("spec", {}).get("renewTime") not in (None, lease["spec"]["renewTime"]),
        )  # fmt: skip
        assert renewed is not None
        await joined.pod("worker", has_phase("Failed"))


async def test_a_partitioned_node_works_on_without_the_api_server(joined: Joined) -> None:
    async with joined.serving(a_fleet_node("sim-one"), heartbeat=0.2):
        await joined.run("worker", "exec sleep 1000")
        worker = await joined.pod("worker", is_true("Ready"))
        await joined.kubectl("annotate", "node", "sim-one", "local.diloco.dev/simulate=partitioned")
        await until(lambda: not joined.nodes.kubelet.serve("sim-one").connected.is_set())
        await joined.kubectl("delete", "pod", "worker", "--force", "--grace-period=0")
        await joined.pod("worker", is_gone)
        assert runs(worker)
        await joined.kubectl("annotate", "node", "sim-one", "local.diloco.dev/simulate-")
        await until(lambda: not runs(worker))
