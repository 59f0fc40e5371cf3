"""Every example job is accepted, and pods can be made from it that an API server takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.jobs import a_job
from builders.stage import Stage
from diloco_operator.api.job import load
from diloco_operator.cli.validate import check
from diloco_operator.fleet import Host
from diloco_operator.kube.memory.pods import pod_causes
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.reconcile.children.places import pinned_places
from diloco_operator.reconcile.children.pods import learner_pods, learner_template_base
from diloco_operator.reconcile.observe.template import template_problems

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))
JOBS = [pytest.param(path, id=path.stem) for path in EXAMPLES if "kind: DiLoCoJob" in path.read_text()]


def pods_of(path: Path) -> list[dict[str, Any]]:
    """The learner pods of one unit of every pool."""
    job = Stage(a_job()).observed().job
    spec = load(yaml.safe_load(path.read_text())).spec
    made = []
    for pool in spec.pools:
        hosts = [Host(f"host-{index}") for index in range(pool.shape.hosts)]
        base = learner_template_base(job, spec, pool, OperatorConfig())
        made += learner_pods(base, unit=f"{pool.name}-0", attempt=1, places=pinned_places({}, "s", hosts), locality="", template_hash="")
    return made


@pytest.mark.parametrize("path", JOBS)
def test_example_is_valid_and_so_are_its_pods(path: Path) -> None:
    assert check((str(path),))[1] == []
    assert template_problems(load(yaml.safe_load(path.read_text())).spec) == []
    assert [pod_causes(pod, None) for pod in pods_of(path)] == [[] for _ in pods_of(path)]


def test_examples_of_fabrics_keep_what_they_show() -> None:
    fabrics = ("host-network", "shared-memory", "rdma", "gpudirect-tcpxo")
    pods = {path.stem: pods_of(path)[0] for path in EXAMPLES if path.stem in fabrics}
    found = {name: pod["spec"] for name, pod in pods.items()}
    assert found["host-network"]["hostNetwork"] is True
    assert found["host-network"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    for name in ("shared-memory", "rdma", "gpudirect-tcpxo"):
        [learner] = found[name]["containers"]
        assert "/dev/shm" in [mount["mountPath"] for mount in learner["volumeMounts"]]
    [learner] = found["rdma"]["containers"]
    assert learner["resources"]["limits"] == {"rdma/ib": "8", "nvidia.com/gpu": "8"}
    assert learner["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    networks = json.loads(pods["gpudirect-tcpxo"]["metadata"]["annotations"]["networking.gke.io/interfaces"])
    assert [each["interfaceName"] for each in networks] == [f"eth{index}" for index in range(9)], "the host's card, and one for each GPU"
    [daemon] = found["gpudirect-tcpxo"]["initContainers"]
    assert daemon["restartPolicy"] == "Always", "or the pod would not end with its learner"
