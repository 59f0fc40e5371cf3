"""The harness that starts a real control plane: what every test on top of it relies on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ROOT, CommandFailed, ControlPlane, ControlPlaneError, RequestFailed

LIMIT_SECONDS = 180
"""A limit for defects, not an expectation."""


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """One that pods may be created in: its ServiceAccount is there."""
    made = control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "harness-"}})
    name: str = made["metadata"]["name"]
    control_plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=180s")
    yield name
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")


def _config_map(plane: ControlPlane, namespace: str, name: str) -> str:
    """Makes one; its resource version."""
    made = plane.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}})
    version: str = made["metadata"]["resourceVersion"]
    return version


def _watch(plane: ControlPlane, namespace: str, version: str) -> dict[str, Any]:
    """The first event of a watch from a version; a watch answers with one event at least or an error. A busy server may end so short a
    watch before it has sent anything."""
    query = urllib.parse.urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": "1"})
    events: list[dict[str, Any]] = []

    def answered() -> bool:
        answer = plane.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/configmaps?{query}").stdout
        events.extend(map(json.loads, answer.splitlines()))
        return bool(events)

    plane.wait_for(answered, "an event of the watch")
    return events[0]


def test_a_pod_with_a_claim_is_placed_on_a_simulated_node(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    control_plane.add_node("harness-tpu", {"pool": namespace}, {"google.com/tpu": "4"})
    control_plane.provide_volumes(tmp_path, 1, size="1Gi", prefix=namespace)
    claim = {"accessModes": ["ReadWriteOnce"], "volumeName": f"{namespace}-0", "resources": {"requests": {"storage": "1Gi"}}}
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": claim})
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {"containers": [container], "volumes": [volume], "nodeSelector": {"pool": namespace}}
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "learner"}, "spec": spec})
    control_plane.kubectl("wait", "-n", namespace, "--for=condition=PodScheduled", "pod/learner", "--timeout=180s")
    placed = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/learner")
    bound = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/data")
    control_plane.request("DELETE", "/api/v1/nodes/harness-tpu")
    control_plane.request("DELETE", f"/api/v1/persistentvolumes/{namespace}-0")
    assert placed["spec"]["nodeName"] == "harness-tpu"
    assert bound["status"]["phase"] == "Bound"


def test_a_service_account_is_who_its_token_says_and_may_only_what_its_roles_say(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_for(control_plane.token(namespace, "default"), f"{namespace}-default")
    assert kubeconfig.stat().st_mode & 0o077 == 0
    who = control_plane.kubectl("auth", "whoami", "--kubeconfig", str(kubeconfig), "-o", "jsonpath={.status.userInfo.username}").stdout
    assert who == f"system:serviceaccount:{namespace}:default"
    with pytest.raises(CommandFailed, match="cannot list resource"):
        control_plane.kubectl("get", "pods", "--kubeconfig", str(kubeconfig), "-n", namespace)


def test_the_audit_log_tells_who_did_what(control_plane: ControlPlane, namespace: str) -> None:
    before = control_plane.audit_position()
    _config_map(control_plane, namespace, "audited")
    did = []
    for event in control_plane.audit_events(since=before):
        target = event.get("objectRef", {})  # of those that ask for no object, as controllers do now and then, there is none
        if (target.get("resource"), target.get("namespace")) == ("configmaps", namespace):
            did.append((event["user"]["username"], event["verb"], target.get("name"), event["responseStatus"]["code"]))
    assert ("admin", "create", "audited", 201) in did


def test_history_is_forgotten_and_objects_are_kept(control_plane: ControlPlane, namespace: str) -> None:
    old = _config_map(control_plane, namespace, "one")
    _config_map(control_plane, namespace, "two")
    assert _watch(control_plane, namespace, old)["type"] == "ADDED"
    control_plane.forget_history()
    gone = _watch(control_plane, namespace, old)
    assert (gone["type"], gone["object"]["code"]) == ("ERROR", 410)
    assert control_plane.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/one")["metadata"]["resourceVersion"] == old


def test_a_paused_program_stands_still_until_it_is_resumed(control_plane: ControlPlane) -> None:
    def state() -> str:
        stat = Path(f"/proc/{control_plane.pid('kube-scheduler')}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    control_plane.pause("kube-scheduler")
    control_plane.wait_for(lambda: state() == "T", "the scheduler to stand still")
    control_plane.resume("kube-scheduler")
    control_plane.wait_for(lambda: state() != "T", "the scheduler to go on")


def test_a_refused_request_says_what_was_asked(control_plane: ControlPlane) -> None:
    with pytest.raises(RequestFailed, match=r"GET /api/v1/nodes/nowhere: 404 .*not found"):
        control_plane.request("GET", "/api/v1/nodes/nowhere")


def test_a_program_that_ends_early_is_named_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(ControlPlaneError, match=r"(?s)kube-apiserver ended with 1.*unknown flag: --no-such-flag"),
        ControlPlane(tmp_path, controllers=False, scheduler=False, api_server_args=["--no-such-flag"]),
    ):
        pass


STARTS_IN_A_THREAD_THAT_ENDS = """
import contextlib, pathlib, sys, threading
from builders.control_plane import ControlPlane
stack = contextlib.ExitStack()
planes = []
def run():
    planes.append(stack.enter_context(ControlPlane(pathlib.Path(sys.argv[1]), controllers=False, scheduler=False)))
thread = threading.Thread(target=run)
thread.start()
thread.join()
planes[0].request("GET", "/version")
print(planes[0].pid("etcd"), planes[0].pid("kube-apiserver"), flush=True)
sys.stdin.read()
"""


def test_everything_lives_on_after_the_starting_thread_and_dies_with_the_killed_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_IN_A_THREAD_THAT_ENDS, str(tmp_path)],
        cwd=ROOT / "tests",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        programs = [os.pidfd_open(int(pid)) for pid in starter.stdout.readline().split()]
        try:
            assert len(programs) == 2
            assert _ended(programs, seconds=0) == []
            starter.kill()
            assert _ended(programs, seconds=LIMIT_SECONDS) == programs
        finally:
            starter.kill()
            for program in programs:
                os.close(program)


def _ended(programs: list[int], seconds: float) -> list[int]:
    """Those that ended, as soon as all did, or what there is after `seconds`."""
    ended = []
    for program in programs:
        if select.select([program], [], [], seconds)[0]:
            ended.append(program)
    return ended
