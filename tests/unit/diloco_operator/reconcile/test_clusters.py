"""Jobs on nodes as real clusters have them: which pods a user gets, or which reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.catalogues import extended_by
from builders.jobs import a_job
from builders.nodes import a_node, a_tpu_node
from builders.pods import is_unschedulable
from builders.stage import Stage
from diloco_operator.api import names
from diloco_operator.reconcile import OperatorConfig

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
    """Return what status says of a pool, with what would help."""
    found = stage.job["status"]["pools"][pool]
    return f"{found['message']}. {'; '.join(found.get('remedies', ()))}"


# --- accelerators that the catalogue does not have -------------------------------------------------------------------------
GFD = "nvidia.com/gpu.product"
GPUS = {"nvidia.com/gpu": "8"}


def a_gpu_job() -> Obj:
    return a_job().with_learners(1, 1).with_pool("h100", accelerator="nvidia-h100-80gb", max=1).build()


def gpu_nodes(count: int, devices: Obj = GPUS, **labels: str) -> list[Obj]:
    keys = {"product": GFD, "type": "node.kubernetes.io/instance-type"}
    return [a_node(f"gpu-{index}", labels={keys[key]: value for key, value in labels.items()}, devices=devices) for index in range(count)]


@pytest.mark.parametrize(
    ("nodes", "text", "remedy"),
    [
        pytest.param(
            gpu_nodes(2, product="NVIDIA-B999"),
            "2 nodes have nvidia.com/gpu with nvidia.com/gpu.product=NVIDIA-B999, which is not in the catalogue (gpu-0 and 1 more)",
            "a row for nvidia.com/gpu.product=NVIDIA-B999 in the operator's catalogue file",
            id="unknown product",
        ),
        pytest.param(
            gpu_nodes(1, type="p9.48xlarge"),
            "1 node has nvidia.com/gpu with node.kubernetes.io/instance-type=p9.48xlarge, which is not in the catalogue (gpu-0)",
            "a row for node.kubernetes.io/instance-type=p9.48xlarge in the operator's catalogue file",
            id="unknown machine of a cloud",
        ),
        pytest.param(
            gpu_nodes(3),
            "3 nodes have nvidia.com/gpu, but no label that names the product (gpu-0 and 2 more)",
            "NVIDIA GPU feature discovery, which sets the label nvidia.com/gpu.product, or this label by hand",
            id="bare metal without feature discovery",
        ),
        pytest.param(
            gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3-SHARED"),
            "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED: GPUs that several pods share (time-slicing or MPS) (gpu-0)",
            "nodes that offer whole accelerators",
            id="time-slicing",
        ),
        pytest.param(
            gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"),
            "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-MIG-1g.10gb: parts of GPUs (MIG) (gpu-0)",
            "nodes that offer whole accelerators",
            id="MIG, single strategy",
        ),
        pytest.param(
            gpu_nodes(1, {"nvidia.com/gpu.shared": "32"}, product="NVIDIA-B999"),
            "1 node has nvidia.com/gpu.shared with nvidia.com/gpu.product=NVIDIA-B999: no whole accelerators, which are nvidia.com/gpu",
            "nodes that offer whole accelerators",
            id="renamed resource",
        ),
        pytest.param(
            gpu_nodes(1, {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "56"}, product="NVIDIA-H100-80GB-HBM3"),
            "node gpu-0 offers no nvidia.com/gpu now: it offers nvidia.com/mig-1g.10gb, which is no whole accelerator",
            "repair or uncordon the unusable nodes",
            id="MIG, mixed strategy",
        ),
    ],
)
def test_nodes_with_gpus_that_a_pool_does_not_get_are_told_with_what_to_do(nodes: list[Obj], text: str, remedy: str) -> None:
    stage = on(a_gpu_job(), *nodes)
    assert learners(stage) == []
    assert text in why(stage)
    assert remedy in why(stage)


def test_a_machine_that_only_its_cloud_says_to_have_gpus_is_told_by_its_type() -> None:
    labels = {"kubernetes.azure.com/accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_ND999"}
    stage = on(a_gpu_job(), a_node("aks-0", labels=labels))  # its device plugin has not started
    assert "1 node has node.kubernetes.io/instance-type=Standard_ND999, which is not in the catalogue (aks-0)" in why(stage)


def test_accelerators_of_another_vendor_are_not_told() -> None:
    amd = a_node("amd-0", labels={"amd.com/gpu.product-name": "AMD_Instinct_MI999X"}, devices={"amd.com/gpu": "8"})
    assert "amd" not in why(on(a_gpu_job(), amd)).lower()


def test_unknown_gpus_beside_known_ones_are_told_too() -> None:
    known = a_node("known-0", labels={GFD: "NVIDIA-H100-80GB-HBM3"}, devices={"nvidia.com/gpu": "2"})
    assert "1 node has nvidia.com/gpu, but no label that names the product (gpu-0)" in why(on(a_gpu_job(), known, *gpu_nodes(1)))


def test_a_row_of_the_catalogue_file_makes_the_named_nodes_usable() -> None:
    row = {"name": "nvidia-b999", "resource": "nvidia.com/gpu", "labels": [{"key": GFD, "values": ["NVIDIA-B999"]}], "hostSizes": [8]}
    with extended_by(row):
        job = a_job().with_learners(1, 1).with_pool("b999", accelerator="nvidia-b999", max=1).build()
        assert len(learners(on(job, *gpu_nodes(1, product="NVIDIA-B999")))) == 1


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


# --- shared memory ---------------------------------------------------------------------------------------------------------
def h100s(index: int = 0) -> Obj:
    return a_node(f"gpu-{index}", labels={GFD: "NVIDIA-H100-80GB-HBM3"}, devices=GPUS, resources={"memory": "100Gi"})


def a_gpu_pod(pool: Obj | None = None, **template: Any) -> Obj:
    job = a_gpu_job()
    job["spec"]["pools"][0] |= pool or {}
    spec = job["spec"]["pools"][0]["template"]["spec"]
    spec["containers"][0] |= template.pop("container", {})
    spec |= template
    [pod] = learners(on(job, h100s()))
    return pod


def shared_memory(pod: Obj) -> list[Obj]:
    """The volumes that are mounted at /dev/shm."""
    mounted = [each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == "/dev/shm"]
    return [{key: value for key, value in each.items() if key != "name"} for each in pod["spec"]["volumes"] if each["name"] in mounted]


def in_memory(size: str) -> list[Obj]:
    return [{"emptyDir": {"medium": "Memory", "sizeLimit": size}}]


def test_a_host_of_eight_gpus_has_8_gib_of_shared_memory_for_nccl() -> None:
    assert shared_memory(a_gpu_pod()) == in_memory("8Gi")
    assert shared_memory(a_gpu_pod({"acceleratorsPerHost": 2})) == in_memory("2Gi")


def test_a_pool_sets_the_size_or_does_without() -> None:
    assert shared_memory(a_gpu_pod({"sharedMemory": "1536Mi"})) == in_memory("1536Mi")
    assert shared_memory(a_gpu_pod({"sharedMemory": "0"})) == []


def test_a_template_keeps_its_own_shared_memory() -> None:
    own = {"name": "mine", "emptyDir": {"medium": "Memory"}}
    pod = a_gpu_pod(container={"volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}]}, volumes=[own])
    assert [each["name"] for each in pod["spec"]["volumes"] if "shared" in each["name"]] == []
    assert shared_memory(a_gpu_pod(hostIPC=True)) == []


def test_shared_memory_counts_as_memory_of_the_container_where_it_sets_any() -> None:
    pod = a_gpu_pod(container={"resources": {"requests": {"memory": "59Gi", "cpu": "8"}, "limits": {"memory": "64G"}}})
    # 64e9 + 8 * 2^30 bytes is no whole number of Mi.
    gpus = {"nvidia.com/gpu": "8"}
    resources = {"requests": {"memory": "67Gi", "cpu": "8", **gpus}, "limits": {"memory": "72589934592", **gpus}}
    assert pod["spec"]["containers"][0]["resources"] == resources
    assert "memory" not in a_gpu_pod()["spec"]["containers"][0]["resources"]["limits"]


def test_placement_counts_it_too() -> None:
    job = a_gpu_job()
    job["spec"]["pools"][0]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"memory": "93Gi"}}
    stage = on(job, h100s())
    assert learners(stage) == []
    assert "needs 101Gi of memory, node gpu-0 has 100Gi" in why(stage)


def test_tpus_and_cpu_hosts_have_shared_memory_only_where_a_pool_asks_for_it() -> None:
    nodes = [a_node("n-0")]
    [pod] = learners(on(an_example("cpu"), *nodes))
    assert shared_memory(pod) == []
    job = an_example("cpu")
    job["spec"]["pools"][0]["sharedMemory"] = "2Gi"
    [pod] = learners(on(job, *nodes))
    assert shared_memory(pod) == in_memory("2Gi")
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "4Gi"}


# --- storage classes -------------------------------------------------------------------------------------------------------
def with_claim(stage: Stage, **spec: str) -> Stage:
    """After the first reconcile: the API server has the syncer's claim, and nothing has bound it."""
    if "PersistentVolumeClaim" not in stage.children:
        stage.step()
    claim = stage.children["PersistentVolumeClaim"]
    claim["spec"] |= spec
    claim["status"] = {"phase": "Pending"}
    stage.settle()
    return stage


def test_no_learner_takes_a_gpu_while_the_cluster_has_no_default_storage_class() -> None:
    stage = with_claim(Stage(a_gpu_job(), h100s()))
    assert learners(stage) == []
    assert "bytes-lm-syncer" in stage.pods, "some classes bind a claim only once its pod has a node"
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("False", "VolumePending")
    assert "PersistentVolumeClaim bytes-lm-syncer has no StorageClass, because the cluster has no default one" in training["message"]
    assert "kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true" in training["message"]
    assert "the syncer's volume" in stage.unit("h100-0")["message"]


def test_learners_do_not_wait_for_their_claim_where_others_have_got_the_default_class() -> None:
    stage = Stage(a_gpu_job(), h100s())
    stage.default_class = True
    stage.step()
    assert len(learners(stage)) == 1
    assert "storageClassName" not in stage.children["PersistentVolumeClaim"]["spec"]


def test_learners_start_once_a_class_became_the_default() -> None:
    stage = with_claim(Stage(a_gpu_job(), h100s()))
    stage.children["PersistentVolumeClaim"]["spec"]["storageClassName"] = "gp3"  # as the volume controller does it then
    stage.settle()
    assert len(learners(stage)) == 1


def test_learners_start_beside_a_claim_that_waits_for_the_node_of_its_pod() -> None:
    assert len(learners(with_claim(Stage(a_gpu_job(), h100s()), storageClassName="gp3"))) == 1


def test_a_class_that_binds_nothing_is_told_with_the_words_of_the_scheduler() -> None:
    stage = Stage(a_gpu_job(), h100s())
    stage.step()
    said = 'running PreFilter plugin "VolumeBinding": storageclass.storage.k8s.io "fast" not found'
    is_unschedulable(stage.syncer, said)
    with_claim(stage, storageClassName="fast")
    assert learners(stage) == []
    assert f"of StorageClass fast is not bound: {said}. Check that the class exists" in stage.condition("Training")["message"]


def test_the_operators_configuration_names_the_class_of_jobs_that_name_none() -> None:
    config = OperatorConfig(storage_class_name="gp3")
    stage = Stage(a_gpu_job(), h100s(), config=config)
    stage.step()
    assert stage.children["PersistentVolumeClaim"]["spec"]["storageClassName"] == "gp3"
    assert len(learners(stage)) == 1, "nothing has to be awaited of a class that is known"
    own = a_gpu_job()
    own["spec"]["syncer"] = {"storage": {"className": "fast"}}
    stage = Stage(own, h100s(), config=config)
    stage.step()
    assert stage.children["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"


# --- clusters that refuse defaults -------------------------------------------------------------------------------------------
def test_syncer_fits_a_quota_that_counts_limits() -> None:
    config = OperatorConfig(syncer_cpu="1", syncer_cpu_limit="2", syncer_memory="4Gi", syncer_memory_limit="8Gi")
    stage = Stage(a_gpu_job(), h100s(), config=config)
    stage.settle()
    resources = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}}
    assert stage.syncer["spec"]["containers"][0]["resources"] == resources


def test_pods_of_jobs_pull_images_with_the_secrets_of_the_configuration_and_of_their_template() -> None:
    job = a_gpu_job()
    job["spec"]["pools"][0]["template"]["spec"]["imagePullSecrets"] = [{"name": "own"}, {"name": "registry"}]
    stage = Stage(job, h100s(), config=OperatorConfig(image_pull_secrets=("registry", "mirror")))
    stage.settle()
    [learner] = learners(stage)
    assert stage.syncer["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert learner["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}, {"name": "mirror"}]


def test_a_service_mesh_is_told_that_the_pods_encrypt_themselves() -> None:
    stage = on(a_gpu_job(), h100s())
    [port] = stage.children["Service"]["spec"]["ports"]
    assert (port["name"], port["appProtocol"]) == ("grpc", "tls")


# --- who opens devices -------------------------------------------------------------------------------------------------------
def context_of(stage: Stage) -> tuple[Obj, Obj]:
    """Return the security contexts of the learner's pod and of its container."""
    [pod] = learners(stage)
    return pod["spec"]["securityContext"], pod["spec"]["containers"][0]["securityContext"]


def a_tpu_job(**template: Any) -> Obj:
    job = a_job().with_learners(1, 1).with_pool(max=1).build()
    spec = job["spec"]["pools"][0]["template"]["spec"]
    spec["containers"][0] |= template.pop("container", {})
    spec |= template
    return job


def test_the_program_on_a_tpu_is_root_and_may_lock_memory_and_nothing_else_of_the_pod_is() -> None:
    sidecar = {"name": "sidecar", "image": "sidecar:1"}
    job = a_tpu_job()
    job["spec"]["pools"][0]["template"]["spec"]["containers"].append(sidecar)
    stage = on(job, a_tpu_node("tpu-0"))
    pod, container = context_of(stage)
    assert (pod["runAsUser"], pod["runAsNonRoot"]) == (65532, True)
    assert (container["runAsUser"], container["runAsNonRoot"], container["allowPrivilegeEscalation"]) == (0, False, False)
    assert container["capabilities"] == {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
    [learner] = learners(stage)
    assert learner["spec"]["containers"][1]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert stage.syncer["spec"]["securityContext"]["runAsUser"] == 65532


def test_the_program_on_amd_gpus_is_root_without_capabilities() -> None:
    job = a_job().with_learners(1, 1).with_pool("mi300x", accelerator="amd-mi300x-192gb", max=1).build()
    node = a_node("amd-0", labels={"amd.com/gpu.device-id": "74a1"}, devices={"amd.com/gpu": "8"})
    _, container = context_of(on(job, node))
    assert (container["runAsUser"], container["capabilities"]) == (0, {"drop": ["ALL"]})


def test_the_program_on_nvidia_gpus_obeys_the_restricted_profile() -> None:
    pod, container = context_of(on(a_gpu_job(), h100s()))
    assert pod["runAsNonRoot"] is True
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


@pytest.mark.parametrize(
    "template",
    [
        {"securityContext": {"runAsUser": 1000}},
        {"securityContext": {"runAsNonRoot": True}},
        {"container": {"securityContext": {"runAsUser": 1000}}},
        {"container": {"securityContext": {"privileged": True}}},
    ],
)
def test_a_template_that_chooses_a_user_gets_no_other_and_no_capabilities(template: Obj) -> None:
    given = template.get("container", {}).get("securityContext", {})
    _, container = context_of(on(a_tpu_job(**template), a_tpu_node("tpu-0")))
    assert container.get("runAsUser") == given.get("runAsUser")
    assert container["capabilities"] == {"drop": ["ALL"]}


def test_openshift_assigns_users_and_groups_itself() -> None:
    stage = Stage(a_gpu_job(), h100s(), config=OperatorConfig(assign_users=False))
    stage.settle()
    for pod in stage.pods.values():
        assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert all("runAsUser" not in each["securityContext"] for each in pod["spec"]["containers"])


# --- NVL72 -------------------------------------------------------------------------------------------------------------------
def racks(*cliques: str) -> list[Obj]:
    labels = {GFD: "NVIDIA-GB200", "kubernetes.io/arch": "arm64"}
    return [
        a_node(f"gb200-{index}", labels={**labels, "nvidia.com/gpu.clique": clique}, devices={"nvidia.com/gpu": "4"})
        for index, clique in enumerate(cliques)
    ]


def test_a_unit_of_two_hosts_stays_within_one_nvlink_domain() -> None:
    job = a_job().with_learners(1, 1).with_pool("nvl72", accelerator="nvidia-gb200", hosts=2, max=1).build()
    stage = on(job, *racks("rack.1", "rack.2", "rack.2"))
    nodes = sorted(pod["metadata"]["annotations"][names.ANNOTATION_NODE] for pod in learners(stage))
    assert nodes == ["gb200-1", "gb200-2"]


def test_a_pool_that_asks_for_one_block_waits_rather_than_cross_nvlink_domains() -> None:
    job = a_job().with_learners(1, 1).with_pool("nvl72", accelerator="nvidia-gb200", hosts=2, max=1, locality="Block").build()
    assert learners(on(job, *racks("rack.1", "rack.2"))) == []
