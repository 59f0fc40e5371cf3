"""What an earlier release left, on a real API server: this operator takes it over and deletes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import Obj
from builders.operator_process import replica, wait_for
from builders.release_objects import load
from diloco_operator.api import names

RELEASE = "0.1.0"
PATHS = {"ConfigMap": "configmaps", "Service": "services", "PersistentVolumeClaim": "persistentvolumeclaims", "Pod": "pods"}
_SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the nodes of the release's cluster."""
    control_plane.install_crd()
    nodes = of_kind("Node")
    for node in nodes:
        control_plane.add_node(node["metadata"]["name"], node["metadata"]["labels"], node["status"]["capacity"], wait=False)
    yield control_plane
    control_plane.kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes))


def of_kind(kind: str) -> list[Obj]:
    return [obj for obj in load(RELEASE)["objects"] if obj["kind"] == kind]


def fresh(obj: Obj, namespace: str) -> Obj:
    """The object as another client would create it."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in _SERVERS_OWN}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": {**meta, "namespace": namespace}}


def move_in(plane: ControlPlane, namespace: str, job: str) -> None:
    """Make the job's objects anew, as the earlier release left them. Only the job's uid is another, and what follows from it."""
    [stored] = [obj for obj in of_kind("DiLoCoJob") if obj["metadata"]["name"] == job]
    path = f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs"
    made = plane.request("POST", path, fresh(stored, namespace))
    uids = (stored["metadata"]["uid"], made["metadata"]["uid"])
    data: Obj = {}
    for kind, plural in PATHS.items():
        for each in of_kind(kind):
            if each["metadata"]["labels"][names.LABEL_JOB] != job:
                continue
            obj = fresh(
                json.loads(json.dumps(each).replace(*uids).replace('\\"namespace\\":\\"default\\"', f'\\"namespace\\":\\"{namespace}\\"')),
                namespace,
            )
            if kind == "ConfigMap":
                data = obj["data"]
            elif kind == "Pod" and each["metadata"]["name"] == names.syncer_pod_name(job):
                # of the job file with its uid and namespace, as 0.1.0 did it for a job without a template for its syncer
                obj["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH] = sha(["", sha(data)])
            there = plane.request("POST", f"/api/v1/namespaces/{namespace}/{plural}", obj)
            if kind == "Pod":
                status = {"status": {**each["status"], "podIP": "127.0.0.2", "podIPs": [{"ip": "127.0.0.2"}]}}
                set_status(plane, f"/api/v1/namespaces/{namespace}/pods/{there['metadata']['name']}", status)
    set_status(plane, f"{path}/{job}", {"status": stored["status"]})


def set_status(plane: ControlPlane, path: str, status: Obj) -> None:
    plane.request("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")


def sha(value: object) -> str:
    """The digest of release 0.1.0."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()[:16]


def pods(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """Name -> uid of all pods that are not being deleted."""
    found = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def test_an_upgrade_deletes_nothing_and_restarts_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "upgrade-"}})["metadata"]["name"]
    plane.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", f"--group=system:serviceaccounts:{namespace}")
    plane.kubectl("create", "serviceaccount", "operator", "-n", namespace)
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
    move_in(plane, namespace, "mixed")
    before = pods(plane, namespace)
    assert len(before) == 8
    kubeconfig = plane.kubeconfig_for(plane.token(namespace, "operator"), namespace)
    since = plane.audit_position()

    def asked() -> list[dict[str, Any]]:
        user = f"system:serviceaccount:{namespace}:operator"
        return [event for event in plane.audit_events(since) if event["user"]["username"] == user]

    def status_writes() -> int:
        return sum(1 for event in asked() if event["objectRef"].get("subresource") == "status" and event["verb"] == "patch")

    try:
        with replica(tmp_path, "operator", kubeconfig, "--watch-namespace", namespace, "--leader-elect-namespace", namespace) as operator:
            # The unit that backed off has waited long enough by now, so the operator has work to do; and it has the time for mistakes.
            wait_for(lambda: "mixed-h100-1-a2-1" in pods(plane, namespace), "the unit that backed off to start", operator)
            wait_for(lambda: status_writes() >= 2, "two writes of the status", operator)
        after = pods(plane, namespace)
        assert {name: after.get(name) for name in before} == before
        assert set(after) - set(before) == {"mixed-h100-1-a2-0", "mixed-h100-1-a2-1"}
        written = {(event["verb"], event["objectRef"]["resource"]) for event in asked() if event["verb"] in ("create", "patch", "delete")}
        assert not any(verb == "delete" for verb, _ in written)
        changed = {resource for verb, resource in written if verb == "patch"}
        assert changed <= {"dilocojobs", "secrets", "events"}
        assert ("create", "configmaps") not in written
    finally:
        plane.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--wait=false")
        plane.kubectl("delete", "namespace", namespace, "--wait=false")
        plane.kubectl("delete", "clusterrolebinding", namespace)
