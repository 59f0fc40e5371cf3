"""Jobs, operators and strangers that want the same slices of a real control plane, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import a_manifest, tpu_pool
from builders.operator_process import replica, wait_for
from diloco_operator.api import names


def an_operator(plane: ControlPlane, folder: Path, *where: str) -> Any:
    """One that watches these namespaces. Units may have to leave slices that they have just got."""
    file = folder / f"{where[0]}.yaml"
    file.write_text("apiVersion: config.diloco.dev/v1alpha1\nkind: OperatorConfiguration\nminimumHold: 0s\n")
    watched = [option for namespace in where for option in ("--watch-namespace", namespace)]
    return replica(folder, where[0], plane.kubeconfig, *watched, "--leader-elect-namespace", where[0], "--config", str(file))


def stranger(plane: ControlPlane, where: str, node: str) -> None:
    """A pod that kube-scheduler puts on the node."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}, "automountServiceAccountToken": False}
    plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": {"name": f"on-{node}"}, "spec": spec})
    path = f"/api/v1/namespaces/{where}/pods/on-{node}"
    wait_for(lambda: plane.request("GET", path)["spec"].get("nodeName") == node, f"kube-scheduler to bind the pod to {node}")


def pretend(plane: ControlPlane, where: str, job: str, unit: str, node: str) -> None:
    """A pod on the node that requests nothing, and is a unit of the job by its labels, owner and annotations."""
    pool = unit.rpartition("-")[0]
    owner = json.loads(plane.kubectl("get", "dilocojob", job, "-n", where, "-o", "json").stdout)["metadata"]["uid"]
    meta = {
        "name": names.learner_pod_name(job, unit, 1, 0),
        "labels": {
            names.LABEL_JOB: job,
            names.LABEL_COMPONENT: names.COMPONENT_LEARNER,
            names.LABEL_POOL: pool,
            names.LABEL_UNIT: unit,
            names.LABEL_ATTEMPT: "1",
            names.LABEL_HOST: "0",
        },
        "annotations": {names.ANNOTATION_NODE: node, names.ANNOTATION_SLICE: node},
        "ownerReferences": [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": owner, "controller": True}],
    }
    spec = {"containers": [{"name": "learner", "image": "none"}], "nodeName": node, "automountServiceAccountToken": False}
    plane.request("POST", f"/api/v1/namespaces/{where}/pods", {"metadata": meta, "spec": spec})


def end(plane: ControlPlane, where: str, pod: str) -> None:
    """As a kubelet does in the end."""
    plane.kubectl("delete", "pod", pod, "-n", where, "--grace-period=0", "--force")


def apply(plane: ControlPlane, where: str, count: int, job: str = "lm") -> None:
    manifest = a_manifest(job, min=1, max=count, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=count)], spec=ON_LATE)
    plane.kubectl("apply", "-n", where, "-f", "-", input=json.dumps(manifest))


def learners(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, dict[str, Any]]:
    """Learner pods that kube-scheduler has bound, by name."""
    selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER},{names.LABEL_JOB}={job}"
    pods = json.loads(plane.kubectl("get", "pods", "-n", where, "-l", selector, "-o", "json").stdout)["items"]
    return {pod["metadata"]["name"]: pod for pod in pods if "nodeName" in pod["spec"]}


def beside(plane: ControlPlane, where: str, job: str = "lm") -> list[str]:
    """Kinds and names of all objects of the job, but events."""
    kinds = "pods,secrets,configmaps,services,persistentvolumeclaims"
    return plane.kubectl("get", kinds, "-n", where, "-l", f"{names.LABEL_JOB}={job}", "-o", "name").stdout.split()


def nodes(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, str]:
    """Learner pod -> its node."""
    return {name: pod["spec"]["nodeName"] for name, pod in learners(plane, where, job).items()}


def status(plane: ControlPlane, where: str, job: str = "lm") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plane.kubectl("get", "dilocojob", job, "-n", where, "-o", "json").stdout).get("status", {})
    return found


def looked_at(plane: ControlPlane, where: str, pod: str) -> bool:
    """Whether kube-scheduler has found no node for the pod. It has then also looked whether the end of others would help."""
    listed = json.loads(plane.kubectl("get", "pods", "-n", where, f"--field-selector=metadata.name={pod}", "-o", "json").stdout)["items"]
    conditions = [condition for found in listed for condition in found.get("status", {}).get("conditions", [])]
    return any((each["type"], each.get("reason")) == ("PodScheduled", "Unschedulable") for each in conditions)


def listed(plane: ControlPlane, where: str) -> dict[str, list[str]]:
    """The rows of the namespace's jobs as kubectl prints them: state, reason, learners that contribute, and of how many, by name."""
    rows = (line.split() for line in plane.kubectl("get", "dlj", "-n", where, "--no-headers").stdout.splitlines())
    return {row[0]: row[1:5] for row in rows}
