"""Every example job is accepted, and pods can be made from it that an API server takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.example_pods import EXAMPLES, FABRICS, job_of, pods_of
from diloco_cli.commands.validate import check
from diloco_local.memory.pods import pod_causes
from diloco_operator.reconcile.observe.template import template_problems

Obj = dict[str, Any]
JOBS = [pytest.param(path, id=path.stem) for path in sorted(EXAMPLES.glob("*.yaml")) if "kind: DiLoCoJob" in path.read_text()]


def pod_of(name: str) -> Obj:
    """The first pod of an example."""
    return pods_of(EXAMPLES / f"{name}.yaml")[0]


def learner_of(pod: Obj) -> Obj:
    [learner] = pod["spec"]["containers"]
    assert isinstance(learner, dict)
    return learner


def environment(container: Obj) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def networks(pod: Obj) -> dict[str, str]:
    """Interface -> network, as GKE reads it."""
    annotations = pod["metadata"]["annotations"]
    assert annotations["networking.gke.io/default-interface"] == "eth0"
    return {each["interfaceName"]: each["network"] for each in json.loads(annotations["networking.gke.io/interfaces"])}


def host_paths(pod: Obj) -> dict[str, str]:
    """Path in the learner -> path on the host."""
    folders = {each["name"]: each["hostPath"]["path"] for each in pod["spec"]["volumes"] if "hostPath" in each}
    return {each["mountPath"]: folders[each["name"]] for each in learner_of(pod)["volumeMounts"] if each["name"] in folders}


@pytest.mark.parametrize("path", JOBS)
def test_example_is_valid_and_so_are_its_pods(path: Path) -> None:
    assert check((str(path),)).problems == []
    assert template_problems(job_of(path).spec) == []
    assert [pod_causes(pod) for pod in pods_of(path)] == [[] for _ in pods_of(path)]


@pytest.mark.parametrize("path", JOBS)
def test_example_names_its_outer_optimizer(path: Path) -> None:
    """What the default was measured with is not what every example trains; see decision 0273."""
    training = yaml.safe_load(path.read_text())["spec"]["training"]
    assert training["outerOptimizer"].keys() == {"learningRate", "momentum"}


# --- examples of fabrics: what the public manifests of each have in common -----------------------------------------------
@pytest.mark.parametrize("name", FABRICS)
def test_a_unit_of_gpus_has_shared_memory_for_nccl(name: str) -> None:
    assert "/dev/shm" in [mount["mountPath"] for mount in learner_of(pod_of(name))["volumeMounts"]]


@pytest.mark.parametrize("name", [name for name in FABRICS if name not in ("host-network", "shared-memory")])
def test_an_example_of_a_fabric_has_units_of_several_hosts_and_says_that_no_hardware_tried_it(name: str) -> None:
    path = EXAMPLES / f"{name}.yaml"
    assert "Not tried on hardware." in path.read_text()
    assert all(pool.shape.hosts > 1 for pool in job_of(path).spec.pools)


def test_host_network() -> None:
    spec = pod_of("host-network")["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_infiniband_requests_its_cards_and_may_pin_memory() -> None:
    learner = learner_of(pod_of("infiniband"))
    assert learner["resources"]["limits"] == {"rdma/ib": "8", "nvidia.com/gpu": "8"}
    assert learner["securityContext"]["runAsUser"] == 0
    assert learner["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_efa_requests_every_interface_of_the_machine() -> None:
    """p5.48xlarge has 32: https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html."""
    learner = learner_of(pod_of("efa"))
    assert learner["resources"]["requests"] == learner["resources"]["limits"] == {"vpc.amazonaws.com/efa": "32", "nvidia.com/gpu": "8"}
    assert environment(learner)["FI_PROVIDER"] == "efa"


def test_gpudirect_rdma_has_a_network_for_each_gpu_and_the_nccl_of_its_node() -> None:
    """https://cloud.google.com/ai-hypercomputer/docs/create/gke-ai-hypercompute-custom: no eth1 on Standard clusters."""
    pod = pod_of("gpudirect-rdma")
    assert networks(pod) == {"eth0": "default", **{f"eth{index + 2}": f"rdma-{index}" for index in range(8)}}
    learner = learner_of(pod)  # GKE gives the devices to the first container, and there is no other
    assert host_paths(pod) == {"/usr/local/nvidia": "/home/kubernetes/bin/nvidia", "/usr/local/gib": "/home/kubernetes/bin/gib"}
    assert "source /usr/local/gib/scripts/set_nccl_env.sh && exec diloco-launch" in learner["command"][-1]
    assert environment(learner)["LD_LIBRARY_PATH"].split(":") == ["/usr/local/gib/lib64", "/usr/local/nvidia/lib64"]
    assert learner["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_gpudirect_tcpxo_has_a_network_for_each_gpu_and_its_daemon_as_a_sidecar() -> None:
    """https://github.com/GoogleCloudPlatform/container-engine-accelerators/tree/master/gpudirect-tcpxo."""
    pod = pod_of("gpudirect-tcpxo")
    assert list(networks(pod)) == [f"eth{index}" for index in range(9)], "the host's card, and one for each GPU"
    [daemon] = pod["spec"]["initContainers"]
    assert daemon["restartPolicy"] == "Always", "or the pod would not end with its learner"
    devices = yaml.safe_load(pod["metadata"]["annotations"]["devices.gke.io/container.tcpxo-daemon"])
    assert {"path": "/dev/dmabuf_import_helper"} in devices
    assert host_paths(pod)["/dev/aperture_devices"] == "/dev/aperture_devices"


def test_nvl72_has_a_compute_domain_whose_channel_each_pod_claims() -> None:
    """https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-cds.html."""
    domain = yaml.safe_load((EXAMPLES / "nvl72-domain.yaml").read_text())
    assert (domain["apiVersion"], domain["kind"]) == ("resource.nvidia.com/v1beta1", "ComputeDomain")
    made = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    pods = pods_of(EXAMPLES / "nvl72.yaml")
    assert len(pods) == 4
    for pod in pods:
        assert pod["spec"]["resourceClaims"] == [{"name": "channel", "resourceClaimTemplateName": made}]
        resources = learner_of(pod)["resources"]
        assert resources["claims"] == [{"name": "channel"}]
        assert resources["limits"] == {"nvidia.com/gpu": "4"}
