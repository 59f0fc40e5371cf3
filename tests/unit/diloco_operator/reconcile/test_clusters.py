"""Jobs on nodes as real clusters have them: which pods a user gets, or which reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from builders.catalogues import extended_by
from builders.jobs import a_job
from builders.nodes import a_node
from builders.stage import Stage
from diloco_operator.api import names

Obj = dict[str, Any]
EXAMPLES = Path(__file__).parents[4] / "examples"
EKS_DEVICES = {"vpc.amazonaws.com/pod-eni": "9", "vpc.amazonaws.com/PrivateIPv4Address": "14", "hugepages-2Mi": "0"}


def an_example(name: str) -> Obj:
    """The job of an example file, as the API server has it."""
    return {**a_job().build(), "spec": yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]}


def on(job: Obj, *nodes: Obj) -> Stage:
    """The stage once the operator has done all that it can on these nodes, and no others."""
    stage = Stage(job, *nodes)
    stage.lose_node("cpu-0")
    stage.settle()
    return stage


def learners(stage: Stage) -> list[Obj]:
    return [pod for pod in stage.pods.values() if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER]


def why(stage: Stage, pool: int = 0) -> str:
    """What status says of a pool, with what would help."""
    found = stage.job["status"]["pools"][pool]
    return f"{found['message']}. {'; '.join(found.get('remedies', ()))}"


# --- resources of networks and virtual devices ---------------------------------------------------------------------------
def test_the_first_documented_job_runs_on_nodes_of_eks() -> None:
    stage = on(an_example("cpu"), *(a_node(f"ip-10-0-0-{index}", devices=EKS_DEVICES) for index in range(2)))
    assert len(learners(stage)) == 2


def test_devices_that_nobody_knows_keep_a_job_from_a_node_and_are_named_with_both_remedies() -> None:
    stage = on(an_example("cpu"), a_node("ip-10-0-0-1", devices={**EKS_DEVICES, "acme.com/npu": "4"}))
    assert learners(stage) == []
    assert "1 host has other devices than the template requests: acme.com/npu" in why(stage)
    assert "pod-eni" not in why(stage)
    assert "requests for exactly these devices in the template, or, for those that no unit is for, incidentalResources" in why(stage)


def test_a_cluster_adds_the_resources_of_its_own_network() -> None:
    node = a_node("n-0", devices={"net.acme.com/red": "8", "acme.com/nic": "1"})
    with extended_by(incidental=["net.acme.com/*", "acme.com/nic"]):
        assert len(learners(on(an_example("cpu"), node))) == 1


def test_a_template_that_requests_an_incidental_resource_gets_nodes_that_have_enough_of_it() -> None:
    job = an_example("cpu")
    learner = job["spec"]["pools"][0]["template"]["spec"]["containers"][0]
    learner["resources"] = {"limits": {"rdma/hca_shared_devices_a": "2"}}
    nodes = [a_node(f"n-{count}", devices={"rdma/hca_shared_devices_a": str(count)}) for count in (1, 2)]
    [pod] = learners(on(job, *nodes))
    assert pod["metadata"]["annotations"][names.ANNOTATION_NODE] == "n-2"


def test_a_node_with_unknown_accelerators_is_no_host_for_cpu_jobs_because_it_has_a_network() -> None:
    gpus = {"karpenter.k8s.aws/instance-gpu-name": "b999"}  # its device plugin has not started
    assert learners(on(an_example("cpu"), a_node("ip-10-0-0-1", labels=gpus, devices=EKS_DEVICES))) == []
