"""An admission webhook that does not answer refuses every pod of a namespace, on a real cluster: the job says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import JobBuilder, cpu_pool
from builders.operator_process import OperatorReplica, replica, wait_for

type Obj = dict[str, Any]

NODE, HOOK = "webhook-cpu-0", "pods.diloco.example"


@pytest.fixture
def scene(control_plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[ControlPlane, str, OperatorReplica]]:
    """A node, an operator that watches one namespace, and a webhook for its pods behind which nothing listens."""
    plane = control_plane
    plane.install_crd()
    plane.offer_late_volumes()
    with ExitStack() as stack:
        plane.add_node(NODE, {}, {"cpu": "64", "memory": "64Gi", "pods": "110"}, wait=False)
        stack.callback(plane.request, "DELETE", f"/api/v1/nodes/{NODE}")
        namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "webhook-"}})["metadata"]["name"]
        stack.callback(plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
        hook = {
            "name": HOOK,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        plane.request("POST", path, {"metadata": {"name": namespace}, "webhooks": [hook]})
        stack.callback(plane.kubectl, "delete", "validatingwebhookconfiguration", namespace, "--ignore-not-found")
        options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace)
        yield plane, namespace, stack.enter_context(replica(tmp_path, namespace, plane.kubeconfig, *options))


def test_a_job_names_the_webhook_that_refuses_its_pods_and_goes_on_without_it(scene: tuple[ControlPlane, str, OperatorReplica]) -> None:
    plane, namespace, operator = scene
    job = JobBuilder("lm").with_learners(1, 1).with_pools(cpu_pool(max=1)).with_spec(**ON_LATE).in_namespace(namespace)
    plane.kubectl("apply", "-f", "-", input=json.dumps(job.build()))

    def training() -> Obj:
        found = plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/lm").get("status", {})
        return next((each for each in found.get("conditions", ()) if each["type"] == "Training"), {})

    wait_for(lambda: f'failed calling webhook "{HOOK}"' in training().get("message", ""), "the job to name the webhook", operator)
    assert training()["reason"] == "WriteRefused"
    assert HOOK in plane.kubectl("diloco", "explain", "lm", "-n", namespace).stdout
    plane.kubectl("delete", "validatingwebhookconfiguration", namespace)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wait_for(lambda: len(plane.request("GET", pods)["items"]) == 2, "syncer and learner to be made", operator)
