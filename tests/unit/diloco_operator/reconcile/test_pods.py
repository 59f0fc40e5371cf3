"""What a pod is made of: the user's template, and the contract over it."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.pods import a_pod
from builders.stage import Stage
from diloco import contract
from diloco_local.environment import Sources, declared_environment
from diloco_operator.accelerators import ACCELERATOR_LABELS
from diloco_operator.api import names
from diloco_operator.fleet import Host
from diloco_operator.reconcile import OperatorConfig, project_pod
from diloco_operator.reconcile.children.peers import Peers
from diloco_operator.reconcile.children.places import pinned_places
from diloco_operator.reconcile.children.pods import learner_pods, learner_template_base


def learner(stage: Stage, unit: str = "v5p-0", host: int = 0) -> dict[str, Any]:
    stage.settle()
    return stage.pod(unit, 1, host)


def main(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] in ("learner", "syncer"))
    return found


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in main(pod)["env"]}


def in_container(stage: Stage, pod: dict[str, Any]) -> dict[str, str]:
    """The environment that a kubelet makes of it."""
    texts = {name: {key: text.encode() for key, text in obj["data"].items()} for name, obj in stage.host_lists.items()}
    return declared_environment(pod, main(pod), Sources(texts, {}))


def with_template(**spec: Any) -> Stage:
    job = a_job().with_pool(max=1).build()
    job["spec"]["pools"][0]["template"] = {
        "metadata": {"labels": {"team": "speech"}, "annotations": {"note": "x"}},
        "spec": {"containers": [{"name": "learner", "image": "trainer:1", **spec.pop("container", {})}, {"name": "sidecar"}], **spec},
    }
    return Stage(job, a_tpu_node("tpu-0"))


def test_learner_gets_its_identity_and_the_syncers_address() -> None:
    variables = env(learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))))
    assert variables == {
        contract.ENV_JOB_FILE: "/etc/diloco/job/job.json",
        contract.ENV_TLS_DIR: "/etc/diloco/tls",
        contract.ENV_POD_IP: {"fieldRef": {"fieldPath": "status.podIP"}},
        contract.ENV_UNIT: "v5p-0",
        contract.ENV_PROCESSES_PER_HOST: "1",
        contract.ENV_ACCELERATORS_PER_HOST: "4",
        contract.ENV_TERMINATION_LOG: "/dev/termination-log",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_POOL: "v5p",
        contract.ENV_HOST: "0",
        contract.ENV_HOSTS: "1",
        contract.ENV_SYNCER_ADDRESS: "bytes-lm-syncer.bytes-lm.team.svc:7077",
        contract.ENV_LOCALITY: "",
        "HOME": "/tmp",
    }


def test_learner_is_pinned_to_its_host_and_asks_for_all_its_chips() -> None:
    pod = learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")))
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["tpu-0"]}]}
    assert "nodeName" not in pod["spec"]  # the scheduler binds it
    assert pod["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x1",
    }
    assert main(pod)["resources"] == {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}}
    assert {"key": "google.com/tpu", "operator": "Exists"} in pod["spec"]["tolerations"]


def test_gpu_learner_asks_for_the_accelerators_of_its_pool() -> None:
    pod = learner(Stage(a_job().with_gpu_pool(max=1), a_gpu_node("gpu-0")), "h100-0")
    assert main(pod)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["spec"]["tolerations"]


def test_identity_is_on_the_pod() -> None:
    pod = learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")))
    assert pod["metadata"]["labels"] == {
        names.LABEL_JOB: "bytes-lm",
        names.LABEL_COMPONENT: "learner",
        names.LABEL_UNIT: "v5p-0",
        names.LABEL_POOL: "v5p",
        names.LABEL_ATTEMPT: "1",
        names.LABEL_HOST: "0",
    }
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DiLoCoJob", "job-uid-1", True)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("bytes-lm-v5p-0-a1-0", "bytes-lm")


def test_pod_gets_no_rights_and_is_never_restarted_in_place() -> None:
    spec = learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 30


def test_template_wins_where_it_does_not_break_the_contract() -> None:
    stage = with_template(
        terminationGracePeriodSeconds=90,
        nodeSelector={"disk": "fast"},
        tolerations=[{"key": "team", "operator": "Exists"}],
        volumes=[{"name": "data", "emptyDir": {}}],
        restartPolicy="Never",
        container={
            "env": [{"name": "BATCH", "value": "8"}, {"name": "HOME", "value": "/data"}],
            "resources": {"limits": {"memory": "8Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
    )
    stage.set_node(a_tpu_node("tpu-0", labels={"disk": "fast"}))
    pod = learner(stage)
    spec = pod["spec"]
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["restartPolicy"] == "Never"
    assert spec["nodeSelector"]["disk"] == "fast"
    assert [v["name"] for v in spec["volumes"]] == ["diloco-job", "diloco-tls", "diloco-tmp", "data"]
    assert [m["mountPath"] for m in main(pod)["volumeMounts"]] == ["/etc/diloco/job", "/etc/diloco/tls", "/data", "/tmp"]
    assert main(pod)["resources"]["limits"] == {"memory": "8Gi", "google.com/tpu": "4"}
    assert (env(pod)["BATCH"], env(pod)["HOME"], env(pod)[contract.ENV_UNIT]) == ("8", "/data", "v5p-0")
    assert [c["name"] for c in spec["containers"]] == ["learner", "sidecar"]
    assert pod["metadata"]["labels"]["team"] == "speech"
    assert pod["metadata"]["labels"][names.LABEL_UNIT] == "v5p-0"
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_labels_of_the_job_are_on_all_its_pods_and_a_templates_come_before_them() -> None:
    vision = template() | {"metadata": {"labels": {"team": "vision"}}}
    job = a_job().with_spec(podLabels={"team": "speech", "cost-centre": "7"}).with_pool(max=1, template=vision)
    stage = Stage(job, a_tpu_node("tpu-0"))
    assert learner(stage)["metadata"]["labels"].items() >= {"team": "vision", "cost-centre": "7", names.LABEL_UNIT: "v5p-0"}.items()
    assert stage.syncer["metadata"]["labels"].items() >= {"team": "speech", "cost-centre": "7"}.items()


def test_pods_that_run_keep_their_labels_when_those_of_the_job_change() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.edit(podLabels={"team": "speech"})
    stage.settle()
    assert (stage.states(), stage.unit("v5p-0")["attempt"]) == ({"v5p-0": "Training"}, 1)
    assert "team" not in stage.syncer["metadata"]["labels"]


def test_users_variables_can_refer_to_ours() -> None:
    pod = learner(with_template(container={"env": [{"name": "OUT", "value": "/out/$(DILOCO_UNIT)"}]}))
    order = [each["name"] for each in main(pod)["env"]]
    assert order.index("DILOCO_UNIT") < order.index("OUT")


def test_making_pods_leaves_the_template_alone() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    before = copy.deepcopy(stage.job["spec"])
    spec = stage.observed().job.spec
    assert spec is not None
    parsed = spec.model_dump()
    stage.settle()
    assert stage.job["spec"] == before
    assert spec.model_dump() == parsed


def test_hosts_of_a_unit_get_the_addresses_of_each_other() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))
    first, second = (in_container(stage, learner(stage, host=host)) for host in (0, 1))
    hosts = ["bytes-lm-v5p-0-a1-0.bytes-lm", "bytes-lm-v5p-0-a1-1.bytes-lm"]
    assert first["TPU_WORKER_HOSTNAMES"] == ",".join(hosts)
    assert first["TPU_PROCESS_ADDRESSES"] == ",".join(f"{host}:8476" for host in hosts)
    assert first["TPU_PROCESS_PORT"] == "8476"
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("0", "1")
    address = "bytes-lm-v5p-0-a1-0.bytes-lm.team.svc"
    port = second["MASTER_PORT"]
    assert (second["MASTER_ADDR"], second["RANK"], second["WORLD_SIZE"]) == (address, "1", "2")
    assert (second["JAX_COORDINATOR_ADDRESS"], second["JAX_NUM_PROCESSES"], second["JAX_PROCESS_ID"]) == (f"{address}:{port}", "2", "1")
    assert second[contract.ENV_LEADER_ADDRESS] == f"{address}:7078"
    assert (second[contract.ENV_HOST], second[contract.ENV_HOSTS]) == ("1", "2")
    assert not any(name.startswith("MEGASCALE") for name in first)


def test_gpu_hosts_get_torchs_names_and_no_tpu_ones() -> None:
    stage = Stage(a_job().with_gpu_pool(max=1, hosts=2), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    variables = env(learner(stage, "h100-0", 1))
    assert variables["RANK"] == "1"
    assert not any(name.startswith("TPU_") for name in variables)
    assert stage.pod("h100-0", 1, 1)["metadata"]["annotations"][names.ANNOTATION_SLICE] == "gpu-0+gpu-1"


def ranks_of_two_hosts(**pool: Any) -> list[dict[str, str]]:
    """The environment of both hosts of a GPU unit."""
    stage = Stage(a_job().with_gpu_pool(max=1, hosts=2, **pool), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    return [env(learner(stage, "h100-0", host)) for host in (0, 1)]


def test_pod_of_several_processes_names_no_rank_that_all_of_them_would_take() -> None:
    first, second = ranks_of_two_hosts(processesPerHost=8)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "JAX_PROCESS_ID"} & first.keys()
    assert (second["NODE_RANK"], second["NNODES"], second["JAX_NUM_PROCESSES"]) == ("1", "2", "16")


def test_unit_of_one_host_has_its_processes_and_nothing_to_meet() -> None:
    stage = Stage(a_job().with_gpu_pool(max=1, processesPerHost=4), a_gpu_node("gpu-0"))
    variables = env(learner(stage, "h100-0"))
    assert (variables[contract.ENV_PROCESSES_PER_HOST], variables["PET_NPROC_PER_NODE"]) == ("4", "4")
    assert not {"MASTER_ADDR", "PET_NNODES", "JAX_COORDINATOR_ADDRESS", contract.ENV_LEADER_ADDRESS} & variables.keys()


def test_units_and_attempts_meet_on_ports_of_their_own() -> None:
    job = Stage(a_job().with_gpu_pool(hosts=2)).observed().job
    assert job.spec is not None
    peers = [Peers(job, job.spec.pools[0], unit, attempt, 2) for unit in ("h100-0", "h100-1") for attempt in (1, 2)]
    assert len({each.coordinator_port for each in peers}) == 4
    assert all(20000 <= each.coordinator_port < 30000 and each.coordinator_port % 2 == 0 for each in peers)


@pytest.mark.parametrize("host_network", [False, True])
def test_first_host_declares_its_ports_and_shares_none_of_the_machine(host_network: bool) -> None:
    container = {"name": "learner", "image": "trainer:1", "ports": [{"name": "metrics", "containerPort": 9090}]}
    spec = {"containers": [container], **({"hostNetwork": True} if host_network else {})}
    stage = Stage(a_job().with_gpu_pool(max=1, hosts=2, template={"spec": spec}), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    first, second = (main(learner(stage, "h100-0", host)) for host in (0, 1))
    variables = {each["name"]: each.get("value") for each in first["env"]}
    meet = int(variables["MASTER_PORT"])
    leader = meet + 1 if host_network else 7078
    assert variables[contract.ENV_LEADER_ADDRESS].endswith(f":{leader}")
    assert [port["containerPort"] for port in first["ports"]] == [9090, leader, meet]
    assert [port["containerPort"] for port in second["ports"]] == [9090]


def test_syncer_runs_on_its_volume_and_is_restarted_in_place() -> None:
    stage = Stage(a_job().with_pool(max=1).with_spec(priorityClassName="batch"), a_tpu_node("tpu-0"))
    stage.settle()
    pod = stage.syncer
    spec = pod["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    assert spec["terminationGracePeriodSeconds"] == 60
    assert main(pod)["command"] == ["python", "-m", "diloco.syncer"]
    assert spec["priorityClassName"] == "batch"
    claims = [v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert claims == ["bytes-lm-syncer"]
    variables = env(pod)
    assert (variables[contract.ENV_STATE_DIR], variables[contract.ENV_LISTEN_PORT]) == ("/var/lib/diloco", "7077")
    assert variables[contract.ENV_TERMINATION_LOG] == main(pod)["terminationMessagePath"]


def test_syncers_template_keeps_its_image_and_gets_the_contract() -> None:
    template = {
        "spec": {"containers": [{"name": "syncer", "image": "mine:2", "resources": {"requests": {"memory": "4Gi"}}}, {"name": "log"}]}
    }
    stage = Stage(a_job().with_pool(max=1).with_spec(syncer={"template": template}), a_tpu_node("tpu-0"))
    stage.settle()
    container = main(stage.syncer)
    assert container["image"] == "mine:2"
    assert container["resources"] == {"requests": {"memory": "4Gi"}}
    assert container["command"] == ["python", "-m", "diloco.syncer"]
    assert [c["name"] for c in stage.syncer["spec"]["containers"]] == ["syncer", "log"]


def test_job_file_has_what_to_train() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    job_file = contract.JobFile.model_validate_json(stage.children["ConfigMap"]["data"]["job.json"])
    assert (job_file.name, job_file.namespace, job_file.uid) == ("bytes-lm", "team", "job-uid-1")
    assert (job_file.training.steps, job_file.training.fragments) == (100, 4)


def test_a_learner_mounts_its_own_certificate_and_no_other() -> None:
    stage = Stage(a_job().with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.settle()
    [volume] = [v for v in stage.pod("v5p-1", 1)["spec"]["volumes"] if v["name"] == "diloco-tls"]
    items = [{"key": "ca.crt", "path": "ca.crt"}, {"key": "v5p-1-a1.pem", "path": "identity.pem"}]
    # Readable by any user: a learner's image runs as whom it likes.
    assert volume["secret"] == {"secretName": "bytes-lm-learners-v5p-0", "items": items, "defaultMode": 0o444}
    assert {item["key"] for item in items} <= stage.secrets["bytes-lm-learners-v5p-0"]["data"].keys()


def test_no_pod_mounts_the_authority_and_no_key_is_in_plain_sight() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    shown = json.dumps([stage.pods, stage.status]) + repr(stage.plans)
    assert "bytes-lm-ca" not in json.dumps(stage.pods)
    assert "PRIVATE KEY" not in shown
    assert "PRIVATE KEY" in base64.b64decode(stage.secrets["bytes-lm-ca"]["data"]["ca.key"]).decode()


def test_service_gives_names_before_pods_are_ready() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    service = stage.children["Service"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == {names.LABEL_JOB: "bytes-lm"}


def test_volume_has_the_size_and_class_that_the_job_asks_for() -> None:
    stage = Stage(a_job().with_pool(max=1).with_spec(syncer={"storage": {"size": "50Gi", "className": "ssd"}}), a_tpu_node("tpu-0"))
    stage.settle()
    claim = stage.children["PersistentVolumeClaim"]["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == ("50Gi", "ssd")


@pytest.mark.slow
@pytest.mark.parametrize("job_name", ["bytes-lm", "j" * 32])
def test_slice_of_two_thousand_hosts_fits_into_environment_variables(job_name: str) -> None:
    # 2,304 hosts: the largest slice of the catalogue, tpu7x 16x24x24 with 4 chips a host. Linux takes 128 KiB in one variable.
    pool = "p" * 15
    job = Stage(a_job(job_name).with_pool(pool, max=1, accelerator="tpu7x", topology="16x24x24")).observed().job
    assert job.spec is not None
    hosts = [Host(f"host-{index}") for index in range(2304)]
    base = learner_template_base(job, job.spec, job.spec.pools[0], OperatorConfig())
    pods = learner_pods(base, unit=f"{pool}-0", attempt=1000, places=pinned_places({}, "np-0", hosts), locality="", template_hash="")
    made = Peers(job, job.spec.pools[0], f"{pool}-0", 1000, len(hosts)).host_list()
    assert made is not None
    found = made["data"]["TPU_WORKER_HOSTNAMES"].split(",")
    assert found == [f"{pod['spec']['hostname']}.{job_name}" for pod in pods]
    assert len(set(found)) == 2304
    assert all(len(name.partition(".")[0]) <= 63 for name in found)
    assert env(pods[-1])["TPU_WORKER_ID"] == "2303"
    assert max(len(f"{key}={value}") for key, value in made["data"].items()) < 128 * 1024
    assert len(json.dumps(pods[-1])) < 6000  # no pod holds the list


def test_units_of_one_host_and_of_gpus_need_no_list() -> None:
    job = a_job().with_pool(max=1).with_gpu_pool(hosts=2, max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    stage.settle()
    assert len(stage.learner_pods()) == 3
    assert stage.host_lists == {}


def test_variable_that_the_template_sets_is_not_taken_from_the_list() -> None:
    container = {"name": "learner", "image": "trainer:1", "env": [{"name": "TPU_WORKER_HOSTNAMES", "value": "mine"}]}
    job = a_job().with_pool(max=1, topology="2x2x2", template={"spec": {"containers": [container]}})
    stage = Stage(job, *a_tpu_slice("np-0", 2))
    assert in_container(stage, learner(stage))["TPU_WORKER_HOSTNAMES"] == "mine"


def security(pod: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    spec = pod["spec"]
    return spec["securityContext"], [c["securityContext"] for c in (*spec["containers"], *spec.get("initContainers", ()))]


def test_every_container_obeys_the_restricted_profile_unless_the_template_sets_it() -> None:
    stage = with_template(initContainers=[{"name": "fetch", "image": "fetch:1"}], securityContext={"runAsNonRoot": True})
    pods = [learner(stage), stage.syncer]
    for pod in pods:
        whole, containers = security(pod)
        assert whole["runAsNonRoot"] is True
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in containers:
            assert each["allowPrivilegeEscalation"] is False
            assert each["capabilities"] == {"drop": ["ALL"]}
        assert main(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    # The syncer's volume is the job's own, a learner's may be a data set that must not be changed.
    assert ["fsGroup" in security(pod)[0] for pod in pods] == [False, True]


def test_template_may_ask_for_more_rights() -> None:
    # Whether it gets them is for the cluster's policy to say.
    stage = with_template(
        securityContext={"runAsUser": 0},
        container={"securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": False}},
    )
    pod = learner(stage)
    whole, (mine, _) = security(pod)
    assert "runAsNonRoot" not in whole
    assert mine == {"privileged": True, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": False}
    assert "HOME" not in env(pod)
    assert "diloco-tmp" not in [v["name"] for v in pod["spec"]["volumes"]]


def test_tmp_of_the_template_is_kept() -> None:
    stage = with_template(
        volumes=[{"name": "scratch", "emptyDir": {}}], container={"volumeMounts": [{"name": "scratch", "mountPath": "/tmp/"}]}
    )
    spec = learner(stage)["spec"]
    assert [v["name"] for v in spec["volumes"]] == ["diloco-job", "diloco-tls", "scratch"]


def test_pin_holds_in_every_alternative_of_the_templates_affinity() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    stage = with_template(
        affinity={
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [{"key": "old", "operator": "Exists"}]}, {}]
                }
            },
        }
    )
    stage.set_node(a_tpu_node("tpu-0", labels={"zone": "a"}))
    affinity = learner(stage)["spec"]["affinity"]
    pin = {"key": "metadata.name", "operator": "In", "values": ["tpu-0"]}
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [zone], "matchFields": [pin]},
        {"matchExpressions": [{"key": "old", "operator": "Exists"}], "matchFields": [pin]},
    ]
    assert "podAntiAffinity" in affinity


def test_node_without_a_hostname_label_can_be_used() -> None:
    node = a_tpu_node("tpu-0")
    del node["metadata"]["labels"]["kubernetes.io/hostname"]
    assert learner(Stage(a_job().with_pool(max=1), node))["metadata"]["annotations"][names.ANNOTATION_NODE] == "tpu-0"


def test_a_job_that_is_deleted_in_the_foreground_waits_for_its_pods_and_for_nothing_else() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    blocks = {obj["kind"]: obj["metadata"]["ownerReferences"][0].get("blockOwnerDeletion") for obj in stage.children.values()}
    assert blocks == {"ConfigMap": None, "Service": None, "PersistentVolumeClaim": None}
    assert [pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] for pod in stage.pods.values()] == [True, True]


def test_syncer_requests_the_configured_resources_and_stays_on_steady_nodes() -> None:
    config = OperatorConfig(syncer_cpu="2", syncer_memory="8Gi", syncer_memory_limit="16Gi")
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"), config=config)
    stage.settle()
    assert main(stage.syncer)["resources"] == {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "16Gi"}}
    annotations = stage.syncer["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    (preferred,) = stage.syncer["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    asked = {each["key"]: (each["operator"], each.get("values")) for each in preferred["preference"]["matchExpressions"]}
    assert {key for key, what in asked.items() if what == ("DoesNotExist", None)} == set(ACCELERATOR_LABELS)
    assert {key: what for key, what in asked.items() if key not in ACCELERATOR_LABELS} == {
        "cloud.google.com/gke-spot": ("NotIn", ["true"]),
        "cloud.google.com/gke-preemptible": ("NotIn", ["true"]),
        "cloud.google.com/gke-flex-start": ("NotIn", ["true"]),
        "cloud.google.com/gke-provisioning": ("NotIn", ["spot", "preemptible", "flex-start"]),
        "eks.amazonaws.com/capacityType": ("NotIn", ["SPOT"]),
        "kubernetes.azure.com/scalesetpriority": ("NotIn", ["spot"]),
        "karpenter.sh/capacity-type": ("NotIn", ["spot"]),
    }


def test_host_network_of_a_learner_still_finds_the_syncer() -> None:
    # GPUs with several network cards need the host's network.
    assert learner(with_template(hostNetwork=True))["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


@pytest.mark.parametrize("attempt", [1, 9_999, 1_000_000])
@pytest.mark.parametrize("host", [0, 9_215])
def test_pod_names_are_dns_labels_however_long_their_parts_are(attempt: int, host: int) -> None:
    # the longest that the CRD allows: 32 for the job, 15 for the pool, four digits for the unit
    unit = names.unit_name("p" * 15, 1023)
    found = {names.learner_pod_name(job, unit, attempt, host) for job in ("j" * 32, "j" * 31 + "k", "j" * 31)}
    assert len(found) == 3  # jobs whose names begin alike do not meet
    assert all(len(name) <= 63 and not name.startswith("-") and "--" not in name for name in found)
    whole = names.pod_dns_name(max(found, key=len), "j" * 32, "n" * 63)
    assert len(f"{whole}.cluster.local") <= 253


def test_short_names_stay_as_they_read() -> None:
    assert names.learner_pod_name("bytes-lm", "v5p-0", 2, 1) == "bytes-lm-v5p-0-a2-1"


@pytest.mark.parametrize(
    ("status", "annotation", "address"),
    [
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "127.5.0.2", "10.1.2.3"),
        ("", "127.5.0.2", "127.5.0.2"),
        ("", "10.1.2.3", ""),
        ("", "169.254.169.254", ""),
        ("", "syncer.example", ""),
        ("", "", ""),
    ],
)
def test_address_of_a_pod_is_in_its_status_or_on_a_simulated_node_in_an_annotation(status: str, annotation: str, address: str) -> None:
    pod = a_pod("p", metadata={"annotations": {"local.diloco.dev/address": annotation}})
    assert project_pod({**pod, "status": {"phase": "Running", "podIP": status}}).ip == address
