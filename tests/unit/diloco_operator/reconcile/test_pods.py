"""What a pod is made of: the user's template, and the contract over it."""

from __future__ import annotations

import copy
import json
from typing import Any

from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from builders.stage import Stage
from diloco import contract
from diloco_operator.api import names


def learner(stage: Stage, unit: str = "v5p-0", host: int = 0) -> dict[str, Any]:
    stage.settle()
    return stage.pod(unit, 1, host)


def main(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] in ("learner", "syncer"))
    return found


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in main(pod)["env"]}


def with_template(**spec: Any) -> Stage:
    job = a_job().with_pool(max=1).build()
    job["spec"]["pools"][0]["template"] = {
        "metadata": {"labels": {"team": "speech", names.LABEL_UNIT: "mine"}, "annotations": {"note": "x"}},
        "spec": {"containers": [{"name": "learner", "image": "trainer:1", **spec.pop("container", {})}, {"name": "sidecar"}], **spec},
    }
    return Stage(job, a_tpu_node("tpu-0"))


def test_learner_is_told_who_it_is_and_where_the_syncer_is() -> None:
    told = env(learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))))
    assert told == {
        contract.ENV_JOB_FILE: "/etc/diloco/job/job.json",
        contract.ENV_SECRET_FILE: "/etc/diloco/secret/token",
        contract.ENV_POD_IP: {"fieldRef": {"fieldPath": "status.podIP"}},
        contract.ENV_UNIT: "v5p-0",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_POOL: "v5p",
        contract.ENV_HOST: "0",
        contract.ENV_HOSTS: "1",
        contract.ENV_SYNCER_ADDRESS: "bytes-lm-syncer.bytes-lm.team.svc:7077",
    }


def test_learner_is_pinned_to_its_host_and_asks_for_all_its_chips() -> None:
    pod = learner(Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")))
    assert pod["spec"]["nodeSelector"] == {
        "kubernetes.io/hostname": "tpu-0",
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
        restartPolicy="Always",
        container={
            "env": [{"name": "BATCH", "value": "8"}, {"name": contract.ENV_UNIT, "value": "somebody-else"}],
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
    assert [v["name"] for v in spec["volumes"]] == ["diloco-job", "diloco-secret", "data"]
    assert [m["mountPath"] for m in main(pod)["volumeMounts"]] == ["/etc/diloco/job", "/etc/diloco/secret", "/data"]
    assert main(pod)["resources"]["limits"] == {"memory": "8Gi", "google.com/tpu": "4"}
    assert (env(pod)["BATCH"], env(pod)[contract.ENV_UNIT]) == ("8", "v5p-0")
    assert [c["name"] for c in spec["containers"]] == ["learner", "sidecar"]
    assert pod["metadata"]["labels"]["team"] == "speech"
    assert pod["metadata"]["labels"][names.LABEL_UNIT] == "v5p-0"
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_users_variables_can_refer_to_ours() -> None:
    pod = learner(with_template(container={"env": [{"name": "OUT", "value": "/out/$(DILOCO_UNIT)"}]}))
    order = [each["name"] for each in main(pod)["env"]]
    assert order.index("DILOCO_UNIT") < order.index("OUT")


def test_making_pods_leaves_the_template_alone() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    before = copy.deepcopy(stage.job["spec"])
    spec = stage.snapshot().job.spec
    assert spec is not None
    parsed = spec.model_dump()
    stage.settle()
    assert stage.job["spec"] == before
    assert spec.model_dump() == parsed


def test_hosts_of_a_unit_are_told_how_to_meet() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2))
    first, second = env(learner(stage)), env(learner(stage, host=1))
    addresses = ["bytes-lm-v5p-0-a1-0.bytes-lm.team.svc", "bytes-lm-v5p-0-a1-1.bytes-lm.team.svc"]
    assert first["TPU_WORKER_HOSTNAMES"] == ",".join(addresses)
    assert first["TPU_PROCESS_ADDRESSES"] == ",".join(f"{a}:8476" for a in addresses)
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("0", "1")
    assert (second["MASTER_ADDR"], second["RANK"], second["WORLD_SIZE"]) == (addresses[0], "1", "2")
    assert (second[contract.ENV_HOST], second[contract.ENV_HOSTS]) == ("1", "2")
    assert not any(name.startswith("MEGASCALE") for name in first)


def test_gpu_hosts_get_torchs_names_and_no_tpu_ones() -> None:
    stage = Stage(a_job().with_gpu_pool(max=1, hosts=2), a_gpu_node("gpu-0"), a_gpu_node("gpu-1"))
    told = env(learner(stage, "h100-0", 1))
    assert told["RANK"] == "1"
    assert not any(name.startswith("TPU_") for name in told)
    assert stage.pod("h100-0", 1, 1)["metadata"]["annotations"][names.ANNOTATION_SLICE] == "gpu-0+gpu-1"


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
    told = env(pod)
    assert (told[contract.ENV_STATE_DIR], told[contract.ENV_LISTEN_PORT]) == ("/var/lib/diloco", "7077")
    assert told[contract.ENV_TERMINATION_LOG] == main(pod)["terminationMessagePath"]


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


def test_job_file_says_what_to_train() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    job_file = contract.JobFile.model_validate_json(stage.children["ConfigMap"]["data"]["job.json"])
    assert (job_file.name, job_file.namespace, job_file.uid) == ("bytes-lm", "team", "job-uid-1")
    assert (job_file.training.steps, job_file.training.fragments) == (100, 4)


def test_secret_is_the_token_of_the_pass_that_made_it() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.children["Secret"]["stringData"] == {"token": "s3cret"}
    assert "s3cret" not in json.dumps([stage.pods, stage.status])


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
