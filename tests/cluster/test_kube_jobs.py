"""Jobs on a real control plane, from kubectl apply to Complete. The operator has the rights that the chart gives it, and no others."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.chart import NAMESPACE, RELEASE
from builders.control_plane import ControlPlane
from builders.dra import a_device_slice
from builders.event_files import steps_of
from builders.kube_jobs import ACCOUNT, KubeCluster, kube_cluster, operator, watched_states
from builders.kube_objects import eventually
from builders.local import WAIT_SECONDS, is_gone, is_true, wait_for
from builders.local_jobs import a_fleet, a_quadratic_job, samples_drawn, steps_taken
from builders.nodes import a_fleet_node
from builders.operator_process import OperatorReplica
from builders.workloads import FINALIZER as KUEUE_FINALIZER
from builders.workloads import workloads_crd
from diloco_operator.api.losses import parse_losses
from diloco_operator.api.names import (
    CUSTOM_RESOURCES,
    DILOCO_JOBS,
    DRA,
    GPU_DRIVER,
    PODS,
    SERVICES,
    VOLUME_CLAIMS,
    external_service_name,
)

type Obj = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.timeout(2400), pytest.mark.xdist_group("many-learners")]
READER = f"{RELEASE}-metrics-reader"
COMPLETE = is_true("Complete")
SLOW = 1200
"""Seconds. Four processes import torch or JAX, at the low priority of containers: beside another run of the tests for minutes."""
STEP_MS = 100
"""A step of a job that waits for what the control plane does. Shorter ones show no more of it, and take the processor from it."""


@pytest.fixture
def plane(jobs_plane: ControlPlane) -> ControlPlane:
    return jobs_plane


def requests(plane: ControlPlane, since: int = 0) -> list[Obj]:
    """What the operator has asked for."""
    return [event for event in plane.audit_events(since) if event["user"]["username"] == ACCOUNT]


def refused(events: list[Obj]) -> list[str]:
    return [f"{e['verb']} {e['requestURI']}" for e in events if e.get("responseStatus", {}).get("code") == 403]


def check_tokens(cluster: KubeCluster, job: Obj, trace: Path | None = None) -> None:
    """No token counted twice, none lost. The ledger's samples and the status' tokens are counted in different places, 16 to a sample."""
    counted = job["status"]["progress"]["tokens"]
    assert counted == sum(unit.get("tokens", 0) for unit in job["status"]["units"])
    account = re.findall(
        r"ledger: (\d+) samples of sequence numbers 0 to (\d+) trained once each", cluster.log(f"{job['metadata']['name']}-syncer")
    )
    trained, last = map(int, account[-1])
    assert counted == 16 * trained
    assert trained <= last + 1
    if trace:  # what is counted was drawn, so there are no more tokens than distinct samples
        assert trained <= len(samples_drawn(trace))


async def check_loss_curve(cluster: KubeCluster, job: Obj) -> None:
    """Check the curve that the plugin draws of a job that is over."""
    name, progress = job["metadata"]["name"], job["status"]["progress"]
    shown = (await cluster.kubectl("diloco", "status", name)).splitlines()
    [title] = [at for at, line in enumerate(shown) if line.startswith("  loss by outer step: ")]
    assert shown[title].endswith(f" held-out loss {parse_losses(progress['heldOutLosses'])[-1].loss:.4g} at step {progress['step']}")
    assert shown[title + 9].split()[-1] == str(progress["step"])
    said = json.loads(await cluster.kubectl("diloco", "status", name, "-o", "json"))["progress"]
    assert said["losses"] == progress["losses"]
    curve = parse_losses(said["losses"])
    assert curve[0].loss > curve[-1].loss


def check_event_files(nodes: Path, job: Obj) -> None:
    """TensorBoard has each step once, over two syncers. `nodes`: folder of the simulated nodes."""
    [folder] = (nodes / "state" / "volumes").rglob("tensorboard")
    steps = steps_of(folder)
    assert steps == sorted(set(steps))
    assert steps[-1] == job["status"]["progress"]["step"]


def all_took_part(job: Obj | None) -> bool:
    units = (job or {}).get("status", {}).get("units", ())
    return len(units) == 4 and all(unit.get("tokens", 0) > 0 for unit in units)


# --- it trains --------------------------------------------------------------------------------------------------------
@pytest.mark.core
async def test_the_quickstart_applied_with_kubectl_trains_in_torch_and_jax_to_complete(plane: ControlPlane, tmp_path: Path) -> None:
    [job] = yaml.safe_load_all((EXAMPLES / "quickstart.yaml").read_text())
    fleet = list(yaml.safe_load_all((EXAMPLES / "fleet.yaml").read_text()))
    job["spec"]["training"]["steps"] = 100_000  # until all four have trained, however late one starts
    for pool in job["spec"]["pools"]:
        pool["template"]["spec"]["containers"][0]["command"] += ["--width", "48", "--context", "32", "--corpus-bytes", "400000"]
    since = plane.audit_position()
    async with kube_cluster(plane, tmp_path, fleet) as cluster:
        with operator(plane, tmp_path):
            await cluster.apply(job)
            trained = await cluster.job("bytes-lm", all_took_part, timeout=SLOW)
            about = f"--field-selector=involvedObject.uid={trained['metadata']['uid']}"  # events outlive the jobs of other tests
            told = json.loads(await cluster.kubectl("get", "events", about, "-o", "json"))["items"]
            assert [(event["reason"], event["message"]) for event in told if event["type"] != "Normal"] == []
            assert {"AllPlaced", "UnitStarted", "UnitContributes", "QuorumContributing"} <= {event["reason"] for event in told}
            assert [event["message"] for event in told if event["message"].rstrip().endswith(":")] == []
            enough = {"spec": {"training": {"steps": trained["status"]["progress"]["step"] + 100}}}
            await cluster.kubectl("patch", "dlj/bytes-lm", "--type=merge", f"--patch={json.dumps(enough)}")
            await cluster.kubectl("wait", "dlj/bytes-lm", "--for=condition=Complete", "--timeout=600s")
            done = await cluster.job("bytes-lm")
            assert (await cluster.kubectl("get", "dlj", "--no-headers")).split()[:3] == ["bytes-lm", "Complete", "StepsReached"]
            units = {unit["name"]: unit for unit in done["status"]["units"]}
            assert set(units) == {"v5p-0", "v6e-0", "h100-0", "h100-1"}
            assert all_took_part(done), "no unit's part was lost when the syncer was made again for the new number of steps"
            # A uniform guess over 256 bytes costs ln 256 = 5.55 nats; anything that learned letter frequencies is below 4.5.
            assert done["status"]["progress"]["heldOutLoss"] < 4.5
            await check_loss_curve(cluster, done)
            check_event_files(tmp_path, done)
            # The API server's own Service has its warnings from Kubernetes.
            warnings = "type=Warning,involvedObject.kind=Service,involvedObject.name!=kubernetes"
            assert await cluster.kubectl("get", "events", "--field-selector", warnings, "-o", "name") == "", "pods here have no address"
    bindings = [e for e in plane.audit_events(since) if e.get("objectRef", {}).get("subresource") == "binding"]
    assert {e["user"]["username"] for e in bindings} == {"system:kube-scheduler"}
    assert refused(requests(plane, since)) == []


# --- it is disturbed --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fault:
    """Something that happens to a unit (to the newest pod of it) when the job has reached an outer step."""

    unit: str
    step: int
    strike: Callable[[KubeCluster, Obj], Awaitable[Any]]
    attempt: int
    """The attempt of the unit once it trains again."""


async def delete(cluster: KubeCluster, pod: Obj) -> None:
    await cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--timeout=180s")


async def force_delete(cluster: KubeCluster, pod: Obj) -> None:
    await cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")


async def evict(cluster: KubeCluster, pod: Obj) -> None:
    await cluster.client.evict("default", pod["metadata"]["name"])


async def announce_termination(cluster: KubeCluster, pod: Obj) -> None:
    await cluster.kubectl("taint", "node", pod["spec"]["nodeName"], "cloud.google.com/impending-node-termination=now:NoSchedule")


FAULTS = [
    Fault("v5p-1", 20, delete, 2),
    Fault("h100-0", 40, force_delete, 2),
    Fault("h100-0", 60, evict, 3),
    Fault("v5p-1", 80, announce_termination, 3),
]
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
OUTAGE_STEPS = 20_000 // STEP_MS
"""Steps of one unit that the API server is away for: at least 20 s. The leader's renewDeadline is 10 s."""


def trains(unit: Obj, attempt: int) -> bool:
    return unit.get("state") == "Training" and unit["attempt"] == attempt


@pytest.mark.core
async def test_a_job_survives_lost_pods_nodes_operators_and_api_servers_and_counts_each_token_once(
    plane: ControlPlane, tmp_path: Path
) -> None:
    since = plane.audit_position()
    trace = tmp_path / "trace"
    async with kube_cluster(plane, tmp_path, a_fleet(tpus=4, gpus=3)) as cluster:
        # More steps than can be reached: the spec is cut short when every fault has struck.
        environment = {"QUADRATIC_TRACE": "trace", "QUADRATIC_STEP_MS": STEP_MS}
        await cluster.apply(a_quadratic_job(steps=1_000_000, min=3, every_steps=5, environment=environment))
        # Before there is an operator, so that kubectl sees every state.
        with watched_states(plane, tmp_path, "quad") as states, operator(plane, tmp_path, "first") as first:
            await cluster.job("quad", lambda job: all_train(job, 3))
            lost = await partition(cluster, "v5p-0", step=10)
            cut = len(steps_taken(trace)["v5p-0", 1])
            for fault in FAULTS:
                await cluster.step("quad", fault.step)
                pod = await cluster.pod_of("quad", fault.unit)
                assert pod["metadata"]["labels"]["diloco.dev/attempt"] == str(fault.attempt - 1), "the fault before it is over"
                await fault.strike(cluster, pod)
                unit = await cluster.unit("quad", fault.unit, functools.partial(trains, attempt=fault.attempt))
                assert unit["failures"] == [], "a disruption is not the unit's fault"
            await until(lambda: len(states()) >= 4)
            assert states()[:4] == ["Starting", "Training", "Degraded", "Training"], "fewer than learners.min for a while"
            await cluster.step("quad", 100)
            first.send(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            await force_delete(cluster, await cluster.pod_of("quad", "h100-0"))  # while no operator runs
        with operator(plane, tmp_path, "second") as second:
            await cluster.unit("quad", "h100-0", lambda unit: trains(unit, 4))
            moved = await cluster.unit("quad", "v5p-0", lambda unit: trains(unit, 2))
            assert moved["slice"] != lost["spec"]["nodeName"]
            await until(lambda: "FENCED" in cluster.log(lost["metadata"]["name"]))
            assert len(steps_taken(trace)["v5p-0", 1]) > cut, "it trained on without the operator; what it did before it was fenced counts"
            await cluster.kubectl("annotate", "node", lost["spec"]["nodeName"], "local.diloco.dev/simulate-")
            await cluster.kubectl("wait", "node", lost["spec"]["nodeName"], "--for=condition=Ready", "--timeout=180s")
            before = (await cluster.job("quad", lambda job: all_train(job, 3)))["status"]
            assert attempts(before) == {"v5p-0": 2, "v5p-1": 3, "h100-0": 4}, "one more for each fault, and no other"
            await outage(cluster, trace)
            # The history is gone under the watches.
            await until(lambda: "the server has forgotten version" in (tmp_path / "nodes.log").read_text())
            assert second.wait() == 3, "a leader that cannot renew its lease ends, and is started again by its kubelet"
        with operator(plane, tmp_path, "third"):
            after = (await cluster.step("quad", before["progress"]["step"] + OUTAGE_STEPS // 2))["status"]
            assert attempts(after) == attempts(before), "nothing was restarted for the API server's sake"
            await cluster.change("quad", {"training": {"steps": after["progress"]["step"] + 50}})
            job = await cluster.job("quad", COMPLETE)
            assert [unit["failures"] for unit in job["status"]["units"]] == [[], [], []], "disruptions are not the units' fault"
            check_tokens(cluster, job, trace)
    assert refused(requests(plane, since)) == []


async def test_units_train_on_while_no_kubelet_reports_and_when_all_report_again(plane: ControlPlane, tmp_path: Path) -> None:
    """As when the way between the nodes and the API server is cut: the node controller marks every node, and they come back one by one."""
    async with kube_cluster(plane, tmp_path, a_fleet(tpus=3, gpus=2)) as cluster:
        with operator(plane, tmp_path):
            await cluster.apply(a_quadratic_job(steps=1_000_000, environment={"QUADRATIC_STEP_MS": STEP_MS}))
            before = (await cluster.job("quad", lambda job: all_train(job, 3)))["status"]
            await cluster.kubectl("annotate", "nodes", "--all", "local.diloco.dev/simulate=partitioned")
            await cluster.kubectl("wait", "nodes", "--all", "--for=condition=Ready=Unknown", "--timeout=180s")
            cut = await cluster.job("quad")
            # 20 s at least: longer than unheardTolerance.
            during = await cluster.step("quad", cut["status"]["progress"]["step"] + 20_000 // STEP_MS)
            assert all_train(during, 3)
            await cluster.kubectl("annotate", "nodes", "--all", "local.diloco.dev/simulate-")
            await cluster.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=180s")
            await until_untainted(cluster)
            after = await cluster.step("quad", during["status"]["progress"]["step"] + 20)
            assert all_train(after, 3)
            assert attempts(after["status"]) == attempts(before)


def mentions(job: Obj | None, what: str) -> bool:
    return what in str((job or {}).get("status"))


async def until_untainted(cluster: KubeCluster) -> None:
    """Wait until the controllers have taken the taints away, which they do some time after a node is Ready again."""
    async with asyncio.timeout(WAIT_SECONDS):
        while "unreachable" in await cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].spec.taints}"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def all_train(job: Obj | None, count: int) -> bool:
    return bool(((job or {}).get("status") or {}).get("learners", {}).get("contributing") == count)


def attempts(status: Obj) -> dict[str, int]:
    return {unit["name"]: unit["attempt"] for unit in status["units"]}


async def partition(cluster: KubeCluster, unit: str, *, step: int) -> Obj:
    """The kubelet of the unit's node falls silent; the processes there go on. Gives the unit's pod."""
    await cluster.step("quad", step)
    pod = await cluster.pod_of("quad", unit)
    await cluster.kubectl("annotate", "node", pod["spec"]["nodeName"], "local.diloco.dev/simulate=partitioned")
    return pod


async def until(holds: Callable[[], bool], *, seconds: float = WAIT_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.1)


async def outage(cluster: KubeCluster, trace: Path) -> None:
    """The API server goes away, and comes back without any history: every watch has to begin anew. Training goes on meanwhile."""
    count = len(steps_taken(trace)["h100-0", 4])
    await asyncio.to_thread(cluster.control.stop_api_server)
    for program in CONTROLLERS:
        await asyncio.to_thread(cluster.control.kill, program)  # as they end when their leases run out
    await asyncio.to_thread(cluster.control.compact)
    await until(lambda: len(steps_taken(trace)["h100-0", 4]) >= count + OUTAGE_STEPS, seconds=300)
    await asyncio.to_thread(cluster.control.start_api_server)
    for program in CONTROLLERS:
        await asyncio.to_thread(cluster.control.begin, program)


# --- and has the rights that it needs, all of them and no others ------------------------------------------------------
type Right = tuple[str, str, str, str]
"""API group, resource with subresource, name ("": any), verb."""


def granted(plane: ControlPlane) -> set[Right]:
    """Every right that the chart's roles give the operator."""
    found: set[Right] = set()
    for roles in (["clusterrole"], ["role", "--all-namespaces"]):
        listed = json.loads(plane.kubectl("get", *roles, "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "json").stdout)["items"]
        for rule in (rule for role in listed if not for_others(role) for rule in role["rules"]):
            found |= {
                (group, resource, name, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames") or [""]
                for verb in rule["verbs"]
            }
    return found


def for_others(role: Obj) -> bool:
    """A role for users or for readers of metrics, see test_rights."""
    aggregated = any(label.startswith("rbac.authorization.k8s.io/aggregate-to-") for label in role["metadata"].get("labels") or {})
    return aggregated or role["metadata"]["name"] == READER


def used(events: list[Obj], rights: set[Right]) -> set[Right]:
    """The rights that a request was granted by."""
    named = {(group, resource) for group, resource, name, _ in rights if name}
    found: set[Right] = set()
    for event in events:
        target = event.get("objectRef")
        if target and event["responseStatus"]["code"] < 300:
            resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
            group = target.get("apiGroup", "")
            name = target.get("name", "") if (group, resource) in named and event["verb"] != "create" else ""
            found.add((group, resource, name, event["verb"]))
    return found


async def test_every_right_of_the_chart_is_used_and_no_other_is_asked_for(plane: ControlPlane, tmp_path: Path) -> None:
    """Removing a right breaks what used it here: so each of them is needed, and all together are enough."""
    rights = granted(plane)
    plane.kubectl("-n", NAMESPACE, "delete", "leases", "--all")
    since = plane.audit_position()
    job = a_quadratic_job(steps=100_000, units={"v5p": 1, "h100": 1}, environment={"QUADRATIC_STEP_MS": STEP_MS})
    job["spec"]["ttlSecondsAfterFinished"] = 1
    crd = {"apiVersion": CUSTOM_RESOURCES.api_version, "kind": CUSTOM_RESOURCES.kind, **workloads_crd()}
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(crd))
    plane.wait_until_established(crd["metadata"]["name"])
    # One GPU host for each job: the minimum of a job comes before what another has beyond its own.
    fleet = [*a_fleet(tpus=1, gpus=3), a_fleet_node("dra-0", cpu=192, memory="2048Gi", pods=110)]
    async with kube_cluster(plane, tmp_path, fleet) as cluster:
        # Objects with names that a job needs, but of another owner: the operator checks the owner.
        for obj in strangers("taken", "busy"):
            await cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(obj))
        with operator(plane, tmp_path, "first", "--metrics-auth") as first:
            await read_metrics(cluster, first)
            await cluster.apply(job)
            for name in ("taken", "busy"):
                await cluster.apply(a_quadratic_job(name, units={"h100": 1}))
            await cluster.job("quad", lambda job: all_train(job, 2))
            for name, what in (("taken", "Secret taken-ca"), ("busy", "Pod busy-syncer")):
                await cluster.job(name, functools.partial(mentions, what=what))
                await cluster.kubectl("delete", "dlj", name)
            await wait_for(cluster.client, VOLUME_CLAIMS, "default", "busy-syncer", is_gone)  # retain: Delete, by the garbage collector
            await ask_grantors(cluster, since)
            await repeat_an_event(cluster, since)
            await name_another_cluster(cluster, since)
            await claim_devices_twice(cluster, since)
        with operator(plane, tmp_path, "second"):
            await cluster.kubectl("patch", "secret", "quad-ca", "--type=merge", "-p", json.dumps({"data": {"ca.key": ""}}))
            await force_delete(cluster, await cluster.pod_of("quad", "h100-0"))
            await cluster.unit("quad", "h100-0", lambda unit: trains(unit, 2))
            now = await cluster.job("quad", lambda job: all_train(job, 2))
            await cluster.change("quad", {"syncer": {"loadBalancer": {}}})
            await wait_for(cluster.client, SERVICES, "default", external_service_name("quad"), lambda obj: obj is not None)
            await cluster.change("quad", {"syncer": {"loadBalancer": None}})
            await wait_for(cluster.client, SERVICES, "default", external_service_name("quad"), is_gone)
            steps = {"training": {"steps": now["status"]["progress"]["step"] + 50}}
            await cluster.change("quad", {**steps, "syncer": {"storage": {"retain": "Keep"}}})
            await wait_for(cluster.client, DILOCO_JOBS, "default", "quad", is_gone)
            await wait_for(cluster.client, SERVICES, "default", "quad", is_gone)  # the garbage collector has been there
            kept = await cluster.client.get(VOLUME_CLAIMS, "default", "quad-syncer")
            assert "deletionTimestamp" not in kept["metadata"], "ttlSecondsAfterFinished deletes the job, and not the model"
    asked = requests(plane, since)
    assert refused(asked) == []
    # Where OwnerReferencesPermissionEnforcement is on, as on OpenShift, it asks for this when a pod is created; no request is for it.
    enforced: Right = ("diloco.dev", "dilocojobs/finalizers", "", "update")
    assert enforced in rights
    assert sorted(rights - used(asked, rights)) == [enforced], "these rights were not needed"
    assert sorted(used(asked, rights) - rights) == [], "these came from elsewhere"


async def read_metrics(cluster: KubeCluster, operator: OperatorReplica) -> None:
    """As Prometheus does, with the role that the chart makes for it."""
    token = cluster.control.token("default", "default")
    assert await asyncio.to_thread(operator.scrape, token) == 403
    await cluster.kubectl("create", "clusterrolebinding", "scraper", f"--clusterrole={READER}", "--serviceaccount=default:default")

    async def reads() -> bool:
        return await asyncio.to_thread(operator.scrape, token) == 200

    await eventually(reads, "the scraper to read metrics", seconds=WAIT_SECONDS)  # the operator keeps an answer for a while
    await cluster.kubectl("delete", "clusterrolebinding", "scraper")


async def repeat_an_event(cluster: KubeCluster, since: int) -> None:
    """A job that waits for hardware is suspended twice: the second time only raises the count of what was said."""
    waits = a_quadratic_job("waits", units={"h100": 1})
    waits["spec"]["pools"][0] |= {"accelerator": "nvidia-a100-80gb"}
    await cluster.apply(waits)
    suspended = is_true("Suspended")
    for suspend in (True, False, True):
        await cluster.change("waits", {"suspend": suspend})
        await cluster.job("waits", suspended if suspend else lambda job: not suspended(job))
    await asked_for(cluster, since, ("", "events", "", "patch"))
    await cluster.kubectl("delete", "dlj", "waits")


async def name_another_cluster(cluster: KubeCluster, since: int) -> None:
    """A job with a pool elsewhere has a finalizer, whether the operator knows that cluster or not."""
    job = a_quadratic_job("parted", units={"h100": 1})
    [pool] = job["spec"]["pools"]
    job["spec"]["pools"].append({**pool, "name": "far", "cluster": "tokyo"})
    job["spec"]["syncer"] = {"externalAddress": "syncer.example.com"}
    await cluster.apply(job)
    await asked_for(cluster, since, ("diloco.dev", "dilocojobs", "", "patch"))
    await cluster.kubectl("delete", "dlj", "parted")


async def claim_devices_twice(cluster: KubeCluster, since: int) -> None:
    """Only DRA offers the GPUs of the unit's host. The second attempt finds the ResourceClaimTemplate of the first."""
    selector = {"cel": {"expression": f"device.driver == '{GPU_DRIVER}'"}}
    device_class = {"apiVersion": f"{DRA}/v1", "kind": "DeviceClass", "metadata": {"name": GPU_DRIVER}, "spec": {"selectors": [selector]}}
    for obj in (device_class, a_device_slice("dra-0", product="NVIDIA H200")):
        await cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(obj))
    job = a_quadratic_job("claims", units={"h100": 1})
    job["spec"]["pools"][0] |= {"accelerator": "nvidia-h200-141gb"}
    await cluster.apply(job)
    await wait_for(cluster.client, PODS, "default", "claims-h100-0-a1-0", lambda obj: obj is not None)
    await force_delete(cluster, await cluster.pod_of("claims", "h100-0"))
    for verb in ("create", "get"):
        await asked_for(cluster, since, (DRA, "resourceclaimtemplates", "", verb))
    await cluster.kubectl("delete", "dlj", "claims")
    await cluster.kubectl("delete", "resourceslice/dra-0-gpus", f"deviceclass/{GPU_DRIVER}")


async def ask_grantors(cluster: KubeCluster, since: int) -> None:
    """Jobs whose hardware is not there: one asks an autoscaler, and one waits for quota of Kueue. No grantor runs: the test does what it
    would do to a pod."""
    queued = "queued-h100-0-a1-0"
    await cluster.apply(a_job_without_hardware("asks", {"mode": "Autoscaler"}))
    await cluster.apply(a_job_without_hardware("queued", {"mode": "Existing"}, queueName="team"))

    await asked_for(cluster, since, ("", "events", "", "list"))
    await wait_for(cluster.client, PODS, "default", queued, lambda obj: obj is not None)
    admitted = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/metadata/finalizers", "value": [KUEUE_FINALIZER]},
    ]
    await cluster.kubectl("patch", "pod", queued, "--type=json", "-p", json.dumps(admitted))
    await cluster.client.bind("default", queued, "a-node-that-is-gone")
    await cluster.change("queued", {"suspend": True})
    for what in ("pods", "pods/status"):
        await asked_for(cluster, since, ("", what, "", "patch"))
    await cluster.kubectl("patch", "pod", queued, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))
    await cluster.kubectl("delete", "dlj", "asks", "queued")


def a_job_without_hardware(name: str, provisioning: Obj, **spec: Any) -> Obj:
    """Its one unit needs a GPU that no node has."""
    job = a_quadratic_job(name, units={"h100": 1})
    job["spec"]["pools"][0] |= {"accelerator": "nvidia-a100-80gb", "provisioning": provisioning}
    job["spec"] |= spec
    return job


async def asked_for(cluster: KubeCluster, since: int, right: Right) -> None:
    """Wait until the operator has used this right, with success."""

    async def has() -> bool:
        return right in used(requests(cluster.control, since), {right})

    await eventually(has, f"a request by the right {right}", seconds=WAIT_SECONDS)


def strangers(objects: str, pod: str) -> Iterator[Obj]:
    """For a job of the name `objects` everything but pods, for a job of the name `pod` its syncer."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for kind, name, rest in (
        ("ConfigMap", f"{objects}-job", {}),
        ("Secret", f"{objects}-ca", {}),
        ("Service", objects, {"spec": {"ports": [{"port": 80}]}}),
        ("PersistentVolumeClaim", f"{objects}-syncer", {"spec": claim}),
        ("Pod", f"{pod}-syncer", {"spec": {"containers": [{"name": "other", "image": "none"}]}}),
    ):
        yield {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **rest}
