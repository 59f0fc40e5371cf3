"""Jobs on clusters of many kinds, each as its nodes and its rules are on a real API server with its scheduler: where the learners run, or
the reason that a user reads, and what `kubectl diloco doctor` finds. No kubelet runs, so pods are bound and no more.

docs/clusters.md has a section for each kind of cluster.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.chart import CHART, NAMESPACE, RELEASE
from builders.contended_slices import learners, status
from builders.control_plane import ON_LATE, ROOT, ControlPlane, RequestFailed
from builders.jobs import Obj, a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_node, a_tpu_slice
from builders.operator_process import OperatorReplica, replica, wait_for
from click.testing import CliRunner
from diloco_cli.checks.examination import CHECKS, Scope
from diloco_cli.kubectl import main as kubectl
from diloco_operator.accelerators.labels import NVLINK_DOMAIN

pytestmark = pytest.mark.xdist_group("clusters")  # one control plane for all of them

ENFORCE = "pod-security.kubernetes.io/enforce"
GFD = "nvidia.com/gpu.product"
EKS = {"vpc.amazonaws.com/pod-eni": "9", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "0"}
GKE_NETWORKS = {f"networking.gke.io.networks/rdma-{index}": "1" for index in range(2)}
WITHOUT_KUBELETS = {"operator", "job", "volume", "syncer"}
"""Checks of what runs: nothing does here."""


def the_quick_start(*, named_class: bool = True) -> Obj:
    """examples/cpu.yaml; `named_class`: it says of which StorageClass the syncer's volume is."""
    job: Obj = yaml.safe_load((ROOT / "examples" / "cpu.yaml").read_text())
    if named_class:
        job["spec"]["syncer"]["storage"] |= ON_LATE["syncer"]["storage"]
    return {**job, "metadata": {"name": "lm"}}


def a_job_on(pool: Obj) -> Obj:
    """One unit of the pool, with a process for each of its GPUs."""
    processes = {} if "topology" in pool else {"processesPerHost": 4 if pool["accelerator"] == "nvidia-gb200" else 8}
    return a_manifest("lm", min=1, max=1, pools=[{**pool, **processes, "learners": {"max": 1}}], spec=ON_LATE)


def gfd_nodes(count: int, product: str = "NVIDIA-H100-80GB-HBM3", **labels: str) -> list[Obj]:
    """Hosts of bare metal on which NVIDIA's feature discovery runs."""
    return [a_node(f"gpu-{index}", labels={GFD: product, **labels}, devices={"nvidia.com/gpu": "8"}) for index in range(count)]


def racks() -> list[Obj]:
    """Two NVL72 racks, of which four hosts each are there; their names alternate."""
    return [a_gpu_node(f"gb200-{index}", kind="nvidia-gb200", gpus=4, labels={NVLINK_DOMAIN: f"c.{index % 2}"}) for index in range(8)]


@dataclass(frozen=True)
class Kind:
    """A kind of cluster with a job on it."""

    name: str
    nodes: Sequence[Obj]
    job: Obj
    placed: int = 0
    """Learner pods that kube-scheduler binds to these nodes."""
    says: Sequence[str] = ()
    """Parts of what a user reads in the job's status."""
    finds: Sequence[tuple[str, str, str]] = ()
    """All that is not ok by the doctor, but for what runs: check, level, and part of the message."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the namespace."""
    objects: Sequence[Obj] = ()
    """Objects of the namespace, or of the cluster while this kind is there."""
    config: Obj = field(default_factory=dict)
    """Values of the chart for the operator's configuration; with any, it has an operator of its own."""


KINDS = [
    Kind("gke-standard-tpu", a_tpu_slice("np-v5p", 2), a_job_on(tpu_pool()), placed=2),
    Kind(
        "gke-standard-gpu",
        # Learners come once the syncer has a node, and it tolerates no accelerator's taint.
        [a_gpu_node("h100", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]), a_node("system-0")],
        a_job_on(gpu_pool()),
        placed=1,
    ),
    Kind("gke-standard-networks", [a_node(f"n-{index}", devices=GKE_NETWORKS) for index in range(2)], the_quick_start(), placed=2),
    Kind(
        "gke-autopilot-like",
        [a_node("system-0")],
        a_job_on(gpu_pool(provisioning={"mode": "Autoscaler"})),
        says=["WaitingForNodes"],
        finds=[("pools", "warning", "WaitingForNodes")],
    ),
    Kind(
        "eks-without-a-default-class",
        [a_node(f"ip-10-0-0-{index}", devices=EKS) for index in range(2)],
        the_quick_start(named_class=False),
        says=["VolumePending", "has no StorageClass, because the cluster has no default one"],
        finds=[("storage-class", "error", "no StorageClass is the default")],
    ),
    Kind("eks", [a_node(f"ip-10-0-1-{index}", devices=EKS) for index in range(2)], the_quick_start(), placed=2),
    Kind(
        "eks-with-strange-devices",
        [a_node("ip-10-0-2-0", devices={**EKS, "acme.com/npu": "4"})],
        the_quick_start(),
        says=["NoMatchingNodes", "has other devices than the template requests: acme.com/npu"],
        finds=[("devices", "warning", "1 node offers acme.com/npu"), ("pools", "warning", "NoMatchingNodes")],
    ),
    Kind("bare-metal", gfd_nodes(1), a_job_on(gpu_pool()), placed=1),
    Kind(
        "bare-metal-without-feature-discovery",
        [a_node("gpu-0", devices={"nvidia.com/gpu": "8"})],
        a_job_on(gpu_pool()),
        says=["NoMatchingNodes", "1 node has nvidia.com/gpu, but no label that names the product"],
        finds=[
            ("nodes", "warning", "1 node has nvidia.com/gpu, but no label that names the product"),
            ("pools", "warning", "NoMatchingNodes"),
        ],
    ),
    Kind(
        "bare-metal-without-a-device-plugin",
        [a_node("gpu-0", labels={GFD: "NVIDIA-H100-80GB-HBM3"})],
        a_job_on(gpu_pool()),
        says=["offers no nvidia.com/gpu"],
        finds=[("drivers", "warning", "1 node is nvidia-h100-80gb by label, but offers no nvidia.com/gpu"), ("pools", "warning", "")],
    ),
    Kind(
        "nvl72",
        racks(),
        a_job_on(gpu_pool("gb200", accelerator="nvidia-gb200", hosts=4)),
        placed=4,
        finds=[("drivers", "warning", "the cluster has no ComputeDomain")],
    ),
    Kind(
        "amd",
        [a_node("mi300x-0", labels={"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, devices={"amd.com/gpu": "8"})],
        a_job_on(gpu_pool("mi300x", accelerator="amd-mi300x-192gb")),
        placed=1,
        labels={ENFORCE: "baseline"},
    ),
    Kind(
        "amd-in-a-restricted-namespace",
        [a_node("mi300x-0", labels={"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, devices={"amd.com/gpu": "8"})],
        a_job_on(gpu_pool("mi300x", accelerator="amd-mi300x-192gb")),
        says=["PodsRefused", 'violates PodSecurity "restricted:latest"'],
        finds=[("pod-security", "error", "it enforces restricted, and programs on amd-mi300x-192gb need baseline")],
        labels={ENFORCE: "restricted"},
    ),
    Kind("restricted", gfd_nodes(1), a_job_on(gpu_pool()), placed=1, labels={ENFORCE: "restricted"}),
    Kind(
        "quota-that-counts-limits",
        [a_node("n-0"), a_node("n-1")],
        the_quick_start(),
        says=["WriteRefused", "failed quota: team: must specify limits.memory for: syncer"],
        finds=[
            ("quota", "error", "it counts limits.memory, and the syncer sets none"),
            ("quota", "error", "it counts limits.memory, and pool cpu sets none"),
        ],
        objects=[{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "1Ti"}}}],
    ),
]


def an_openshift(namespace: str) -> list[Obj]:
    """The API of OpenShift's security context constraints, and what `restricted-v2` refuses, as a policy."""
    group, plural = "security.openshift.io", "securitycontextconstraints"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "group": group,
        "scope": "Cluster",
        "names": {"plural": plural, "kind": "SecurityContextConstraints"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    users = "object.spec.?securityContext.?{}.orValue(1000700000) >= 1000700000"
    policy = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        },
        "validations": [{"expression": users.format(each), "message": f"{each} {SCC}"} for each in ("runAsUser", "fsGroup")],
    }
    named = {"metadata": {"name": "restricted-v2"}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": definition,
        },
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", **named, "spec": policy},
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            **named,
            "spec": {"policyName": "restricted-v2", "validationActions": ["Deny"]},
        },
    ]


SCC = "is not an allowed user or group: unable to validate against any security context constraint"
KINDS += [
    Kind(
        "openshift-like",
        gfd_nodes(1),
        a_job_on(gpu_pool()),
        says=[SCC],
        finds=[("users", "error", "OpenShift assigns users to pods")],
        objects=an_openshift("on-openshift-like"),
    ),
    Kind(
        "openshift-like-without-users",
        gfd_nodes(1),
        a_job_on(gpu_pool()),
        placed=1,
        objects=an_openshift("on-openshift-like-without-users"),
        config={"assignUsers": False},
    ),
]


class Clusters:
    """A control plane on which one kind of cluster after the other is."""

    def __init__(self, plane: ControlPlane, operator: OperatorReplica, folder: Path) -> None:
        self.plane = plane
        self.operator = operator
        self.folder = folder

    def told(self, where: str) -> str:
        """What a user reads of the job."""
        found = status(self.plane, where)
        parts = [*found.get("conditions", ()), *found.get("pools", ()), *found.get("units", ())]
        remedies = [remedy for each in found.get("pools", ()) for remedy in each.get("remedies", ())]
        return "\n".join([*(f"{each.get('reason')}: {each.get('message')}" for each in parts), *remedies])

    def says(self, where: str, part: str) -> bool:
        return part in self.told(where)

    def placed(self, where: str) -> dict[str, str]:
        """Learner pod -> its node."""
        return {name: pod["spec"]["nodeName"] for name, pod in learners(self.plane, where).items()}

    def doctor(self, where: str) -> list[tuple[str, str, str]]:
        """What `kubectl diloco doctor` says of the job: check, level and message."""
        environment = {"KUBECONFIG": str(self.plane.kubeconfig)}
        done = CliRunner(env=environment).invoke(kubectl.main, ["doctor", "lm", "-n", where, "-o", "json"])
        found = json.loads(done.stdout)
        assert done.exit_code == (1 if found["errors"] else 0), done.output
        return [(each["check"], each["level"], each["message"]) for each in found["findings"]]

    def found(self, where: str) -> list[tuple[str, str, str]]:
        """What is not ok by it, but for what runs."""
        return [each for each in self.doctor(where) if each[1] != "ok" and each[0] not in WITHOUT_KUBELETS]

    def wait(self, holds: Any, what: str, where: str) -> None:
        try:
            wait_for(holds, what, self.operator)
        except BaseException:
            print(self.told(where), *self.doctor(where), sep="\n")  # with the test's captured output
            raise


def namespace(kind: Kind) -> str:
    return f"on-{kind.name}"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Its Services have IPv6 addresses alone. The chart is in it. The operator is a process beside it, with the chart's rights."""
    folder = tmp_path_factory.mktemp("clusters")
    ipv6 = ("--service-cluster-ip-range=fd00:10:96::/112", "--advertise-address=fd00:10::1")
    with ControlPlane(folder / "plane", api_server_args=ipv6) as plane:
        spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(kind), "labels": kind.labels}} for kind in KINDS]
        plane.kubectl("apply", "-f", "-", input=as_list(spaces))
        chart(plane, "install", {})
        plane.wait_until_established("dilocojobs.diloco.dev")
        plane.offer_late_volumes()
        with operator(plane, folder, *(kind for kind in KINDS if not kind.config)) as running:
            yield Clusters(plane, running, folder)


def chart(plane: ControlPlane, verb: str, config: Obj) -> None:
    values = {"replicas": 0, "watchNamespaces": [namespace(kind) for kind in KINDS], "config": config}
    plane.helm(verb, RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace", "--values", "-", input=json.dumps(values))


@contextlib.contextmanager
def operator(plane: ControlPlane, folder: Path, *kinds: Kind) -> Iterator[OperatorReplica]:
    """For jobs on these kinds of clusters, which have one configuration."""
    kubeconfig = plane.kubeconfig_for(plane.token(NAMESPACE, RELEASE), RELEASE)
    watched = [option for kind in kinds for option in ("--watch-namespace", namespace(kind))]
    file = folder / f"{kinds[0].name}.yaml"
    config = {"apiVersion": "config.diloco.dev/v1alpha1", "kind": "OperatorConfiguration", **kinds[0].config}
    file.write_text(json.dumps(config))
    with replica(folder, kinds[0].name, kubeconfig, *watched, "--no-leader-elect", "--config", str(file)) as running:
        yield running


def as_list(items: Sequence[Obj]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


@pytest.fixture
def where(clusters: Clusters, kind: Kind) -> Iterator[str]:
    """The namespace of the job, on the nodes of this kind of cluster and no others."""
    plane, name = clusters.plane, namespace(kind)
    for node in nodes_of(kind):
        plane.add_node(
            node["metadata"]["name"],
            node["metadata"]["labels"],
            node["status"]["capacity"],
            taints=node["spec"].get("taints", ()),
            wait=False,
        )
    nodes = [each["metadata"]["name"] for each in nodes_of(kind)]
    plane.wait_for(functools.partial(_ready, plane, nodes), "the nodes to be ready")
    with contextlib.ExitStack() as stack:
        if kind.objects:
            plane.kubectl("apply", "-n", name, "-f", "-", input=as_list(kind.objects))
            stack.callback(plane.kubectl, "delete", "-n", name, "-f", "-", input=as_list(kind.objects))
        if kind.objects == an_openshift(name):
            plane.wait_for(functools.partial(_refuses_users, plane, name), "the policy to be in effect")
        if kind.config:
            chart(plane, "upgrade", kind.config)
            stack.callback(chart, plane, "upgrade", {})
            stack.enter_context(operator(plane, clusters.folder, kind))
        plane.kubectl("apply", "-n", name, "-f", "-", input=json.dumps(kind.job))
        yield name
        plane.kubectl("delete", "dilocojob", "lm", "-n", name)
        plane.kubectl("delete", "pods", "--all", "-n", name, "--force", "--grace-period=0")
    plane.kubectl("delete", "nodes", *nodes)


def nodes_of(kind: Kind) -> list[Obj]:
    """With names that no other kind has: what is known of a node goes by its name."""
    found = copy.deepcopy(list(kind.nodes))
    for node in found:
        node["metadata"]["name"] = node["metadata"]["labels"]["kubernetes.io/hostname"] = f"{kind.name}-{node['metadata']['name']}"
    return found


def _refuses_users(plane: ControlPlane, where: str) -> bool:
    """Whether the API server refuses a pod because of its user. It takes a moment until policies count."""
    spec = {"containers": [{"name": "main", "image": "image:1"}], "securityContext": {"runAsUser": 65532}}
    try:
        plane.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", {"metadata": {"name": "asks"}, "spec": spec})
    except RequestFailed as error:
        return SCC in str(error)
    return False


def _ready(plane: ControlPlane, nodes: Sequence[str]) -> bool:
    """Whether none has the taint of a new node any more."""
    found = (plane.request("GET", f"/api/v1/nodes/{node}")["spec"].get("taints", ()) for node in nodes)
    return not any(taint["key"].startswith("node.kubernetes.io/") for taints in found for taint in taints)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_job_runs_or_says_why_not_and_the_doctor_names_the_cause(clusters: Clusters, kind: Kind, where: str) -> None:
    if kind.placed:
        clusters.wait(lambda: len(clusters.placed(where)) == kind.placed, f"{kind.placed} learner pods to be bound", where)
        used = set(clusters.placed(where).values())
        labels = [each["metadata"]["labels"] for each in nodes_of(kind) if each["metadata"]["name"] in used]
        assert len(labels) == kind.placed, "each has a node of this cluster for itself"
        assert len({each.get(NVLINK_DOMAIN) for each in labels}) == 1, "the hosts of one unit share their NVLink domain"
    for part in kind.says:
        clusters.wait(functools.partial(clusters.says, where, part), f"the status to say {part!r}", where)
    wanted = [(check, level) for check, level, _ in kind.finds]
    clusters.wait(lambda: [each[:2] for each in clusters.found(where)] == wanted, f"the doctor to find {wanted}", where)
    for (_, _, message), (_, _, part) in zip(clusters.found(where), kind.finds, strict=True):
        assert part in message


def test_the_doctor_of_the_cluster_alone_reads_no_namespace(clusters: Clusters) -> None:
    done = clusters.plane.kubectl("diloco", "doctor", "--cluster", check=False)
    assert done.returncode == 1, "no StorageClass is the default here"
    said = done.stdout.splitlines()
    checks = [line.split()[1] for line in said[:-1]]
    assert checks == [row.check for row in CHECKS if row.scope is Scope.CLUSTER]
    assert "ok       address-family   cluster: addresses are IPv6" in said
    assert [line for line in said if line.startswith("ok       operator-rights  cluster: the operator has the ")]


def test_the_doctor_goes_on_for_a_user_who_may_read_little(clusters: Clusters) -> None:
    plane, where = clusters.plane, namespace(KINDS[0])
    config = plane.kubeconfig_for(plane.token(where, "default"), f"{where}-user")
    done = CliRunner(env={"KUBECONFIG": str(config)}).invoke(kubectl.main, ["doctor", "-n", where, "-o", "json"])
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["nodes"]["level"] == "warning"
    assert found["nodes"]["message"].startswith("not checked: nodes is forbidden: User ")
    assert found["kubernetes"]["level"] == "ok"
    assert found["your-rights"]["message"].startswith("you may not ")
