"""Releases on a real API server with the real Helm: install, upgrade, roll back, uninstall, and what is left then."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.chart import CHART, RELEASE, VALUES, of_kind
from builders.control_plane import ROOT, CommandFailed, ControlPlane, RequestFailed
from builders.operator_process import replica

pytestmark = pytest.mark.xdist_group("chart")  # one control plane for all of them

STAYS = {
    "customresourcedefinition.apiextensions.k8s.io/dilocojobs.diloco.dev",
    "dilocojob.diloco.dev/bytes-lm",
    "lease.coordination.k8s.io/diloco-operator",
}
"""What docs/install.md says that uninstalling leaves."""
MADE_BY_KUBERNETES = ("events", "apiservices", "ipaddresses", "servicecidrs")
"""By itself, and when it gets to it."""
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dilocojobs.diloco.dev"


@pytest.fixture
def space(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one release; afterwards no release, no job and no CRD of it is left for the next test."""
    name = f"install-{zlib.crc32(request.node.name.encode()):08x}"
    plane.kubectl("create", "namespace", name)
    for own in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
        plane.kubectl("wait", "--for=create", own, "--namespace", name, "--timeout=180s")
    yield name
    plane.helm("uninstall", RELEASE, "--namespace", name, "--ignore-not-found")
    plane.kubectl("delete", "crd", "dilocojobs.diloco.dev", "--ignore-not-found")
    plane.kubectl("delete", "namespace", name, "--wait=false")


def install(plane: ControlPlane, namespace: str, *args: str, chart: Path = CHART) -> str:
    """What Helm says about it. No pod runs here, so nothing waits for one."""
    return plane.helm("upgrade", "--install", RELEASE, str(chart), "--namespace", namespace, *args).stdout


def get(plane: ControlPlane, path: str) -> Any:
    """The object, or None."""
    try:
        return plane.request("GET", path)
    except RequestFailed as error:
        if error.code == 404:
            return None
        raise


def deployment(plane: ControlPlane, namespace: str) -> Any:
    return plane.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{RELEASE}")


def arguments(plane: ControlPlane, namespace: str) -> list[str]:
    found: list[str] = deployment(plane, namespace)["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def apply_job(plane: ControlPlane, namespace: str) -> str:
    """The quickstart's job; its uid."""
    plane.wait_until_established("dilocojobs.diloco.dev")
    plane.kubectl("apply", "--namespace", namespace, "-f", str(ROOT / "examples" / "quickstart.yaml"))
    return job_uid(plane, namespace)


def job_uid(plane: ControlPlane, namespace: str) -> str:
    done = plane.kubectl("get", "dlj", "bytes-lm", "--namespace", namespace, "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
    return done.stdout


def left(plane: ControlPlane, manifest: str) -> list[str]:
    """Which objects of a manifest are in the cluster, as KIND/NAME."""
    done = plane.kubectl("get", "--ignore-not-found", "-f", "-", "-o", "name", input=manifest)
    return done.stdout.split()


def everything(plane: ControlPlane, namespace: str) -> set[str]:
    """All objects in the namespace and those of the whole cluster, as KIND/NAME, without events and what Kubernetes makes by itself."""
    found = set()
    for scope, options in (("true", ("--namespace", namespace)), ("false", ())):
        kinds = plane.kubectl("api-resources", f"--namespaced={scope}", "--verbs=list", "-o", "name").stdout.split()
        wanted = ",".join(kind for kind in kinds if kind.partition(".")[0] not in MADE_BY_KUBERNETES)
        found |= set(plane.kubectl("get", wanted, *options, "-o", "name", "--ignore-not-found").stdout.split())
    return found


@pytest.mark.core
def test_a_release_lives_from_install_to_uninstall_and_its_jobs_outlive_it(plane: ControlPlane, space: str, tmp_path: Path) -> None:
    before = everything(plane, space)
    said = install(plane, space)
    with replica(tmp_path, "released", plane.kubeconfig, "--watch-namespace", space, "--leader-elect-namespace", space) as operator:
        operator.wait_leads()  # the pod's program; no kubelet runs here
    assert f"is installed as {RELEASE} in namespace {space}" in said
    assert f"rollout status deployment/{RELEASE}" in said
    uid = apply_job(plane, space)
    manifest = plane.helm("get", "manifest", RELEASE, "--namespace", space).stdout
    objects = [obj for obj in yaml.safe_load_all(manifest) if obj]
    assert len(left(plane, manifest)) == len(objects)

    # Upgrade: what changed changes; what another manager wrote beside it stays; the CRD is the same object.
    plane.kubectl("annotate", "--namespace", space, f"deployment/{RELEASE}", "example.com/owner=team-a")
    crd = plane.request("GET", CRD)["metadata"]
    install(plane, space, "--set", "replicas=2,logging.level=debug")
    assert deployment(plane, space)["spec"]["replicas"] == 2
    assert "--log-level=debug" in arguments(plane, space)
    assert deployment(plane, space)["metadata"]["annotations"]["example.com/owner"] == "team-a"
    assert plane.request("GET", CRD)["metadata"]["uid"] == crd["uid"]

    # A value that is wrong changes nothing.
    with pytest.raises(CommandFailed, match="'levle' not allowed"):
        install(plane, space, "--set", "logging.levle=info")
    assert "--log-level=debug" in arguments(plane, space)

    plane.helm("rollback", RELEASE, "1", "--namespace", space)
    assert deployment(plane, space)["spec"]["replicas"] == 1
    assert "--log-level=info" in arguments(plane, space)
    assert deployment(plane, space)["metadata"]["annotations"]["example.com/owner"] == "team-a"
    history = json.loads(plane.helm("history", RELEASE, "--namespace", space, "-o", "json").stdout)
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "deployed"]

    plane.helm("uninstall", RELEASE, "--namespace", space, "--wait", "--timeout", "180s")
    # Helm waits for what is in the release, and not for what controllers have made of it.
    plane.wait_for(lambda: everything(plane, space) - before <= STAYS, "the pods and endpoints of the release to be gone")
    assert everything(plane, space) - before == STAYS
    assert job_uid(plane, space) == uid

    # And a release of the same name takes it over again, jobs and all.
    install(plane, space)
    assert job_uid(plane, space) == uid


def test_without_keep_the_resource_and_every_job_go_with_the_release(plane: ControlPlane, space: str) -> None:
    said = install(plane, space, "--set", "crds.keep=false")
    assert "deletes the DiLoCoJob resource and with it EVERY job" in said
    assert "until you remove their finalizer: kubectl patch dlj JOB" in said
    apply_job(plane, space)
    plane.helm("uninstall", RELEASE, "--namespace", space, "--wait", "--timeout", "180s")
    assert get(plane, CRD) is None


def test_the_resource_is_handed_over_only_once_helm_keeps_it(plane: ControlPlane, space: str) -> None:
    """Helm deletes what left the release, unless the object in the cluster says that it stays."""
    install(plane, space, "--set", "crds.keep=false")
    uid = apply_job(plane, space)
    with pytest.raises(CommandFailed, match="would delete the DiLoCoJob resource and with it every job of the cluster"):
        install(plane, space, "--set", "crds.enabled=false,crds.keep=true")
    install(plane, space, "--set", "crds.keep=true")
    for _ in range(2):  # the second upgrade finds a resource that is no longer in the release
        install(plane, space, "--set", "crds.enabled=false")
        assert job_uid(plane, space) == uid


@pytest.mark.core
def test_an_upgrade_brings_a_newer_crd_to_the_jobs_that_are_there(plane: ControlPlane, space: str, tmp_path: Path) -> None:
    """Helm's own crds/ folder would never be upgraded, which is why the CRD is a template."""
    older = tmp_path / CHART.name
    shutil.copytree(CHART, older)
    (file,) = (older / "files" / "crds").iterdir()
    crd = yaml.safe_load(file.read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    dropped = columns.pop()["name"]
    file.write_text(yaml.safe_dump(crd, sort_keys=False))
    install(plane, space, chart=older)
    uid = apply_job(plane, space)
    assert dropped not in columns_of(plane)
    install(plane, space)
    assert dropped in columns_of(plane)
    assert job_uid(plane, space) == uid


def test_a_field_that_a_person_took_over_is_not_taken_back_without_being_told(plane: ControlPlane, space: str) -> None:
    install(plane, space)
    plane.kubectl("scale", "--namespace", space, f"deployment/{RELEASE}", "--replicas=3")
    with pytest.raises(CommandFailed, match=r"conflict with \"kubectl\".*\.spec\.replicas"):
        install(plane, space)
    assert deployment(plane, space)["spec"]["replicas"] == 3
    install(plane, space, "--force-conflicts")
    assert deployment(plane, space)["spec"]["replicas"] == 1


def test_without_an_election_an_upgrade_ends_the_old_operator_before_the_new_one_begins(plane: ControlPlane, space: str) -> None:
    """Also of a release that had one."""

    def most_at_once() -> object:
        return deployment(plane, space)["spec"]["strategy"]["rollingUpdate"]["maxSurge"]

    install(plane, space)
    assert most_at_once() == "25%", "the default: one more pod"
    install(plane, space, "--set", "leaderElection.enabled=false")
    assert most_at_once() == 0
    install(plane, space, "--set", "leaderElection.enabled=true")
    assert most_at_once() == "25%"


def columns_of(plane: ControlPlane) -> list[str]:
    return [column["name"] for column in plane.request("GET", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]]


def test_a_foreign_crd_is_taken_over_only_on_request(plane: ControlPlane, space: str) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    with pytest.raises(CommandFailed, match="invalid ownership metadata"):
        install(plane, space)
    install(plane, space, "--take-ownership")
    assert plane.request("GET", CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_controllers_write_no_field_that_the_chart_sets(plane: ControlPlane, space: str) -> None:
    """Helm applies server-side: two managers of one field would be a conflict at the next upgrade."""
    prepare = ["team-a", "team-b", "team-c"]
    for name in prepare:
        plane.kubectl("create", "namespace", name, check=False)  # other tests of the chart use them too
    values = [
        f"--values={VALUES / 'everything.yaml'}",
        "--set",
        "metrics.serviceMonitor.enabled=false,metrics.prometheusRule.enabled=false,priorityClassName=system-cluster-critical",
    ]
    install(plane, space, *values)
    path = f"/apis/apps/v1/namespaces/{space}/deployments/diloco-everything"
    plane.wait_for(lambda: plane.request("GET", path).get("status", {}).get("observedGeneration") == 1, "the deployment to be seen")
    manifest = plane.helm("get", "manifest", RELEASE, "--namespace", space).stdout
    listed = json.loads(plane.kubectl("get", "-f", "-", "-o", "json", "--show-managed-fields", input=manifest).stdout)["items"]
    assert {"Deployment", "CustomResourceDefinition", "ClusterRole", "PodDisruptionBudget", "NetworkPolicy"} <= {
        obj["kind"] for obj in listed
    }
    for obj in listed:
        ours: set[Any] = set()
        others: set[Any] = set()
        for entry in obj["metadata"]["managedFields"]:
            (ours if entry["manager"].startswith("helm") else others).update(fields(entry["fieldsV1"]))
        assert ours, f"{obj['kind']} {obj['metadata']['name']} is not Helm's"
        assert not ours & others, f"{obj['kind']} {obj['metadata']['name']}: {sorted(ours & others)}"
    # The Deployment has been through its controller, so there was something to clash with.
    managers = {entry["manager"] for obj in of_kind(listed, "Deployment") for entry in obj["metadata"]["managedFields"]}
    assert "kube-controller-manager" in managers
    install(plane, space, *values)


def fields(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the leaves of a managedFields entry."""
    for key, inner in tree.items():
        if inner:
            yield from fields(inner, f"{path}/{key}")
        elif key != ".":
            yield f"{path}/{key}"


def test_notes_follow_the_values(plane: ControlPlane, space: str) -> None:
    said = install(plane, space, "--dry-run=client", "--set", "crds.enabled=false,rbac.create=false,networkPolicy.enabled=true")
    assert "crds.enabled is false" in said
    assert f"the service account {RELEASE} needs the rights" in said
    assert f"It works on jobs in namespace {space} only." in said
    assert f"kubectl --namespace {space} apply -f examples/cpu.yaml" in said
    assert "jobNamespaces" not in said.split("NOTES:")[1]
    said = install(plane, space, "--dry-run=client", "--set", "watchNamespaces={team-a,team-b},networkPolicy.enabled=true")
    assert "It works on jobs in the namespaces team-a, team-b only." in said
    assert "kubectl --namespace team-a apply -f examples/cpu.yaml" in said
    assert "jobNamespaces" not in said.split("NOTES:")[1]
    said = install(plane, space, "--dry-run=client", "--set", "watchAnyNamespace=true,networkPolicy.enabled=true")
    assert "It works on jobs in all namespaces, and may read every Secret of the cluster" in said
    assert "list the namespaces of your jobs in networkPolicy.jobNamespaces" in said


def test_an_upgrade_does_not_take_namespaces_from_a_release_that_watched_all(plane: ControlPlane, space: str) -> None:
    """Before, empty watchNamespaces meant all. The jobs elsewhere would train on without an operator, without a word."""
    install(plane, space, "--set", "watchAnyNamespace=true")
    with pytest.raises(CommandFailed, match=rf"this release watched all namespaces until now.*{space} alone.*watchAnyNamespace=true"):
        install(plane, space, "--set", "watchAnyNamespace=false")
    assert get(plane, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/roles/{RELEASE}") is None
    install(plane, space, "--set", "watchAnyNamespace=true,logging.level=debug")
    install(plane, space, "--set", f"watchAnyNamespace=false,watchNamespaces={{{space}}}")
    assert f"--watch-namespace={space}" in arguments(plane, space)
    install(plane, space, "--set", "watchNamespaces=null")  # from then on empty means what it says
    assert f"--watch-namespace={space}" in arguments(plane, space)
