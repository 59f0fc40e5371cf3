"""`kubectl diloco` as kubectl runs it, against a real API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from builders.cluster_scenes import owner_of
from builders.control_plane import PROGRAMS, CommandFailed, ControlPlane
from builders.jobs import Obj, a_manifest
from builders.pods import a_learner_pod
from builders.simulated_kubelet import SimulatedKubelet, serve_logs
from builders.statuses import a_state
from click.testing import CliRunner, Result
from diloco_cli.kubectl import main as kubectl

NODE = "plugin-tpu"


@dataclass
class Team:
    """A namespace with the job `bytes-lm`, whose unit v5p-0 runs attempt 2 on two hosts, as an operator would report it."""

    plane: ControlPlane
    namespace: str
    kubelet: SimulatedKubelet

    def diloco(self, *args: str) -> str:
        """What `kubectl diloco ARGS` says on standard output. In this process: it takes a second to start one."""
        done = self._run(*args)
        assert done.exit_code == 0, done.output
        return done.stdout

    def fails(self, *args: str) -> str:
        """What it says on standard error."""
        done = self._run(*args)
        assert done.exit_code == 1, done.output
        return done.stderr

    def _run(self, *args: str) -> Result:
        return CliRunner(env={"KUBECONFIG": str(self.plane.kubeconfig)}).invoke(kubectl.main, [*args, "-n", self.namespace])

    def job(self) -> Obj:
        return self.plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{self.namespace}/dilocojobs/bytes-lm")

    def pods(self) -> list[Obj]:
        items: list[Obj] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return items

    def set_status(self, unit: Obj, **conditions: str) -> None:
        when = {"lastTransitionTime": "2026-11-20T21:00:00Z", "observedGeneration": 1}
        shown = [
            {"type": each, "status": value, "reason": f"{each}Reason", "message": f"about {each}", **when}
            for each, value in conditions.items()
        ]
        body = {"status": {**a_state(conditions), "conditions": shown, "units": [{"name": "v5p-0", "pool": "v5p", **unit}]}}
        path = f"/apis/diloco.dev/v1alpha1/namespaces/{self.namespace}/dilocojobs/bytes-lm/status"
        self.plane.request("PATCH", path, body, content_type="application/merge-patch+json")

    def add_pod(self, host: int, attempt: int) -> None:
        meta = {
            key: value
            for key, value in a_learner_pod(host=host, attempt=attempt)["metadata"].items()
            if key in ("name", "labels", "annotations")
        }
        job = self.plane.request("GET", f"/apis/diloco.dev/v1alpha1/namespaces/{self.namespace}/dilocojobs/bytes-lm")
        meta["ownerReferences"] = [owner_of(job)]
        spec = {"containers": [{"name": "learner", "image": "none"}], "nodeName": NODE, "terminationGracePeriodSeconds": 0}
        self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", {"metadata": meta, "spec": spec})


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.install_crd()
    control_plane.add_node(NODE)
    yield control_plane
    control_plane.request("DELETE", f"/api/v1/nodes/{NODE}")


@pytest.fixture
def team(plane: ControlPlane) -> Iterator[Team]:
    name: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "plugin-"}})["metadata"]["name"]
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
    plane.request("POST", f"/apis/diloco.dev/v1alpha1/namespaces/{name}/dilocojobs", a_manifest())
    logs = {f"{name}/bytes-lm-v5p-0-a2-{host}/learner": f"step 1\nstep 2 of host {host}\n".encode() for host in (0, 1)}
    with serve_logs(plane.folder / "server.crt", plane.folder / "server.key", logs) as kubelet:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        }
        plane.request("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, content_type="application/merge-patch+json")
        made = Team(plane, name, kubelet)
        made.set_status({"state": "Training", "attempt": 2, "slice": "np-v5p-1"}, Training="True")
        for host in (0, 1):
            made.add_pod(host, attempt=2)
        yield made
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_status_and_units_tell_what_the_operator_reported(team: Team) -> None:
    shown = team.diloco("status", "bytes-lm")
    assert f"bytes-lm in namespace {team.namespace}\n  Training: about Training\n" in shown
    assert team.diloco("status").splitlines()[0] == shown.splitlines()[0]
    assert json.loads(team.diloco("status", "bytes-lm", "-o", "json"))["units"][0]["slice"] == "np-v5p-1"
    header, row = team.diloco("units", "bytes-lm").splitlines()
    assert header.split()[:4] == ["UNIT", "STATE", "SINCE", "SLICE"]
    assert row.split()[:2] == ["v5p-0", "Training"]


def test_explain_tells_what_a_pool_lacks_and_less_to_a_user_with_rights_in_the_namespace_only(team: Team) -> None:
    message = "pool v5p needs 1 more slice of tpu-v5p 2x2x2; the fleet has no such nodes"
    said = {"reason": "NoMatchingNodes", "message": message, "remedies": ["more nodes"]}
    pools = [{"name": "v5p", "placed": 1, "contributing": 1, **said}]
    status = {"state": "Training", "reason": "QuorumContributing", "pools": pools}
    path = f"/apis/diloco.dev/v1alpha1/namespaces/{team.namespace}/dilocojobs/bytes-lm/status"
    team.plane.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
    shown = team.diloco("explain", "bytes-lm")
    assert "  why not more    NoMatchingNodes: pool v5p needs 1 more slice of tpu-v5p 2x2x2; the fleet has no such nodes\n" in shown
    assert "  what would help - more nodes\n  nodes now       none of tpu-v5p 2x2x2" in shown
    assert json.loads(team.diloco("explain", "bytes-lm", "-o", "json"))["pools"][0]["help"] == ["more nodes"]
    assert 'no DiLoCoJob "none"' in team.fails("explain", "none")

    rights = ("--verb=get,list", "--resource=dilocojobs.diloco.dev,events")
    team.plane.kubectl("create", "role", "reads-jobs", *rights, "-n", team.namespace)
    team.plane.kubectl(
        "create", "rolebinding", "ana", "--role=reads-jobs", f"--serviceaccount={team.namespace}:default", "-n", team.namespace
    )
    token = team.plane.kubectl("create", "token", "default", "-n", team.namespace).stdout.strip()
    hers = CliRunner(env={"KUBECONFIG": str(team.plane.kubeconfig_for(token, f"ana-{team.namespace}"))})
    shown = hers.invoke(kubectl.main, ["explain", "bytes-lm", "-n", team.namespace]).stdout
    assert "  what would help - more nodes\n\nNote: you may not list the nodes of the cluster" in shown


def test_plan_shows_what_the_jobs_of_a_cluster_would_get_and_writes_nothing(team: Team) -> None:
    before = team.plane.kubectl("get", "dilocojobs,pods", "-n", team.namespace, "-o", "json").stdout
    planned = team._run("plan")
    assert planned.exit_code in (0, 1), planned.output
    assert f"bytes-lm in namespace {team.namespace}" in planned.stdout
    assert team.plane.kubectl("get", "dilocojobs,pods", "-n", team.namespace, "-o", "json").stdout == before
    assert "--drain none: there is no node of this name" in team._run("plan", "--drain", "none").stderr


def test_logs_come_from_every_host_of_the_unit(team: Team) -> None:
    shown = team.diloco("logs", "bytes-lm", "v5p-0", "--tail", "1")
    assert shown == "[host 0] step 2 of host 0\n[host 1] step 2 of host 1\n"
    assert team.diloco("logs", "bytes-lm", "v5p-0", "--host", "1", "-f") == "step 1\nstep 2 of host 1\n"
    assert team.kubelet.asked[-1] == (f"/containerLogs/{team.namespace}/bytes-lm-v5p-0-a2-1/learner", {"follow": "true"})
    assert "has only the pods of attempt 2" in team.fails("logs", "bytes-lm", "v5p-0", "--previous")
    assert "there is no pod bytes-lm-syncer now" in team.fails("logs", "bytes-lm", "syncer")


def test_a_node_that_hands_out_no_logs_is_told(team: Team) -> None:
    status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}  # tcpmux: nothing listens
    team.plane.request("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, content_type="application/merge-patch+json")
    said = team.fails("logs", "bytes-lm", "v5p-0", "--host", "0")
    assert "the node of pod bytes-lm-v5p-0-a2-0 does not give its log: " in said
    assert "connection refused" in said


def test_drain_evicts_and_waits_until_the_unit_contributes_again(team: Team) -> None:
    command = [str(PROGRAMS / "kubectl"), "diloco", "drain", "bytes-lm", "v5p-0", "--cordon", "-n", team.namespace]
    with subprocess.Popen(command, env=team.plane.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as draining:
        assert draining.stdout is not None
        said = [draining.stdout.readline() for _ in range(3)]
        assert said[0] == f"node/{NODE} cordoned; undo it with `kubectl uncordon {NODE}`\n"
        assert sorted(said[1:]) == ["pod/bytes-lm-v5p-0-a2-0 evicted\n", "pod/bytes-lm-v5p-0-a2-1 evicted\n"]
        team.plane.wait_for(lambda: team.pods() == [], "the evicted pods to be gone")
        team.set_status({"state": "Training", "attempt": 3, "slice": "np-v5p-2", "recoverSeconds": 4.2}, Training="True")
        rest = draining.communicate(timeout=180)[0]
    assert draining.returncode == 0, rest
    assert rest.splitlines()[-1] == "unit v5p-0 contributes again after 4.2 s, on np-v5p-2; failures on its restart budget: 0"
    assert team.plane.request("GET", f"/api/v1/nodes/{NODE}")["spec"]["unschedulable"] is True
    team.plane.kubectl("uncordon", NODE)


def test_drain_heeds_a_disruption_budget(team: Team) -> None:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for pod in team.pods():  # a pod that is not ready may always be evicted
        path = f"/api/v1/namespaces/{team.namespace}/pods/{pod['metadata']['name']}/status"
        team.plane.request("PATCH", path, {"status": ready}, content_type="application/merge-patch+json")
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"diloco.dev/job": "bytes-lm"}}}}
    team.plane.request("POST", f"/apis/policy/v1/namespaces/{team.namespace}/poddisruptionbudgets", budget)
    team.plane.kubectl("wait", "--for=jsonpath={.status.currentHealthy}=2", "pdb/all", "-n", team.namespace, "--timeout=180s")
    said = team.fails("drain", "bytes-lm", "v5p-0", "--timeout", "2s")
    assert "could not be evicted within 2s: a PodDisruptionBudget does not allow it" in said
    assert len(team.pods()) == 2


def test_suspend_and_resume(team: Team) -> None:
    assert team.diloco("suspend", "bytes-lm") == "dilocojob.diloco.dev/bytes-lm suspended\n"
    assert team.job()["spec"]["suspend"] is True
    managers = {each["manager"] for each in team.job()["metadata"]["managedFields"]}
    assert "kubectl-diloco" in managers
    assert "is not suspended after 1s" in team.fails("suspend", "bytes-lm", "--wait", "--timeout", "1s")
    assert team.diloco("resume", "bytes-lm") == "dilocojob.diloco.dev/bytes-lm resumed\n"
    assert team.job()["spec"]["suspend"] is False


def test_wrong_names_and_missing_rights_are_told_in_words(team: Team) -> None:
    assert 'no DiLoCoJob "bites-lm"' in team.fails("status", "bites-lm")
    assert 'has no unit "v5p-7"; its units are: v5p-0' in team.fails("logs", "bytes-lm", "v5p-7")
    powerless = team.plane.kubeconfig_for(team.plane.token(team.namespace, "default"), f"{team.namespace}-powerless")
    said = team.fails("suspend", "bytes-lm", "--kubeconfig", str(powerless))
    assert "Error: not allowed: " in said
    assert 'cannot get resource "dilocojobs"' in said
    assert 'context "elsewhere"' in team.fails("status", "--context", "elsewhere").replace("'", '"')


def test_an_api_server_that_is_not_there_is_told(team: Team, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = json.loads(team.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"  # tcpmux: nothing listens
    nowhere = tmp_path_factory.mktemp("nowhere") / "config"
    nowhere.write_text(json.dumps(config))
    assert "cannot be reached" in team.fails("status", "--kubeconfig", str(nowhere))


def test_kubectl_finds_the_plugin_and_passes_its_exit_status(team: Team) -> None:
    assert "kubectl-diloco" in team.plane.kubectl("plugin", "list").stdout
    shown = team.plane.kubectl("diloco", "status", "bytes-lm", "-n", team.namespace).stdout
    assert f"bytes-lm in namespace {team.namespace}\n  Training: about Training\n" in shown
    with pytest.raises(CommandFailed) as error:
        team.plane.kubectl("diloco", "drain", "bytes-lm")
    assert error.value.done.returncode == 2
    assert error.value.done.stderr.startswith("Usage: kubectl diloco drain [OPTIONS] JOB UNIT")
