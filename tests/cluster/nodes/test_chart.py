"""What only a real node shows of the chart: that its own test runs in the operator's image, under the restricted profile, and passes."""

from __future__ import annotations

import json

import yaml
from builders.real_nodes import RealCluster

SYSTEM = "diloco-system"


def test_the_test_of_the_release_passes_as_a_pod(cluster: RealCluster) -> None:
    """As `helm test` runs it, but that no proxy serves Services here: the address of the operator's pod stands for its Service's name."""
    selector = "app.kubernetes.io/name=diloco-operator,app.kubernetes.io/component=operator"
    listed = json.loads(cluster.plane.kubectl("get", "pods", "-n", SYSTEM, "-l", selector, "-o", "json").stdout)
    [operator] = listed["items"]
    hooks = [obj for obj in yaml.safe_load_all(cluster.plane.helm("get", "hooks", "diloco", "--namespace", SYSTEM).stdout) if obj]
    assert {obj["metadata"]["annotations"]["helm.sh/hook"] for obj in hooks} == {"test"}
    [hook] = [obj for obj in hooks if obj["kind"] == "Pod"]
    for obj in hooks:  # its account, and the account's right to read metrics
        if obj is not hook:
            cluster.apply(obj)
    service = f"diloco-diloco-operator.{SYSTEM}.svc"
    written = json.dumps(hook)
    assert service in written
    cluster.apply(json.loads(written.replace(service, operator["status"]["podIP"])))
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{hook['metadata']['name']}"

    def phase() -> str:
        found = cluster.find(path)
        return str(found["status"].get("phase")) if found else ""

    cluster.wait_for(lambda: phase() in ("Succeeded", "Failed"), "the test of the release to end")
    logs = cluster.plane.kubectl("logs", "-n", SYSTEM, hook["metadata"]["name"]).stdout
    assert phase() == "Succeeded", logs
    assert "/readyz: ok" in logs
    assert "metrics" in logs
