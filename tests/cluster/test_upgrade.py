"""What the operator of the last landed commit leaves on a real API server: this operator takes it over and restarts nothing.

`tests/cluster/last-landed` names the commit. Its sources come from git, and its objects are made here each time.

See docs/decisions/0136-upgrades-restart-nothing.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import CRD, ROOT, ControlPlane
from builders.jobs import Obj, with_field
from builders.left_objects import the_fleet, the_jobs
from builders.operator_process import OperatorReplica, replica, wait_for
from builders.pods import ended_status, running_status
from builders.watched_syncer import WatchedSyncer
from diloco.contract import Exit, Result
from diloco_operator.api import names

LAST_LANDED = Path(__file__).parent / "last-landed"
SOURCES = ("controller", "runtimes", "crds", "pyproject.toml")
OBJECTS = ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims")
LEFT = {
    "mixed": {
        "v5p-0": "Training",
        "v5p-1": "Training",
        "h100-0": "Training",
        "h100-1": "BackingOff",
        "cpu-0": "Training",
        "cpu-1": "Failed",
    },
    "own-syncer": {"v6e-0": "Training"},
    "paused": {"cpu-0": "Pending"},
    "done": {"v5p-0": "Completed"},
}


# --- the last landed commit -------------------------------------------------------------------------------------------
def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last landed commit."""
    commit = LAST_LANDED.read_text().strip()
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        pytest.fail(f"commit {commit}, which {LAST_LANDED.name} names, is not in this clone: git fetch --depth=1 origin {commit}")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == b"false":  # a shallow clone does not know its ancestors
        known = git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
        assert known, f"commit {commit}, which {LAST_LANDED.name} names, is no ancestor of HEAD: write the newest commit of main there"
    archive = git("archive", commit, *SOURCES)
    assert archive.returncode == 0, archive.stderr.decode()
    folder = tmp_path_factory.mktemp("landed")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder


def environment_of(sources: Path) -> dict[str, str]:
    """In which this interpreter runs the operator of `sources`."""
    environment = {"PYTHONPATH": os.pathsep.join(str(sources / each) for each in ("controller", "runtimes"))}
    program = "import diloco, diloco_operator; print(*diloco.__path__, *diloco_operator.__path__)"
    found = subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(sources / "runtimes" / "diloco"), str(sources / "controller" / "diloco_operator")]
    return environment


def operator_of(sources: Path) -> tuple[str, ...]:
    """What Python runs for the command `diloco-operator` of `sources`, whichever module has it there."""
    scripts = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["diloco-operator"].partition(":")
    return "-c", f"from {module} import {function}; {function}()"


# --- the cluster --------------------------------------------------------------------------------------------------------
class Cluster:
    """A namespace with the jobs; the test does what its kubelets and syncers would do."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self.syncers: dict[str, WatchedSyncer] = {}
        self._folder = folder

    def path(self, plural: str, name: str = "") -> str:
        group = "/apis/diloco.dev/v1alpha1" if plural == "dilocojobs" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def all_of(self, plural: str) -> list[Obj]:
        found: list[Obj] = self.plane.request("GET", self.path(plural))["items"]
        return found

    def create(self, job: Obj) -> None:
        job["metadata"]["namespace"] = self.namespace
        self.plane.request("POST", self.path("dilocojobs"), job)

    def job(self, name: str) -> Obj:
        found: Obj = self.plane.request("GET", self.path("dilocojobs", name))
        return found

    def change(self, job: str, field: str, value: object) -> None:
        """The user edits one field of a job."""
        spec = with_field(self.job(job), field, value)["spec"]
        self.plane.request("PATCH", self.path("dilocojobs", job), {"spec": spec}, content_type="application/merge-patch+json")

    def units(self, job: str) -> dict[str, str]:
        """Unit -> state."""
        return {unit["name"]: unit["state"] for unit in self.job(job).get("status", {}).get("units", ())}

    def conditions(self) -> dict[str, list[Obj]]:
        """Return the state and the conditions of each job."""
        return {job["metadata"]["name"]: [job["status"]["state"], *job["status"]["conditions"]] for job in self.all_of("dilocojobs")}

    def objects(self) -> dict[str, tuple[str, bool, Obj]]:
        """`plural name` -> (uid, whether its deletion was asked for, spec and data) of all objects of the jobs."""
        found = {}
        for plural in OBJECTS:
            for obj in self.all_of(plural):
                meta = obj["metadata"]
                if names.LABEL_JOB in meta.get("labels", {}):
                    content = {field: obj.get(field) for field in ("spec", "data")}
                    found[f"{plural} {meta['name']}"] = (meta["uid"], "deletionTimestamp" in meta, content)
        return found

    def until(self, what: str, holds: Callable[[], object], operator: OperatorReplica) -> None:
        """Wait until `holds()`; the kubelets and the syncers work meanwhile."""

        def worked() -> object:
            self._work()
            return holds()

        wait_for(worked, what, operator)

    def ends(self, pod: str, code: int, message: str = "") -> None:
        """The main container of a pod exits."""
        found = self.plane.request("GET", self.path("pods", pod))
        self._set_status(found, ended_status(found, code, found["metadata"]["creationTimestamp"], message=message))

    def _work(self) -> None:
        """What kubelets do next: what is being deleted ends, what is bound runs."""
        pods = self.all_of("pods")
        for pod in pods:
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                self.plane.kubectl("delete", "pod", meta["name"], "-n", self.namespace, "--grace-period=0", "--force", check=False)
            elif pod["status"]["phase"] == "Pending" and "nodeName" in pod["spec"]:
                syncer = self._syncer(meta["labels"][names.LABEL_JOB])
                self._set_status(pod, running_status(pod, meta["creationTimestamp"], ip=syncer.address))
        for job, syncer in self.syncers.items():
            mine = [pod["metadata"]["labels"] for pod in pods if pod["metadata"]["labels"][names.LABEL_JOB] == job and _runs(pod)]
            syncer.attempts = {each[names.LABEL_UNIT]: int(each[names.LABEL_ATTEMPT]) for each in mine if names.LABEL_UNIT in each}

    def _set_status(self, pod: Obj, status: Obj) -> None:
        kept = [each for each in pod["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
        body = {"status": {**status, "conditions": [*kept, *status.get("conditions", ())]}}
        path = f"{self.path('pods', pod['metadata']['name'])}/status"
        self.plane.request("PATCH", path, body, content_type="application/merge-patch+json")

    def _syncer(self, job: str) -> WatchedSyncer:
        if job not in self.syncers:
            secret = self.plane.request("GET", self.path("secrets", names.syncer_secret_name(job)))
            self.syncers[job] = WatchedSyncer(self._folder / job, secret["data"], len(self.syncers))
        return self.syncers[job]


def _runs(pod: Obj) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
def cluster(landed: Path, tmp_path: Path) -> Iterator[Cluster]:
    """With the CRD of the last landed commit, and nodes. A control plane of its own: nodes and leftovers of other tests would be its
    operators' as well."""
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path / "plane", audit=True))
        plane.install_crd(landed / "crds" / CRD.name)
        namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "upgrade-"}})["metadata"]["name"]
        plane.kubectl(
            "create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", f"--group=system:serviceaccounts:{namespace}"
        )
        plane.kubectl("create", "serviceaccount", "operator", "-n", namespace)
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
        plane.kubectl("create", "priorityclass", "research", "--value=1000")
        plane.provide_volumes(tmp_path / "volumes", len(LEFT), prefix=namespace)
        for node in the_fleet():
            plane.add_node(node["metadata"]["name"], node["metadata"]["labels"], node["status"]["capacity"], wait=False)
        found = Cluster(plane, namespace, tmp_path)
        try:
            yield found
        finally:
            for syncer in found.syncers.values():
                syncer.close()


def play(cluster: Cluster, operator: OperatorReplica) -> None:
    """Wait until the jobs are as `LEFT` says."""
    mixed, own, paused, done = the_jobs()
    cluster.create(done)
    cluster.until("done to train", lambda: cluster.units("done") == {"v5p-0": "Training"}, operator)
    for pod in cluster.all_of("pods"):
        if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
            cluster.ends(pod["metadata"]["name"], 0)
    steps = done["spec"]["training"]["steps"]
    result = Result(step=steps, steps=steps, tokens=1000, loss=2.0, snapshot=f"snapshots/snapshot-00000001-t{steps}")
    cluster.ends(names.syncer_pod_name("done"), 0, result.model_dump_json(by_alias=True))
    cluster.until("done to be complete", lambda: cluster.job("done")["status"]["state"] == "Complete", operator)
    cluster.create(paused)
    cluster.until("paused to train", lambda: cluster.units("paused") == {"cpu-0": "Training"}, operator)
    cluster.change("paused", "spec.suspend", True)
    cluster.until("paused to be suspended", lambda: cluster.job("paused")["status"]["state"] == "Suspended", operator)
    cluster.create(own)
    cluster.create(mixed)
    cluster.until("mixed to train", lambda: cluster.units("mixed") == dict.fromkeys(LEFT["mixed"], "Training"), operator)
    cluster.ends("mixed-cpu-1-a1-0", Exit.REFUSED_LAYOUT)
    cluster.ends("mixed-h100-1-a1-1", 1)  # the first failure has no pause
    cluster.until("h100-1 to train again", lambda: _attempt(cluster, "mixed", "h100-1") == ("Training", 2), operator)
    cluster.ends("mixed-h100-1-a2-1", 1)
    cluster.until("all jobs to be as they are left", lambda: {job: cluster.units(job) for job in LEFT} == LEFT, operator)


# --- the upgrade --------------------------------------------------------------------------------------------------------
@pytest.mark.core
def test_an_upgrade_restarts_and_rewrites_nothing_and_edits_are_rolled_out(cluster: Cluster, landed: Path, tmp_path: Path) -> None:
    plane, namespace = cluster.plane, cluster.namespace
    kubeconfig = plane.kubeconfig_for(plane.token(namespace, "operator"), namespace)
    options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace)
    since = plane.audit_position()

    def writes() -> list[str]:
        user = f"system:serviceaccount:{namespace}:operator"
        asked = (event for event in plane.audit_events(since) if event["user"]["username"] == user)
        return [_write(event) for event in asked if event["verb"] in ("create", "update", "patch", "delete")]

    def settled() -> bool:
        """It has renewed its lease five times and written nothing else meanwhile."""
        return len(writes()) >= 5 and set(writes()[-5:]) == {"update leases"}

    with replica(tmp_path, "landed", kubeconfig, *options, environment=environment_of(landed), program=operator_of(landed)) as operator:
        play(cluster, operator)
        cluster.until("the operator to have nothing to write", settled, operator)
        operator.send(signal.SIGTERM)
        assert operator.wait() == 0

    before, conditions = cluster.objects(), cluster.conditions()
    units = {name: cluster.job(name)["status"]["units"] for name in LEFT}
    assert len([name for name in before if name.startswith("pods ")]) > 10
    plane.install_crd()
    since = plane.audit_position()
    heard = {job: cluster.syncers[job].watches for job in ("mixed", "own-syncer")}
    with replica(tmp_path, "present", kubeconfig, *options) as operator:
        operator.wait_leads()
        cluster.until(
            "the syncers to be heard", lambda: all(cluster.syncers[job].watches > count for job, count in heard.items()), operator
        )
        cluster.until("the operator to have nothing to write", settled, operator)
        assert cluster.objects() == before
        assert cluster.conditions() == conditions
        assert {name: cluster.job(name)["status"]["units"] for name in LEFT} == units
        allowed = {"create leases", "update leases", "patch leases", "create events", "update dilocojobs/status", "patch secrets"}
        assert set(writes()) <= allowed
        before = cluster.objects()

        cluster.change("own-syncer", "spec.pools[0].template.spec.containers[0].image", "registry.example/train:2")
        cluster.until("v6e-0 to train from the new image", lambda: _attempt(cluster, "own-syncer", "v6e-0") == ("Training", 2), operator)
        after = cluster.objects()
        assert {name for name in before if after.get(name) != before[name]} == {
            "pods own-syncer-v6e-0-a1-0",
            "secrets own-syncer-learners-v6e-0",
        }

        cluster.change("mixed", "spec.training.steps", 4800)
        syncer = f"pods {names.syncer_pod_name('mixed')}"
        cluster.until("another syncer", lambda: cluster.objects().get(syncer, before[syncer])[0] != before[syncer][0], operator)
        cluster.change("paused", "spec.suspend", False)
        cluster.until("paused to train", lambda: cluster.units("paused") == {"cpu-0": "Training"}, operator)
        learners = {name for name in after if name.startswith("pods mixed-") and name != syncer}
        assert {name: cluster.objects().get(name) for name in learners} == {name: after[name] for name in learners}


def _attempt(cluster: Cluster, job: str, unit: str) -> tuple[str, int]:
    """State and attempt of the unit."""
    [found] = [each for each in cluster.job(job)["status"]["units"] if each["name"] == unit]
    return found["state"], found["attempt"]


def _write(event: dict[str, Any]) -> str:
    what = event["objectRef"]
    return f"{event['verb']} {what['resource']}" + (f"/{what['subresource']}" if what.get("subresource") else "")
