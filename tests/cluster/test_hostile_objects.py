"""Malformed and hostile objects that a real API server accepts, all at once, beside an operator that starts jobs."""

from __future__ import annotations

import base64
import functools
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders.cluster_scenes import a_key_on_an_unsupported_curve, a_secret, a_strangers_pod
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import JobBuilder, template
from builders.nodes import TPU, a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names
from diloco_operator.certificates.issuing import Issuer

type Obj = dict[str, Any]

NODES = [f"hostile-{index}" for index in range(12)]
"""TPU slices of one host. `lm`, `quoting`, `robbed` and `written` take one each, `relabelled` three and then three others; two are left."""
RELABELLED = {"v6e-0": names.LABEL_UNIT, "v6e-1": names.LABEL_POOL, "v6e-2": names.LABEL_ATTEMPT}
GATED: Obj = {"schedulingGates": [{"name": "example.com/never"}]}
LONG = "\x1b[2Jbad news\n" * 1_700
HUGE = 2**63 - 1


class Scene:
    """A namespace with jobs and strangers' objects. No kubelet: pods are bound, and never run."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        authority = {"ca.crt": Issuer(lambda: 0.0, 86400.0).authority("uid").root.pem, "ca.key": a_key_on_an_unsupported_curve()}
        self.unusable = {key: base64.b64encode(value.encode()).decode() for key, value in authority.items()}
        """Data of a Secret."""
        self.jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/dilocojobs"

    def _core(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}"

    def apply(self, name: str, units: int = 1) -> str:
        """A job; its uid."""
        job = (
            JobBuilder(name)
            .with_spec(**ON_LATE)
            .with_learners(1, units)
            .with_restarts(10)
            .with_pool("v6e", accelerator="tpu-v6e", topology="2x2", max=units)
            .build()
        )
        uid: str = self.plane.request("POST", self.jobs, job)["metadata"]["uid"]
        return uid

    def apply_nested(self, name: str, depth: int) -> None:
        """A job with a pod template that no JSON parser of Python follows; so it is put together as text."""
        pods = template()
        pods["spec"]["affinity"] = "NESTED"
        job = JobBuilder(name).with_spec(**ON_LATE).with_pool("v6e", accelerator="tpu-v6e", topology="2x2", template=pods).build()
        text = json.dumps(job).replace('"NESTED"', '{"a":' * depth + "{}" + "}" * depth)
        self.plane.kubectl("create", "--validate=false", "-n", self.namespace, "-f", "-", input=text)

    def create(self, kind: str, obj: Obj) -> None:
        self.plane.request("POST", self._core(kind), {**obj, "metadata": {**obj["metadata"], "namespace": self.namespace}})

    def patch(self, path: str, change: Obj) -> None:
        self.plane.request("PATCH", path, change, content_type="application/merge-patch+json")

    def patch_pod_status(self, pod: str, status: Obj) -> None:
        self.patch(f"{self._core('pods')}/{pod}/status", {"status": status})

    def release(self) -> None:
        """Take the strangers' finalizers off, so that the namespace can go."""
        for pod in self.plane.request("GET", self._core("pods"))["items"]:
            if pod["metadata"].get("finalizers"):
                self.patch(f"{self._core('pods')}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})

    def has_a_new_authority(self, job: str) -> bool:
        """In the place of the unusable one."""
        secrets = self.plane.request("GET", self._core("secrets"))["items"]
        found = (each for each in secrets if each["metadata"]["name"] == names.authority_secret_name(job))
        return any(each["data"]["ca.key"] != self.unusable["ca.key"] for each in found)

    def status(self, job: str) -> Obj:
        found: Obj = self.plane.request("GET", f"{self.jobs}/{job}").get("status", {})
        return found

    def bound(self, job: str, attempt: int = 1) -> dict[str, str]:
        """Learner pods of the job and this attempt, by name, with the nodes to which kube-scheduler bound them."""
        pods = self.plane.request("GET", f"{self._core('pods')}?labelSelector={names.LABEL_JOB}%3D{job}")["items"]
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
        return {name: node for name, node in found.items() if node and name.endswith(f"-a{attempt}-0")}

    def tells(self, job: str, text: str) -> bool:
        """Whether an Event MalformedObject on the job contains the text."""
        events = self.plane.request("GET", self._core("events"))["items"]
        about = (event for event in events if event["reason"] == "MalformedObject" and event["involvedObject"]["name"] == job)
        return any(text in event["message"] for event in about)

    def wait_bound(self, job: str, count: int, operator: OperatorReplica, attempt: int = 1) -> dict[str, str]:
        wait_for(lambda: len(self.bound(job, attempt)) == count, f"{count} learners of {job}, attempt {attempt}, to be bound", operator)
        return self.bound(job, attempt)


@pytest.fixture
def scene(control_plane: ControlPlane) -> Iterator[Scene]:
    plane = control_plane
    plane.install_crd()
    plane.offer_late_volumes()
    labels = a_tpu_node("any", kind="tpu-v6e-slice", topology="2x2")["metadata"]["labels"]
    namespace = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "hostile-"}})["metadata"]["name"]
    with ExitStack() as stack:
        for name in NODES:
            plane.add_node(name, {**labels, "kubernetes.io/hostname": name}, {TPU: "4"}, wait=False)
        stack.callback(plane.kubectl, "delete", "node", *NODES)
        stack.callback(plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
        scene = Scene(plane, namespace)
        stack.callback(scene.release)
        yield scene


def forge(scene: Scene, robbed: str, *slices: str) -> None:
    """What the operator mends when it sees it. `robbed`: the uid of that job, in whose authority's place another one is put."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "robbed", "uid": robbed, "controller": True}
    place = f"/api/v1/namespaces/{scene.namespace}/secrets/{names.authority_secret_name('robbed')}"
    scene.patch(place, {"data": scene.unusable, "metadata": {"ownerReferences": [owner]}})
    wait_for(lambda: scene.status("written").get("units"), "the status of job written")  # comes after its pod
    unit = {"pool": "v6e", "state": "Training", "slice": "+".join(slices), "attempt": HUGE, "tokens": HUGE, "weight": 1e308}
    mine = [each for each in scene.status("written")["units"] if each["name"] == "v6e-0"]
    strange = [{**unit, "name": name} for name in ("v6e-7", "nobody", "a/b")]
    scene.patch(f"{scene.jobs}/written/status", {"status": {"units": [*mine, *strange]}})


def write_corpus(scene: Scene) -> list[str]:
    """What stays. Returns the nodes that were free, all of which Pending pods claim."""
    scene.create("secrets", {**a_secret("strange-ca", "lm", {}), "data": scene.unusable})
    # Pods that say they are a job's.
    [node] = scene.bound("lm").values()
    scene.create("pods", a_strangers_pod("split", "lm", owner="a/b", node=node, **GATED))
    scene.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"example.com/changed": "yes"}}})
    taken = [node for job in ("lm", "quoting", "relabelled", "robbed", "written") for node in scene.bound(job).values()]
    free = [node for node in NODES if node not in taken]
    for node in free:
        scene.create("pods", a_strangers_pod(f"claims-{node}", "lm", node=node, **GATED))
        scene.create("pods", a_strangers_pod(f"claims-too-{node}", "nobodys", owner="", node=node, **GATED))
    for unit, label in RELABELLED.items():
        scene.plane.kubectl("label", "--overwrite", "pod", f"relabelled-{unit}-a1-0", f"{label}=other", "-n", scene.namespace)
    # Texts and depths.
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": LONG}}
    container = {"name": "learner", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": waiting}
    scene.patch_pod_status("quoting-v6e-0-a1-0", {"phase": "Pending", "message": LONG, "containerStatuses": [container]})
    scene.apply_nested("nested", 5_000)
    return free


def wait_mended(scene: Scene, operator: OperatorReplica) -> None:
    """It named what `forge` wrote."""
    operator.wait_said(rf"^DiLoCoJob {scene.namespace}/written \(uid \S+\) can be used only in part: status\.units")
    operator.wait_said(rf"^delete Secret {scene.namespace}/robbed-ca: it holds no authority that can sign; a new one is made")
    wait_for(lambda: scene.has_a_new_authority("robbed"), "a new authority of job robbed", operator)
    assert operator.total("diloco_operator_malformed_objects_found_total", resource="dilocojobs") >= 1


def wait_counted(operator: OperatorReplica, pods: int) -> None:
    def counted() -> bool:
        return operator.total("diloco_operator_malformed_objects", resource="pods") == pods

    wait_for(counted, f"{pods} malformed pods in the metric", operator)


def check_lives(operator: OperatorReplica) -> None:
    assert not operator.ended
    assert operator.get("/healthz") == (200, "ok\n")
    assert operator.metric("controller_runtime_reconcile_panics_total", controller="dilocojob") == 0
    assert operator.said("please report it") is None


def test_the_operator_lives_and_other_jobs_get_their_nodes_beside_what_an_api_server_accepts(scene: Scene, tmp_path: Path) -> None:
    options = ("--watch-namespace", scene.namespace, "--leader-elect-namespace", scene.namespace)
    kubeconfig = scene.plane.kubeconfig
    with replica(tmp_path, "operator", kubeconfig, *options) as operator:
        uids = {
            job: scene.apply(job, units) for job, units in (("lm", 1), ("quoting", 1), ("relabelled", 3), ("robbed", 1), ("written", 1))
        }
        healthy = scene.wait_bound("lm", 1, operator)
        for job, units in (("quoting", 1), ("relabelled", 3), ("robbed", 1), ("written", 1)):
            scene.wait_bound(job, units, operator)
        claimed = write_corpus(scene)
        forge(scene, uids["robbed"], *claimed)
        assert len(claimed) == 5

        for pod in ("split", *(f"relabelled-{unit}-a1-0" for unit in RELABELLED)):
            operator.wait_said(rf"^Pod {scene.namespace}/{pod} \(uid \S+\) can")
        wait_mended(scene, operator)
        operator.wait_said("^SpecInvalid: .*must not be nested deeper than 64 levels")
        for job, named in (("lm", "Pod "), ("relabelled", "Pod "), ("written", "status.units")):
            wait_for(functools.partial(scene.tells, job, named), f"an Event about {named}on job {job}", operator)
        wait_counted(operator, 4 + 2 * len(claimed))
        wait_for(lambda: "bad news" in json.dumps(scene.status("quoting")), "the kubelet's words in status", operator)
        assert LONG[:2000] not in json.dumps(scene.status("quoting"))

        # Its units left their nodes, on which the pods stay, for three that strangers' Pending pods claim.
        moved = scene.wait_bound("relabelled", 3, operator, attempt=2)
        scene.apply("later")
        later = scene.wait_bound("later", 1, operator)
        assert {*moved.values(), *later.values()} < set(claimed)
        check_lives(operator)
        operator.send(signal.SIGTERM)
        assert operator.wait() == 0

    forge(scene, uids["robbed"], *claimed)  # so that it is there when an operator starts
    with replica(tmp_path, "successor", kubeconfig, *options) as successor:
        successor.wait_leads()
        scene.apply("last")
        last = scene.wait_bound("last", 1, successor)
        assert {*moved.values(), *later.values(), *last.values()} == set(claimed)
        successor.wait_said(rf"^Pod {scene.namespace}/relabelled-v6e-0-a1-0 ")
        wait_counted(successor, 4 + 2 * len(claimed))
        wait_mended(scene, successor)
        check_lives(successor)
        assert scene.bound("lm") == healthy
        [unit] = scene.status("lm")["units"]
        assert (unit["attempt"], unit["slice"], unit.get("failures", [])) == (1, *healthy.values(), [])
