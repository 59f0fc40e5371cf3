"""What a real API server and a real scheduler make of the objects of a job."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.example_pods import EXAMPLES, FABRICS, pods_of
from builders.jobs import JobBuilder, a_job, template
from builders.nodes import a_gpu_node, a_node, a_tpu_node, a_tpu_slice
from builders.stage import Stage
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, advice


@pytest.fixture
def restricted(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace that pods may be created in, under the restricted profile. Its name has 63 characters, the most that one may have."""
    meta = {"generateName": "n" * 57 + "-", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    name: str = control_plane.request("POST", "/api/v1/namespaces", {"metadata": meta})["metadata"]["name"]
    assert len(name) == 63
    control_plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


def objects_of(job: JobBuilder, *nodes: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """Everything that the operator makes for the job, configuration first."""
    stage = Stage(job, *nodes)
    stage.job["metadata"]["namespace"] = namespace
    stage.settle()
    found = copy.deepcopy([*stage.children.values(), *stage.host_lists.values(), *stage.pods.values()])
    for obj in found:
        del obj["metadata"]["uid"]
        obj["metadata"].pop("creationTimestamp", None)
        obj.pop("status", None)
    return found


def without_owner(pod: dict[str, Any], namespace: str) -> dict[str, Any]:
    """As it is created in a namespace that has no job."""
    meta = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
    return {**pod, "metadata": {**meta, "namespace": namespace}}


def nonroot() -> dict[str, Any]:
    """A template that forgoes the root that a TPU asks for by default: the profile forbids it."""
    return template(securityContext={"runAsNonRoot": True})


def dry_run(plane: ControlPlane, objects: list[dict[str, Any]]) -> str:
    """Have the API server check them as if they were made. Returns what it says against it; "" when it would make them."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    done = plane.kubectl("create", "--dry-run=server", "-f", "-", input=listed, check=False)
    assert done.returncode == 0 or done.stderr
    return done.stderr


def test_every_pod_passes_the_restricted_profile_with_names_at_their_limits(control_plane: ControlPlane, restricted: str) -> None:
    job = a_job("j" * 32).with_learners(1, 8).with_pool("t" * 15, max=1, topology="2x2x2", template=nonroot())
    job.with_gpu_pool("g" * 15, max=1, template=template(initContainers=[{"name": "fetch", "image": "fetch:1"}]))
    job.with_pool("c" * 15, accelerator="cpu", max=1)
    objects = objects_of(job, *a_tpu_slice("np-0", 2), a_gpu_node("gpu-0"), namespace=restricted)
    assert sum(obj["kind"] == "Pod" for obj in objects) == 5  # syncer, two hosts of the TPU, a GPU, a cpu
    assert sum(obj["kind"] == "ConfigMap" for obj in objects) == 2  # the job file, and the list of the TPU's hosts
    # No warning either: kubectl prints those where it prints errors.
    assert dry_run(control_plane, objects) == ""


@pytest.mark.parametrize(
    ("accelerator", "level", "refused"),
    [
        ("tpu-v5p", "baseline", True),
        ("tpu-v5p", "privileged", False),
        ("amd-mi300x-192gb", "restricted", True),
        ("amd-mi300x-192gb", "baseline", False),
        ("nvidia-h100-80gb", "restricted", False),
    ],
)
def test_pods_of_a_kind_are_admitted_by_the_profile_that_the_catalogue_names(
    control_plane: ControlPlane, restricted: str, accelerator: str, level: str, refused: bool
) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    control_plane.request("PATCH", f"/api/v1/namespaces/{restricted}", label, content_type="application/merge-patch+json")
    kind = CATALOGUE[accelerator]
    topology = {"topology": "2x2x1"} if kind.topologies else {}
    node = a_node("n-0", labels=kind.labels[0].on_node(topology="2x2x1", per_host=4), devices={kind.resource: str(kind.host_sizes[-1])})
    objects = objects_of(a_job().with_pool("only", accelerator=accelerator, max=1, **topology), node, namespace=restricted)
    pods = [obj for obj in objects if "only" in obj["metadata"]["name"] and obj["kind"] == "Pod"]
    assert len(pods) == 1
    assert ("violates PodSecurity" in dry_run(control_plane, pods)) is refused
    assert (kind.access.profile == level) is not refused


@pytest.mark.parametrize("name", FABRICS)
def test_pods_of_the_examples_of_fabrics_are_such_that_an_api_server_takes_them(
    control_plane: ControlPlane, restricted: str, name: str
) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    control_plane.request("PATCH", f"/api/v1/namespaces/{restricted}", label, content_type="application/merge-patch+json")
    pods = [without_owner(pod, restricted) for pod in pods_of(EXAMPLES / f"{name}.yaml")]
    assert dry_run(control_plane, pods) == ""


def test_template_that_asks_for_more_meets_the_clusters_policy_and_not_ours(control_plane: ControlPlane, restricted: str) -> None:
    hostile = template(hostNetwork=True, volumes=[{"name": "root", "hostPath": {"path": "/"}}])
    hostile["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    job = a_job().with_pool(max=1, template=hostile)
    pods = [obj for obj in objects_of(job, a_tpu_node("tpu-0"), namespace=restricted) if "v5p" in obj["metadata"]["name"]]
    message = dry_run(control_plane, pods)
    assert "violates PodSecurity" in message
    assert "pod-security.kubernetes.io/enforce" in advice(RejectedWrite(403, message, 0.0, 1))
    for pod in pods:
        pod["metadata"]["namespace"] = "default"
    control_plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "default", "--timeout=180s")
    assert dry_run(control_plane, pods) == ""  # where the policy allows it, it is what the template says


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (template(priorityClassName="missing"), "create the PriorityClass"),
        (template(serviceAccountName="missing"), "create the service account"),
        (template(nodeSelector={"a": "\u2603"}), "fix the field"),
        ({**template(), "metadata": {"labels": {"team": "\u4e16\u754c"}}}, "fix the field"),
        (template(volumes=[{"name": "\U0001f600", "emptyDir": {}}]), "fix the field"),
        (template(runtimeClassName="missing"), "create the RuntimeClass"),
    ],
)
def test_rejected_pod_gets_advice_that_fits_the_servers_message(
    control_plane: ControlPlane, restricted: str, given: dict[str, Any], words: str
) -> None:
    job = a_job().with_pool(max=1, template=given)
    node = a_tpu_node("tpu-0", labels=given["spec"].get("nodeSelector") or {})
    pods = [obj for obj in objects_of(job, node, namespace=restricted) if "v5p" in obj["metadata"]["name"]]
    message = dry_run(control_plane, pods)
    assert message
    assert words in advice(RejectedWrite(422 if "is invalid" in message else 403, message, 0.0, 1))


def test_used_up_quota_gets_advice_that_fits(control_plane: ControlPlane, restricted: str) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    control_plane.request("POST", f"/api/v1/namespaces/{restricted}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{restricted}/resourcequotas/none"
    control_plane.wait_for(lambda: "hard" in control_plane.request("GET", path).get("status", {}), "the quota to be in force")
    objects = objects_of(a_job().with_pool(max=1, template=nonroot()), a_tpu_node("tpu-0"), namespace=restricted)
    pods = [obj for obj in objects if obj["kind"] == "Pod"]
    control_plane.wait_for(lambda: bool(dry_run(control_plane, pods)), "admission to know of the quota")
    message = dry_run(control_plane, pods)
    assert "exceeded quota" in message
    assert "raise the namespace's quota" in advice(RejectedWrite(403, message, 0.0, 1))


def test_unicode_and_long_values_are_the_programs_own_affair(control_plane: ControlPlane, restricted: str) -> None:
    given = nonroot()
    given["metadata"] = {"annotations": {"note": "\u4e16\u754c \U0001f600"}}
    given["spec"]["containers"][0] |= {"args": ["\u00e9\u0301"], "env": [{"name": "STORY", "value": "\u2603" * 30_000}]}
    objects = objects_of(a_job().with_pool(max=1, template=given), a_tpu_node("tpu-0"), namespace=restricted)
    assert dry_run(control_plane, objects) == ""


@pytest.mark.parametrize("label", [None, "another-name"])
def test_scheduler_binds_a_unit_to_the_node_that_placement_chose_whatever_its_hostname_label(
    control_plane: ControlPlane, restricted: str, label: str | None
) -> None:
    names = [f"pin-{label or 'none'}-{index}" for index in range(2)]
    for name in names:
        control_plane.add_node(name, {"kubernetes.io/hostname": label} if label else None, {"google.com/tpu": "4"})
        if label is None:
            gone = {"metadata": {"labels": {"kubernetes.io/hostname": None}}}
            control_plane.request("PATCH", f"/api/v1/nodes/{name}", gone, content_type="application/merge-patch+json")
    labels = {key: value for key, value in a_tpu_node("x")["metadata"]["labels"].items() if key.startswith("cloud")}
    for name in names:
        tpu = {"metadata": {"labels": {**labels, "cloud.google.com/gke-nodepool": f"np-{name}"}}}
        control_plane.request("PATCH", f"/api/v1/nodes/{name}", tpu, content_type="application/merge-patch+json")
    try:
        nodes = [control_plane.request("GET", f"/api/v1/nodes/{name}") for name in names]
        pods = [
            obj
            for obj in objects_of(a_job().with_learners(2, 2).with_pool(max=2, template=nonroot()), *nodes, namespace=restricted)
            if "v5p" in obj["metadata"]["name"]
        ]
        chosen = {pod["metadata"]["name"]: pod["metadata"]["annotations"]["diloco.dev/node"] for pod in pods}
        assert sorted(chosen.values()) == names
        for pod in pods:
            del pod["metadata"]["ownerReferences"]  # there is no such job, and the garbage collector would see to it
            control_plane.request("POST", f"/api/v1/namespaces/{restricted}/pods", pod)
        for pod in chosen:
            control_plane.kubectl("wait", "-n", restricted, "--for=condition=PodScheduled", f"pod/{pod}", "--timeout=180s")
        bound = {pod: control_plane.request("GET", f"/api/v1/namespaces/{restricted}/pods/{pod}")["spec"]["nodeName"] for pod in chosen}
        assert bound == chosen
    finally:
        control_plane.kubectl("delete", "pods", "--all", "-n", restricted, "--force", "--wait=false")  # no kubelet will confirm their end
        for name in names:
            control_plane.request("DELETE", f"/api/v1/nodes/{name}")
