"""`diloco-operator run` against a real API server: what it waits for, what it writes and, when nothing happens, does not write."""

from __future__ import annotations

import functools
import json
import re
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from builders.chart import NAMESPACE, of_kind, render
from builders.control_plane import CRD, ControlPlane
from builders.jobs import a_manifest, cpu_pool
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names

_WRITES = frozenset({"create", "update", "patch", "delete"})


class Scene:
    """An operator that watches one namespace and writes with its own user name."""

    def __init__(self, plane: ControlPlane, namespace: str, operator: OperatorReplica) -> None:
        self.plane = plane
        self.namespace = namespace
        self.operator = operator

    def apply(self, name: str, **spec: Any) -> None:
        """A job that waits for hardware. It expects a learner outside, so that its syncer is there all the same."""
        manifest = a_manifest(name, pools=[cpu_pool(max=2)], spec={"syncer": {"externalAddress": "syncer.example.com"}, **spec})
        manifest["spec"]["learners"]["outside"] = ["elsewhere"]
        self.plane.kubectl("apply", "-n", self.namespace, "-f", "-", input=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.plane.kubectl("get", kind, name, "-n", self.namespace, "-o", "json").stdout)
        return found

    def exists(self, kind: str, name: str) -> bool:
        return self.plane.kubectl("get", kind, name, "-n", self.namespace, check=False).returncode == 0

    def writes(self, since: int) -> list[str]:
        """What the operator asked for that changes something, but for its lease."""
        user = f"system:serviceaccount:{self.namespace}:operator"
        events = (e for e in self.plane.audit_events(since) if e["user"]["username"] == user and e["verb"] in _WRITES)
        return [f"{e['verb']} {e['objectRef']['resource']}" for e in events if e["objectRef"]["resource"] != "leases"]

    def renewals(self, since: int) -> int:
        user = f"system:serviceaccount:{self.namespace}:operator"
        events = (e for e in self.plane.audit_events(since) if e["user"]["username"] == user and e["verb"] == "update")
        return sum(1 for e in events if e["objectRef"]["resource"] == "leases")

    def wait_settled(self) -> None:
        """Wait until the operator has written nothing for five renewals of its lease."""
        since = self.plane.audit_position()

        def settled() -> bool:
            nonlocal since
            if self.writes(since):
                since = self.plane.audit_position()
            return self.renewals(since) >= 5

        wait_for(settled, "the operator to have nothing to write", self.operator)


@pytest.fixture
def scene(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    plane = control_plane
    plane.install_crd()
    namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "operator-"}})["metadata"]["name"]
    plane.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", f"--group=system:serviceaccounts:{namespace}")
    plane.kubectl("create", "serviceaccount", "operator", "-n", namespace)
    kubeconfig = plane.kubeconfig_for(plane.token(namespace, "operator"), namespace)
    options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace)
    try:
        with replica(tmp_path, "operator", kubeconfig, *options) as operator:
            yield Scene(plane, namespace, operator)
    finally:
        plane.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
        plane.kubectl("delete", "clusterrolebinding", namespace)


def test_a_job_says_that_the_operator_lacks_the_kubeconfig_of_a_cluster_and_all_else_goes_on(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The chart mounts the Secret of a cluster, and the pod starts without it."""
    [deployment] = of_kind(render({"clusters": [{"name": "tokyo", "secretName": "far", "namespaces": {"a": "b"}}]}), "Deployment")
    [volume] = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "cluster-tokyo"]
    assert volume["secret"]["optional"]
    control_plane.install_crd()
    made = control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "operator-"}})
    namespace: str = made["metadata"]["name"]
    cluster = {"name": "tokyo", "kubeconfig": str(tmp_path / "missing"), "namespaces": {namespace: namespace}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND, "clusters": [cluster]}))
    options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace, "--config", str(config))
    pools = [cpu_pool(max=1), cpu_pool("far", cluster="tokyo", max=1)]
    job = a_manifest("lm", min=1, max=2, quorum=1, pools=pools, spec={"syncer": {"externalAddress": "syncer.example.com"}})
    with replica(tmp_path, "operator", control_plane.kubeconfig, *options) as operator:
        control_plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job))

        def message() -> str:
            path = "jsonpath={.status.parts[0].message}"
            return control_plane.kubectl("get", "dlj", "lm", "-n", namespace, "-o", path, check=False).stdout

        wait_for(lambda: "the operator cannot use cluster tokyo" in message(), "the job to say so", operator)
        assert f"{tmp_path / 'missing'} does not exist. Mend it, and restart the operator" in message()
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_it_waits_for_a_definition_that_has_what_it_needs(tmp_path: Path) -> None:
    """Missing, then of an older version, then right: one process, that says what is wrong and goes on by itself."""
    with (
        ControlPlane(tmp_path / "plane", controllers=False, scheduler=False) as plane,
        replica(tmp_path, "operator", plane.kubeconfig) as operator,
    ):
        operator.wait_said("has no CustomResourceDefinition dilocojobs.diloco.dev")
        assert operator.get("/healthz") == (200, "ok\n")
        status, text = operator.get("/readyz")
        assert (status, "install the CustomResourceDefinition" in text) == (503, True)

        current = json.loads(plane.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(CRD)).stdout)
        older = json.loads(json.dumps(current))
        schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del schema["units"]["items"]["properties"]["endedAttempt"]
        plane.kubectl("create", "-f", "-", input=json.dumps(older))
        operator.wait_said(r"is of another version: it lacks status\.units\[\]\.endedAttempt; install")
        assert operator.get("/readyz")[0] == 503
        assert not operator.leads

        plane.install_crd()
        operator.wait_leads()
        assert operator.get("/readyz") == (200, "ok\n")
        complaints = [line["msg"] for line in operator.lines() if line["msg"].startswith("not ready: ")]
        assert len(complaints) == len(set(complaints))  # each once, however often the job was reconciled

        # Gone while the operator works: much sooner than the next check that is due, five minutes later.
        plane.kubectl("delete", "-f", str(CRD))
        wait_for(lambda: operator.get("/readyz")[0] == 503, "the operator to miss the definition", operator)
        wait_for(lambda: "has no CustomResourceDefinition" in operator.get("/readyz")[1], "the operator to name the definition", operator)
        assert "watching dilocojobs: " in operator.get("/readyz")[1]
        plane.install_crd()
        wait_for(lambda: operator.get("/readyz") == (200, "ok\n"), "the operator to be ready again", operator)
        operator.send(signal.SIGTERM)
        assert operator.wait() == 0


def test_a_right_that_is_missing_in_one_namespace_is_named_and_the_other_namespace_goes_on(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """With the chart's own roles, of which a person took the binding in one namespace away."""
    plane = control_plane
    plane.install_crd()
    here, there = (
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "rights-"}})["metadata"]["name"] for _ in range(2)
    )
    chosen = {"watchNamespaces": [here, there], "crds": {"enabled": False}, "rbac": {"aggregate": False}}
    objects = render(chosen, release=here)
    rights = [
        obj for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding") for obj in of_kind(objects, kind)
    ]
    account = next(obj["metadata"]["name"] for obj in of_kind(objects, "ServiceAccount"))
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": rights})
    plane.kubectl("create", "namespace", NAMESPACE, check=False)
    plane.kubectl("apply", "-f", "-", input=everything)
    plane.kubectl("delete", "rolebinding", account, "-n", there)

    def accepted(namespace: str) -> dict[str, Any]:
        found = json.loads(plane.kubectl("get", "dlj", "lm", "-n", namespace, "-o", "json").stdout)
        conditions: dict[str, dict[str, Any]] = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        return conditions.get("Accepted", {})

    def is_accepted(namespace: str) -> bool:
        return accepted(namespace).get("status") == "True"

    try:
        for namespace in (here, there):
            job = a_manifest("lm", pools=[cpu_pool(max=2)])
            plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job))
        kubeconfig = plane.kubeconfig_for(plane.token(NAMESPACE, account), here)
        watched = ("--watch-namespace", here, "--watch-namespace", there)
        options = (*watched, "--leader-elect-namespace", NAMESPACE, "--leader-elect-lease-name", account)
        with replica(tmp_path, "operator", kubeconfig, *options) as operator:
            operator.wait_said(f"watching secrets in {there} is forbidden: .*cannot list resource .secrets.")
            wait_for(lambda: is_accepted(here), f"the job in {here}", operator)
            status, text = operator.get("/readyz")
            assert (status, text.partition("\n")[0]) == (200, "ok"), text
            assert f"the operator may not read secrets in namespace {there}" in text
            assert here not in re.sub(r"system:serviceaccount:\S+", "", text)
            assert accepted(there) == {}  # nor may it see that job
            plane.kubectl("apply", "-f", "-", input=everything)
            wait_for(lambda: is_accepted(there), f"the job in {there}", operator)
            wait_for(lambda: operator.get("/readyz") == (200, "ok\n"), "the operator to be ready", operator)
            # Not a word more: one right of several, which the condition then names.
            role = json.loads(plane.kubectl("get", "role", account, "-n", there, "-o", "json").stdout)
            less = [rule for rule in role["rules"] if rule["resources"] != ["secrets"]]
            plane.kubectl("patch", "role", account, "-n", there, "--type=merge", "-p", json.dumps({"rules": less}))
            operator.send(signal.SIGTERM)
            assert operator.wait() == 0
        alone = (*watched[2:], *options[4:])
        with replica(tmp_path, "alone", kubeconfig, *alone) as last:  # nowhere else may it read all that it needs
            wait_for(lambda: last.get("/readyz")[0] == 503, "the operator of this one namespace to be unready", last)
            wait_for(lambda: f"may not read secrets in namespace {there}" in last.get("/readyz")[1], "the right to be named", last)
        with replica(tmp_path, "successor", kubeconfig, *options) as successor:
            wait_for(lambda: accepted(there).get("reason") == "RightsMissing", "the condition to name the right", successor)
            assert f"may not read secrets in namespace {there}" in accepted(there)["message"]
            assert is_accepted(here)
    finally:
        plane.kubectl("delete", "-f", "-", "--wait=false", "--ignore-not-found", input=everything)
        plane.kubectl("delete", "namespace", here, there, "--wait=false")


FEW_FILES = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); "
FEW_FILES += "runpy.run_module('diloco_operator.program.main', run_name='__main__')"


def test_forty_namespaces_leave_connections_for_writes(control_plane: ControlPlane, tmp_path: Path) -> None:
    """More watches than the 256 connections that requests share: 7 in each namespace. All but one of the namespaces do not exist."""
    plane = control_plane
    plane.install_crd()
    namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "watched-"}})["metadata"]["name"]
    watched = [argument for index in range(39) for argument in ("--watch-namespace", f"absent-{index}")]
    options = ("--watch-namespace", namespace, *watched, "--leader-elect-namespace", namespace)
    manifest = json.dumps(a_manifest("lm", pools=[cpu_pool(max=2)]))
    plane.kubectl("apply", "-n", namespace, "-f", "-", input=manifest)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(plane.kubectl("get", "dlj", "lm", "-n", namespace, "-o", "json").stdout).get("status", {})
        return found

    try:
        with replica(tmp_path, "operator", plane.kubeconfig, *options) as operator:
            said = operator.wait_said(r"^(\d+) watches, each over a connection of its own")
            assert int(said[1]) > 256
            wait_for(status, "the job to have a status", operator)
            assert operator.metric("diloco_operator_build_info", version=version("diloco-operator")) == 1
            queued = plane.kubectl(
                "get", "dlj", "-n", namespace, "-o", "name", "--field-selector", "status.state=Queued,spec.suspend=false"
            )
            assert queued.stdout == "dilocojob.diloco.dev/lm\n"
        with replica(tmp_path, "confined", plane.kubeconfig, *options, program=("-c", FEW_FILES)) as confined:
            assert confined.wait() == 2
            assert confined.said(r"^\d+ watches need \d+ open files, and this process may have 300: raise its limit") is not None
    finally:
        plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_job_at_rest_costs_no_write(scene: Scene) -> None:
    scene.apply("lm")
    wait_for(lambda: scene.exists("pod", "lm-syncer"), "the syncer's pod", scene.operator)
    scene.wait_settled()
    since = scene.plane.audit_position()
    # A minute of the operator's life, measured by its own renewals of the lease, one every 2 s.
    wait_for(lambda: scene.renewals(since) >= 27, "27 renewals", scene.operator)
    assert scene.writes(since) == []


def test_what_a_user_adds_stays(scene: Scene) -> None:
    scene.apply("lm")
    wait_for(lambda: scene.exists("pod", "lm-syncer"), "the syncer's pod", scene.operator)
    scene.wait_settled()
    for kind, name in (("pod", "lm-syncer"), ("service", "lm"), ("configmap", "lm-job"), ("dilocojob", "lm")):
        scene.plane.kubectl("label", kind, name, "team=red", "-n", scene.namespace)
        scene.plane.kubectl("annotate", kind, name, "example.com/note=kept", "-n", scene.namespace)
    others = {"status": {"conditions": [{"type": "example.com/Audited", "status": "True", "reason": "ByHand", "message": "",
                                         "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}  # fmt: skip
    content = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "metadata": {"name": "lm"}, **others}
    path = f"/apis/diloco.dev/v1alpha1/namespaces/{scene.namespace}/dilocojobs/lm"
    scene.plane.request("PATCH", f"{path}/status?fieldManager=auditor", content, content_type="application/apply-patch+yaml")
    before = scene.get("dilocojob", "lm")
    scene.plane.kubectl("patch", "dilocojob", "lm", "-n", scene.namespace, "--type=merge", "-p", '{"spec": {"suspend": true}}')

    def conditions() -> dict[str, str]:
        return {each["type"]: each["status"] for each in scene.get("dilocojob", "lm")["status"]["conditions"]}

    wait_for(lambda: scene.get("dilocojob", "lm")["status"]["observedGeneration"] > before["status"]["observedGeneration"], "a reconcile")
    scene.wait_settled()
    assert conditions()["example.com/Audited"] == "True"
    for kind, name in (("service", "lm"), ("configmap", "lm-job"), ("dilocojob", "lm")):
        meta = scene.get(kind, name)["metadata"]
        assert meta["labels"]["team"] == "red"
        assert meta["annotations"]["example.com/note"] == "kept"
    managers = {entry["manager"] for entry in scene.get("service", "lm")["metadata"].get("managedFields", ())}
    assert managers <= {"diloco-operator", "kubectl-label", "kubectl-annotate"}


def test_events_read_well_and_repeat_as_a_count(scene: Scene) -> None:
    scene.plane.kubectl("create", "quota", "none", "--hard=pods=0", "-n", scene.namespace)
    scene.apply("lm")

    def repeated() -> bool:
        listed = json.loads(scene.plane.kubectl("get", "events", "-n", scene.namespace, "-o", "json").stdout)["items"]
        return any(event["reason"] == "WriteRefused" and event["count"] >= 3 for event in listed)

    wait_for(repeated, "a rejected write to be reported three times", scene.operator)
    described = scene.plane.kubectl("describe", "dilocojob", "lm", "-n", scene.namespace).stdout
    assert "WriteRefused" in described
    assert "exceeded quota: none" in described
    assert "over" in described  # `3x over 20s`
    table = scene.plane.kubectl("events", "-n", scene.namespace, "--for", "dilocojob/lm").stdout
    [line] = [line for line in table.splitlines() if "WriteRefused" in line and "lm-syncer" in line]
    assert "DiLoCoJob/lm" in line


def test_a_namespace_that_is_deleted_under_it_costs_nothing_else(scene: Scene) -> None:
    scene.apply("lm")
    wait_for(lambda: scene.exists("pod", "lm-syncer"), "the syncer's pod", scene.operator)
    scene.plane.kubectl("delete", "namespace", scene.namespace, "--wait=false")
    wait_for(lambda: not scene.exists("dilocojob", "lm"), "the job to go", scene.operator)
    idle = "no pass to be under way"
    wait_for(lambda: not scene.operator.metric("controller_runtime_active_workers", controller="dilocojob"), idle, scene.operator)
    assert scene.operator.metric("controller_runtime_reconcile_panics_total", controller="dilocojob") == 0
    assert scene.operator.get("/healthz")[0] == 200


def test_foreign_objects_stay_as_they_are_and_are_reported(scene: Scene) -> None:
    """Under the name of every object that a job makes first, something that is not the job's."""
    scene.operator.wait_leads()
    someone: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "00000000-0000-4000-8000-000000000000"}
    scene.plane.kubectl("create", "configmap", "other", "-n", scene.namespace)
    someone["uid"] = scene.get("configmap", "other")["metadata"]["uid"]
    container = {"name": "syncer", "image": "another.example/image:1"}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    taken: dict[str, tuple[str, dict[str, Any]]] = {
        "a": ("ConfigMap", {"metadata": {"name": names.config_map_name("a")}, "data": {"mine": "kept"}}),
        "b": ("Secret", {"metadata": {"name": names.authority_secret_name("b")}, "stringData": {"mine": "kept"}}),
        "c": ("Service", {"metadata": {"name": names.service_name("c")}, "spec": {"ports": [{"port": 80}]}}),
        "d": ("PersistentVolumeClaim", {"metadata": {"name": names.volume_claim_name("d")}, "spec": claim}),
        "e": ("Pod", {"metadata": {"name": names.syncer_pod_name("e")}, "spec": {"containers": [container]}}),
    }
    before = {}
    for job_name, (kind, obj) in taken.items():
        # With our label it is in the operator's caches, without it is not; either way it is not ours.
        labels = {names.LABEL_JOB: job_name} if kind in ("Secret", "Service") else {}
        owned = {"ownerReferences": [someone]} if kind in ("Service", "Pod") else {}
        whole = {"apiVersion": "v1", "kind": kind, **obj, "metadata": {**obj["metadata"], "labels": labels, **owned}}
        scene.plane.kubectl("create", "-n", scene.namespace, "-f", "-", input=json.dumps(whole))
        before[job_name] = scene.get(kind, obj["metadata"]["name"])
        scene.apply(job_name)

    def said(job_name: str) -> str:
        conditions = scene.get("dilocojob", job_name).get("status", {}).get("conditions", ())
        return " ".join(each["message"] for each in conditions if each["status"] == "False")

    def says(job_name: str, words: str) -> bool:
        return re.search(words, said(job_name)) is not None

    for job_name, (kind, obj) in taken.items():
        words = (
            rf"{kind} \S*{obj['metadata']['name']} exists and (does not belong to this job; |is not this job's: )give the job another name"
        )
        wait_for(functools.partial(says, job_name, words), f"job {job_name} to say {words}", scene.operator)
    for job_name, (kind, obj) in taken.items():
        after = scene.get(kind, obj["metadata"]["name"])
        for each in ("data", "spec"):
            assert after.get(each) == before[job_name].get(each)
        for each in ("uid", "labels", "ownerReferences"):
            assert after["metadata"].get(each) == before[job_name]["metadata"].get(each)
        if kind != "PersistentVolumeClaim":  # of which its protection and its binder make notes
            managers = {entry["manager"] for entry in after["metadata"].get("managedFields", ())}
            assert names.FIELD_MANAGER not in managers
    # After the steps in the message the job runs.
    scene.plane.kubectl("delete", "configmap", names.config_map_name("a"), "-n", scene.namespace)
    scene.plane.kubectl("patch", "dlj", "a", "-n", scene.namespace, "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 9999}}')
    wait_for(lambda: scene.exists("pod", names.syncer_pod_name("a")), "the syncer's pod of job a", scene.operator)


def test_a_job_of_another_controller_is_left_alone_with_all_that_carries_our_labels(scene: Scene) -> None:
    scene.operator.wait_leads()
    scene.apply("theirs", managedBy="kueue.x-k8s.io/multikueue")
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "theirs", "controller": True}
    owner["uid"] = scene.get("dilocojob", "theirs")["metadata"]["uid"]
    labels = {
        names.LABEL_JOB: "theirs",
        names.LABEL_COMPONENT: names.COMPONENT_LEARNER,
        names.LABEL_UNIT: "cpu-0",
        names.LABEL_ATTEMPT: "1",
    }
    meta: dict[str, Any] = {"name": "theirs-cpu-0-a1-0", "labels": labels, "ownerReferences": [owner]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "learner", "image": "i"}]}}
    scene.plane.kubectl("create", "-n", scene.namespace, "-f", "-", input=json.dumps(pod))
    # One of its own, applied later: when that has its pod, the other has had its turn as well.
    scene.apply("ours")
    wait_for(lambda: scene.exists("pod", "ours-syncer"), "the syncer's pod", scene.operator)
    scene.plane.kubectl("patch", "dlj", "theirs", "-n", scene.namespace, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    scene.wait_settled()
    assert "deletionTimestamp" not in scene.get("pod", meta["name"])["metadata"]
    assert "status" not in scene.get("dilocojob", "theirs")
    events = (e for e in scene.plane.audit_events(0) if e["user"]["username"] == f"system:serviceaccount:{scene.namespace}:operator")
    assert [e["objectRef"] for e in events if e["verb"] in _WRITES and e["objectRef"].get("name", "").startswith("theirs")] == []


def test_memory_stays_small_at_rest(scene: Scene) -> None:
    scene.operator.wait_leads()
    assert scene.operator.resident_mib <= 150


def test_only_a_service_account_that_may_get_metrics_reads_them(control_plane: ControlPlane, tmp_path: Path) -> None:
    plane = control_plane
    plane.install_crd()
    namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "metrics-"}})["metadata"]["name"]
    for account in ("reader", "other"):
        plane.kubectl("create", "serviceaccount", account, "-n", namespace)
    role = f"{namespace}-reader"
    plane.kubectl("create", "clusterrole", role, "--verb=get", "--non-resource-url=/metrics")
    plane.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:reader")
    tokens = {account: plane.kubectl("create", "token", account, "-n", namespace).stdout.strip() for account in ("reader", "other")}
    options = ("--metrics-auth", "--no-leader-elect", "--watch-namespace", namespace)
    with replica(tmp_path, "operator", plane.kubeconfig, *options) as operator:
        assert [operator.scrape(token) for token in ("", "made-up", tokens["other"], tokens["reader"])] == [401, 401, 403, 200]
