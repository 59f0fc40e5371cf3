"""The chart's allow-list on a real API server: which jobs it refuses, what it says then, and what it leaves alone.

See docs/decisions/0099-pod-security-and-templates.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from builders.chart import of_kind, one, render
from builders.control_plane import CommandFailed, ControlPlane
from builders.jobs import a_job, template

pytestmark = pytest.mark.xdist_group("chart")  # one control plane for all of them

type Obj = dict[str, Any]

TENANT, TRUSTED = "allow-tenant", "allow-trusted"
"""Namespaces: one that the policy covers, and one that it does not."""
ALLOWED: Obj = {
    "namespaceSelector": {"matchLabels": {"example.com/tenant": "yes"}},
    "serviceAccounts": ["default", "trainer"],
    "secrets": ["data"],
    "images": ["registry.example/"],
    "hostPaths": ["/var/lib/tcpx/"],
    "capabilities": ["IPC_LOCK"],
}
KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def a_policy(**values: Any) -> list[Obj]:
    objects = render({"admission": {"allowList": {"enabled": True, **values}}})
    return [one(objects, kind) for kind in KINDS]


def pods(main: str = "learner", *, container: Obj | None = None, **spec: Any) -> Obj:
    """A template whose main container has these further fields."""
    made = template(main, **spec)
    made["spec"]["containers"][0] |= container or {}
    return made


def learner(**fields: Any) -> Obj:
    return a_job("lm").with_pool(max=1, template=pods(**fields)).build()


def syncer(**fields: Any) -> Obj:
    return a_job("lm").with_pool(max=1).with_spec(syncer={"template": pods("syncer", **fields)}).build()


def apply(plane: ControlPlane, objects: list[Obj]) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def said(plane: ControlPlane, job: Obj, namespace: str = TENANT) -> str:
    """What the API server says against the job, and in warnings; "" if it takes the job without a word."""
    placed = json.dumps({**job, "metadata": {"name": "lm", "namespace": namespace}})
    done = plane.kubectl("create", "--dry-run=server", "--validate=false", "-f", "-", input=placed, check=False)
    assert done.returncode == 0 or done.stderr
    return done.stderr


def put(plane: ControlPlane, policy: list[Obj], *, works: str) -> None:
    """Apply the policy, and wait until the API server goes by it: then it says `works` of a job that runs as another ServiceAccount."""
    apply(plane, policy)
    plane.wait_for(lambda: works in said(plane, learner(serviceAccountName="of-a-stranger")), "the allow-list to be in force")


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the CRD, two namespaces and `ALLOWED` in force in one of them."""
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT, "labels": {"example.com/tenant": "yes"}}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TRUSTED}},
    ]
    apply(plane, [*spaces, one(render(), "CustomResourceDefinition")])
    plane.wait_until_established("dilocojobs.diloco.dev")
    old = {**learner(serviceAccountName="admin"), "metadata": {"name": "old", "namespace": TENANT}}
    plane.kubectl("create", "-f", "-", input=json.dumps(old))
    put(plane, a_policy(**ALLOWED), works="of-a-stranger")
    yield plane
    plane.kubectl("delete", *(f"{kind}/{a_policy()[0]['metadata']['name']}" for kind in KINDS))
    plane.kubectl("delete", "crd", "dilocojobs.diloco.dev")
    plane.kubectl("delete", "namespace", TENANT, TRUSTED, "--wait=false")


def env(secret: str) -> Obj:
    return {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}}]}


def volume(**source: Any) -> list[Obj]:
    return [{"name": "scratch", "emptyDir": {}}, {"name": "given", **source}]


REFUSED: dict[str, tuple[Obj, str, str]] = {
    # fields of a pod template, what the message says of them, and the value of the chart that would allow it
    "a ServiceAccount": ({"serviceAccountName": "admin"}, "serviceAccountName: admin is a ServiceAccount", "serviceAccounts"),
    "a ServiceAccount under its old name": (
        {"serviceAccount": "admin"},
        "serviceAccountName: admin is a ServiceAccount",
        "serviceAccounts",
    ),
    "a Secret as a volume": ({"volumes": volume(secret={"secretName": "lm-ca"})}, "volumes[given]: lm-ca is a Secret", "secrets"),
    "a Secret among other sources": (
        {"volumes": volume(projected={"sources": [{"secret": {"name": "data"}}, {"secret": {"name": "lm-ca"}}]})},
        "volumes[given]: lm-ca is a Secret",
        "secrets",
    ),
    "a Secret of a CSI driver": (
        {"volumes": volume(csi={"driver": "files.example", "nodePublishSecretRef": {"name": "lm-ca"}})},
        "volumes[given]: lm-ca is a Secret",
        "secrets",
    ),
    "a Secret of an older driver": (
        {"volumes": volume(cephfs={"monitors": ["ceph"], "secretRef": {"name": "lm-ca"}})},
        "volumes[given]: lm-ca is a Secret",
        "secrets",
    ),
    "a Secret of a share": (
        {"volumes": volume(azureFile={"shareName": "data", "secretName": "lm-ca"})},
        "volumes[given]: lm-ca is a Secret",
        "secrets",
    ),
    "a Secret for images": ({"imagePullSecrets": [{"name": "data"}, {"name": "lm-ca"}]}, "imagePullSecrets: lm-ca is a Secret", "secrets"),
    "a Secret in a variable": ({"container": env("lm-ca")}, "containers[MAIN]: lm-ca is a Secret", "secrets"),
    "a Secret as variables": (
        {"container": {"envFrom": [{"secretRef": {"name": "lm-ca"}}]}},
        "containers[MAIN]: lm-ca is a Secret",
        "secrets",
    ),
    "a Secret of an init container": (
        {"initContainers": [{"name": "fetch", "image": "registry.example/fetch:1", **env("lm-ca")}]},
        "initContainers[fetch]: lm-ca is a Secret",
        "secrets",
    ),
    "an image": (
        {"container": {"image": "registry.example.org/train:1"}},
        "containers[MAIN].image: registry.example.org/train:1 is an image",
        "images",
    ),
    "an image of an init container": (
        {"initContainers": [{"name": "fetch", "image": "busybox"}]},
        "initContainers[fetch].image: busybox is an image",
        "images",
    ),
    "an image as a volume": (
        {"volumes": volume(image={"reference": "data:1"})},
        "volumes[given].image.reference: data:1 is an image",
        "images",
    ),
    "the host's network": ({"hostNetwork": True}, "hostNetwork: true is a use of the host's network", "hostNetwork"),
    "a port of the host": (
        {"container": {"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}},
        "containers[MAIN].ports: 81 is a use of the host's network",
        "hostNetwork",
    ),
    "a folder of the host": ({"volumes": volume(hostPath={"path": "/etc"})}, "volumes[given].hostPath: /etc is a hostPath", "hostPaths"),
    "a folder with a longer name": (
        {"volumes": volume(hostPath={"path": "/var/lib/tcpx-keys"})},
        "volumes[given].hostPath: /var/lib/tcpx-keys is a hostPath",
        "hostPaths",
    ),
    "a privileged container": (
        {"container": {"securityContext": {"privileged": True}}},
        "containers[MAIN].securityContext.privileged: true is a way to the host's processes",
        "privileged",
    ),
    "a process of a Windows host": (
        {"securityContext": {"windowsOptions": {"hostProcess": True}}},
        "securityContext.windowsOptions.hostProcess: true is a way to the host's processes",
        "privileged",
    ),
    "the host's processes": ({"hostPID": True}, "hostPID: true is a way to the host's processes", "privileged"),
    "the host's memory": ({"hostIPC": True}, "hostIPC: true is a way to the host's processes", "privileged"),
    "a capability": (
        {"container": {"securityContext": {"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}}}},
        "containers[MAIN].securityContext.capabilities.add: SYS_ADMIN is a capability",
        "capabilities",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_job_that_names_what_is_not_allowed_is_refused_with_the_field_and_what_to_do(cluster: ControlPlane, what: str) -> None:
    fields, names, value = REFUSED[what]
    advice = f"; leave it out, or ask the cluster's administrator to allow it in admission.allowList.{value}"
    for job, where in ((learner(**fields), "spec.pools[v5p].template.spec"), (syncer(**fields), "spec.syncer.template.spec")):
        main = "learner" if "pools" in where else "syncer"
        answer = said(cluster, job)
        assert f"{where}.{names.replace('MAIN', main)} that is not allowed here (allowed" in answer
        assert advice in answer
        assert said(cluster, job, TRUSTED) == "", "its namespace is not selected"


def test_a_job_that_names_what_is_allowed_is_taken(cluster: ControlPlane) -> None:
    fields: Obj = {
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "data"}],
        "initContainers": [{"name": "fetch", "image": "registry.example/fetch:1", **env("data")}],
        "volumes": [
            *volume(secret={"secretName": "data"}),
            {"name": "sources", "projected": {"sources": [{"secret": {"name": "data"}}, {"configMap": {"name": "any"}}]}},
            {"name": "files", "csi": {"driver": "files.example", "nodePublishSecretRef": {"name": "data"}}},
            {"name": "cache", "csi": {"driver": "cache.example"}},
            {"name": "nics", "hostPath": {"path": "/var/lib/tcpx"}},
            {"name": "nic", "hostPath": {"path": "/var/lib/tcpx/lib64"}},
        ],
        "container": {
            "envFrom": [{"secretRef": {"name": "data"}}, {"configMapRef": {"name": "any"}}],
            "ports": [{"containerPort": 80}],
            "securityContext": {"privileged": False, "capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]}},
        },
    }
    for job in (learner(), learner(**fields), syncer(), syncer(**fields)):
        assert said(cluster, job) == ""
    # What stands in a manifest without a value is not there.
    empty = dict.fromkeys(("serviceAccountName", "initContainers", "volumes", "securityContext", "hostNetwork"))
    for job in (
        learner(**empty, container={"env": None, "ports": None, "securityContext": None}),
        a_job("lm").with_pool(max=1).with_spec(syncer={}).build(),
    ):
        assert said(cluster, job) == ""


@pytest.mark.parametrize("hostile", [{"volumes": "all"}, {"initContainers": 5}, {"hostAliases": [], "initContainers": [{"image": "x"}]}])
def test_a_template_that_cannot_be_read_is_refused(cluster: ControlPlane, hostile: Obj) -> None:
    answer = said(cluster, learner(**hostile))
    assert "allow-list" in answer
    assert "denied request" in answer


def test_a_job_from_before_the_allow_list_can_be_suspended_and_scaled_and_not_given_other_templates(cluster: ControlPlane) -> None:
    def patch(change: Obj) -> None:
        cluster.kubectl("patch", "dlj", "old", "-n", TENANT, "--type=merge", "-p", json.dumps(change))

    patch({"spec": {"suspend": True}})
    patch({"metadata": {"labels": {"team": "a"}}})
    cluster.kubectl("scale", "dlj/old", "-n", TENANT, "--replicas=2")
    with pytest.raises(CommandFailed, match=r"spec.pools\[v5p\].template.spec.serviceAccountName: admin is a ServiceAccount"):
        patch({"spec": {"syncer": {"template": pods("syncer")}}})


def test_the_api_server_finds_nothing_wrong_with_the_expressions(cluster: ControlPlane) -> None:
    [name] = [obj["metadata"]["name"] for obj in a_policy() if obj["kind"] == KINDS[0]]
    cluster.wait_for(
        lambda: "observedGeneration" in cluster.request("GET", f"{POLICIES}/{name}").get("status", {}), "the types to be checked"
    )
    assert cluster.request("GET", f"{POLICIES}/{name}")["status"]["typeChecking"] == {}


def test_without_the_value_there_is_no_policy_and_with_a_star_no_check() -> None:
    assert [obj for kind in KINDS for obj in of_kind(render(), kind)] == []
    any_of = {key: ["*"] for key in ("serviceAccounts", "secrets", "images")}
    policy, _ = a_policy(**any_of, hostNetwork=True, privileged=True)
    checked = [each["expression"].partition(".all(")[0] for each in policy["spec"]["validations"]]
    assert checked == ["variables.hostPaths"]


def test_with_warn_a_job_is_taken_with_a_warning(cluster: ControlPlane) -> None:
    policy = a_policy(**ALLOWED, actions=["Warn"])
    put(cluster, policy, works="Warning: ")
    assert "admission.allowList.hostPaths" in said(cluster, learner(volumes=volume(hostPath={"path": "/"})))
    put(cluster, a_policy(**ALLOWED), works="denied request")
