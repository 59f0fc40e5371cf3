"""Templates that break the contract are rejected, and every offending field is named."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco import contract
from diloco_operator.reconcile.observe.job import parse_job

POOL = "spec.pools[0].template"
SYNCER = "spec.syncer.template"


def problems(stage: Stage) -> str:
    """The message of Accepted=False; nothing is made."""
    stage.settle()
    condition = stage.condition("Accepted")
    assert (condition["status"], condition["reason"]) == ("False", "SpecInvalid")
    assert stage.pods == {}
    assert stage.children == {}
    message: str = condition["message"]
    return message


def with_pool_template(given: dict[str, Any]) -> Stage:
    job = a_job().with_pool(max=1).build()
    job["spec"]["pools"][0]["template"] = given
    return Stage(job, a_tpu_node("tpu-0"))


def test_label_of_the_job_that_is_the_operators_own_is_named() -> None:
    said = problems(Stage(a_job().with_spec(podLabels={"diloco.dev/unit": "mine"}).with_pool(max=1), a_tpu_node("tpu-0")))
    assert "spec.podLabels[diloco.dev/unit]: keys of diloco.dev/ are the operator's own" in said


def learner_container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "log"}, {"name": "learner", **fields}]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"nodeName": "tpu-0"}, "nodeName"),
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"hostname": "me"}, "hostname"),
        ({"hostnameOverride": "me"}, "hostnameOverride"),
        ({"subdomain": "mine"}, "subdomain"),
        ({"setHostnameAsFQDN": True}, "setHostnameAsFQDN"),
        ({"dnsPolicy": "Default"}, "dnsPolicy"),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, "dnsPolicy"),
        ({"volumes": [{"name": "data"}, {"name": "diloco-job"}]}, "volumes[1].name"),
        ({"nodeSelector": {"cloud.google.com/gke-tpu-topology": "4x4x4"}}, "nodeSelector[cloud.google.com/gke-tpu-topology]"),
        ({"nodeSelector": {"cloud.google.com/gke-tpu-accelerator": "tpu7x"}}, "nodeSelector[cloud.google.com/gke-tpu-accelerator]"),
    ],
)
def test_field_of_the_pod_that_breaks_the_contract_is_named(spec: dict[str, Any], field: str) -> None:
    assert f"{POOL}.spec.{field}: " in problems(with_pool_template(template(**spec)))


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({"env": [{"name": "A"}, {"name": contract.ENV_UNIT, "value": "x"}]}, "env[1].name"),
        ({"env": [{"name": "MEGASCALE_NUM_SLICES", "value": "4"}]}, "env[0].name"),
        ({"volumeMounts": [{"name": "x", "mountPath": contract.MOUNT_JOB + "/"}]}, "volumeMounts[0].mountPath"),
        ({"volumeMounts": [{"name": "x", "mountPath": contract.MOUNT_JOB + "/mine"}]}, "volumeMounts[0].mountPath"),
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"restartPolicyRules": [{"action": "Restart"}]}, "restartPolicyRules"),
        ({"resources": {"limits": {"google.com/tpu": 8}}}, "resources.limits[google.com/tpu]"),
        ({"resources": {"requests": {"google.com/tpu": "1"}}}, "resources.requests[google.com/tpu]"),
        ({"resources": {"requests": {"cpu": "-1"}}}, "resources.requests[cpu]"),
        ({"resources": {"requests": {"memory": "1Kib"}}}, "resources.requests[memory]"),
        ({"resources": {"limits": {"memory": "100m"}}}, "resources.limits[memory]"),
        ({"resources": {"requests": {"cpu": 4}, "limits": {"cpu": "3500m"}}}, "resources.requests[cpu]"),
        ({"env": [{"name": "DILOCO_SYNCER", "value": "x"}]}, "env[0].name"),
        ({"env": [{"name": "STEPS", "value": 5}]}, "env[0].value"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/etc/diloco//job/../job"}]}, "volumeMounts[0].mountPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, "volumeMounts[0].name"),
    ],
)
def test_field_of_the_learner_that_breaks_the_contract_is_named(container: dict[str, Any], field: str) -> None:
    assert f"{POOL}.spec.containers[1].{field}: " in problems(with_pool_template(learner_container(**container)))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"restartPolicy": "Never"}, "restartPolicy"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"containers": [{"name": "syncer", "terminationMessagePath": "/x"}]}, "containers[0].terminationMessagePath"),
        (
            {"containers": [{"name": "syncer", "volumeMounts": [{"name": "x", "mountPath": contract.MOUNT_STATE}]}]},
            "containers[0].volumeMounts",
        ),
        ({"containers": [{"name": "syncer", "restartPolicy": "Never"}]}, "containers[0].restartPolicy"),
    ],
)
def test_field_of_the_syncer_that_breaks_the_contract_is_named(given: dict[str, Any], field: str) -> None:
    stage = Stage(a_job().with_pool(max=1).with_spec(syncer={"template": {"spec": given}}), a_tpu_node("tpu-0"))
    assert f"{SYNCER}.spec.{field}" in problems(stage)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"initContainers": [{"name": "fetch"}, {"name": "fetch"}]}, "initContainers[1].name"),
        ({"initContainers": [{"name": "learner"}]}, "containers[0].name"),
        (
            {"initContainers": [{"name": "fetch", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]},
            "initContainers[0].volumeMounts[0].name",
        ),
        ({"initContainers": [{"name": "fetch", "resources": {"requests": {"cpu": "much"}}}]}, "initContainers[0].resources.requests[cpu]"),
        ({"resources": {"limits": {"memory": "-1Gi"}}}, "resources.limits[memory]"),
        ({"volumes": [{"name": "data"}, {"name": "data"}]}, "volumes[1].name"),
    ],
)
def test_field_that_no_api_server_takes_is_named_before_a_pod_is_made(given: dict[str, Any], field: str) -> None:
    assert f"{POOL}.spec.{field}: " in problems(with_pool_template(template(**given)))


def test_mounts_and_amounts_that_fit_are_valid() -> None:
    given = template(volumes=[{"name": "data", "emptyDir": {}}], initContainers=[{"name": "fetch"}])
    container = given["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    container["resources"] = {"requests": {"cpu": "500m", "memory": "1.5Gi"}, "limits": {"cpu": 1, "memory": "2Gi", "hugepages-1Gi": None}}
    stage = with_pool_template(given)
    stage.settle()
    assert stage.condition("Accepted")["status"] == "True"


class Name(str):
    """A name that counts how often it was compared with another one of the same characters or of others."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_work_grows_with_volumes_and_mounts_and_not_with_their_product() -> None:
    """It is done on the event loop of all jobs."""
    count = 500
    job = a_job().with_pool(max=1).build()
    given = job["spec"]["pools"][0]["template"]["spec"]
    given["volumes"] = [{"name": Name(f"v{index}")} for index in range(count)]
    given["containers"][0]["volumeMounts"] = [{"name": Name(f"v{index}"), "mountPath": f"/v{index}"} for index in range(count)]
    Name.compared = 0
    assert parse_job(job).problems == ()
    # A name is looked for among the others a few times. To compare each with each would be 500 * 500 / 2 = 125,000.
    assert 0 < Name.compared < 10 * count


def test_labels_and_annotations_of_the_operator_are_its_own() -> None:
    given = {**template(), "metadata": {"labels": {"diloco.dev/unit": "x"}, "annotations": {"diloco.dev/slice": "y", "note": "z"}}}
    message = problems(with_pool_template(given))
    assert f"{POOL}.metadata.labels[diloco.dev/unit]: " in message
    assert f"{POOL}.metadata.annotations[diloco.dev/slice]: " in message
    assert "note" not in message


def test_two_priority_classes_that_differ_are_rejected_and_one_is_enough() -> None:
    one = a_job().with_pool(max=1, template=template(priorityClassName="low"))
    assert f"{POOL}.spec.priorityClassName: " in problems(Stage(one.with_spec(priorityClassName="high"), a_tpu_node("tpu-0")))
    stage = Stage(a_job().with_pool(max=1, template=template(priorityClassName="low")), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.pod("v5p-0", 1)["spec"]["priorityClassName"] == "low"


def test_all_offending_fields_of_all_templates_are_listed_at_once() -> None:
    job = a_job().with_pool("a", max=1, template=template(nodeName="x", hostname="y"))
    job.with_pool("b", max=1, template=template(subdomain="z")).with_spec(syncer={"template": {"spec": {"restartPolicy": "Always"}}})
    message = problems(Stage(job, a_tpu_node("tpu-0")))
    for field in ("pools[0].template.spec.nodeName", "pools[0].template.spec.hostname", "pools[1].template.spec.subdomain"):
        assert f"spec.{field}: " in message
    assert "spec.syncer.template.spec.restartPolicy: " in message


AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"


def node_affinity(expression: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [expression]}]
    return template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"spec": {"containers": "learner"}}, "spec.containers"),
        ({"spec": {"containers": ["learner"]}}, "spec.containers[0]"),
        (template(volumes={"name": "x"}), "spec.volumes"),
        (template(volumes=[{"emptyDir": {}}]), "spec.volumes[0].name"),
        (template(volumes=["x"]), "spec.volumes[0]"),
        (template(tolerations=["all"]), "spec.tolerations[0]"),
        (template(nodeSelector=["a"]), "spec.nodeSelector"),
        (template(nodeSelector={"a": 1}), "spec.nodeSelector[a]"),
        (template(affinity="x"), "spec.affinity"),
        (template(affinity={"nodeAffinity": []}), "spec.affinity.nodeAffinity"),
        (node_affinity({"key": "zone", "operator": "In", "values": "a"}), f"{AFFINITY}.matchExpressions[0].values"),
        (node_affinity({"key": "zone", "operator": "Gt", "values": [5]}), f"{AFFINITY}.matchExpressions[0].values[0]"),
        (node_affinity({"key": "zone"}), f"{AFFINITY}.matchExpressions[0].operator"),
        (template(tolerations=[{"key": {"a": "b"}}]), "spec.tolerations[0].key"),
        (template(tolerations=[{"key": "a", "value": 1}]), "spec.tolerations[0].value"),
        (template(securityContext=7), "spec.securityContext"),
        (template(initContainers=[{}]), "spec.initContainers[0].name"),
        (learner_container(env="A=1"), "spec.containers[1].env"),
        (learner_container(env=[{"value": "1"}]), "spec.containers[1].env[0].name"),
        (learner_container(env=[{"name": 3}]), "spec.containers[1].env[0].name"),
        (learner_container(volumeMounts=[{"name": "x"}]), "spec.containers[1].volumeMounts[0].mountPath"),
        (learner_container(resources=[]), "spec.containers[1].resources"),
        (learner_container(resources={"limits": 4}), "spec.containers[1].resources.limits"),
        (learner_container(securityContext={"capabilities": ["ALL"]}), "spec.containers[1].securityContext.capabilities"),
    ],
)
def test_template_of_another_shape_is_a_reason_and_no_crash(given: dict[str, Any], field: str) -> None:
    assert f"{POOL}.{field}: " in problems(with_pool_template(given))


def test_what_the_cluster_decides_is_not_checked_here() -> None:
    given = template(hostPID=True, hostNetwork=True, volumes=[{"name": "x", "hostPath": {"path": "/"}}], runtimeClassName="gvisor")
    given["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    stage = with_pool_template(given)
    stage.settle()
    assert stage.condition("Accepted")["status"] == "True"
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_template_that_repeats_the_pool_is_valid() -> None:
    given = template(nodeSelector={"cloud.google.com/gke-tpu-topology": "2x2x1"}, restartPolicy="Never")
    given["spec"]["containers"][0]["resources"] = {"limits": {"google.com/tpu": 4}}
    stage = with_pool_template(given)
    stage.settle()
    assert stage.condition("Accepted")["status"] == "True"


def test_unicode_and_enormous_values_reach_the_pod_unchanged() -> None:
    value = "\u2603\U0001f600" * 50_000
    given = learner_container(env=[{"name": "STORY", "value": value}], args=["--name", "\u00e9\u0301"])
    given["metadata"] = {"annotations": {"note": "\u4e16\u754c"}}
    stage = with_pool_template(given)
    stage.settle()
    pod = stage.pod("v5p-0", 1)
    container = pod["spec"]["containers"][1]
    assert {"name": "STORY", "value": value} in container["env"]
    assert container["args"] == ["--name", "\u00e9\u0301"]
    assert pod["metadata"]["annotations"]["note"] == "\u4e16\u754c"
