"""Two replicas against a real API server, and what its audit log shows of who wrote when.

Every replica has its own ServiceAccount, so that the log shows which one wrote. New jobs arrive all the time, so the leader always has
something to write: five jobs a second, with several writes each. The retry period is shorter than the default; the test asserts only the
order of writes, and the second replica takes the lease 7 s after the first must have stopped.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.jobs import a_manifest, tpu_pool
from builders.operator_process import OperatorReplica, TcpProxy, replica, wait_for

HELD_OPERATOR = Path(__file__).parents[1] / "programs" / "held_operator.py"
TERMS = ("--lease-duration", "15s", "--renew-deadline", "8s", "--retry-period", "1s")
_WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclass
class Scene:
    """Two replicas of an operator in a namespace of their own, the first of which leads."""

    plane: ControlPlane
    namespace: str
    first: OperatorReplica
    second: OperatorReplica
    proxy: TcpProxy
    held_while: Path
    """See tests/programs/held_operator.py."""
    since: int
    """Position in the audit log."""
    made: list[str] = field(default_factory=list)
    """Jobs, as they were made."""

    def requests(self, name: str) -> list[dict[str, Any]]:
        """What the replica `name` asked for that changes something, in order of arrival."""
        user = f"system:serviceaccount:{self.namespace}:{name}"
        events = [e for e in self.plane.audit_events(self.since) if e["user"]["username"] == user and e["verb"] in _WRITES]
        return sorted(events, key=arrived)

    def lease_writes(self, name: str) -> list[dict[str, Any]]:
        """Those that got or kept the lease."""
        return [e for e in self.requests(name) if e["objectRef"]["resource"] == "leases" and e["responseStatus"]["code"] < 300]

    def work(self, name: str) -> list[dict[str, Any]]:
        """Those of an operator at work, carried out or not."""
        return [e for e in self.requests(name) if e["objectRef"]["resource"] != "leases"]

    def has_status(self, name: str) -> bool:
        path = f"/apis/diloco.dev/v1alpha1/namespaces/{self.namespace}/dilocojobs/{name}"
        return "observedGeneration" in (self.plane.request("GET", path).get("status") or {})

    def wait_second_works(self) -> None:
        """Wait until the second replica has taken over and reconciled a job that was created since."""
        self.second.wait_leads()
        count = len(self.made)
        wait_for(lambda: len(self.made) > count, "another job to be made")
        wait_for(lambda: self.has_status(self.made[count]), f"the second replica to reconcile {self.made[count]}", self.first, self.second)

    @contextlib.contextmanager
    def first_stands_still(self) -> Iterator[None]:
        """The event loop of the first replica computes as long as the context is open."""
        self.held_while.touch()
        try:
            self.first.send(signal.SIGUSR1)
            yield
        finally:
            self.held_while.unlink()

    def check_order(self, *, late: int = 0) -> None:
        """The second wrote after it got the lease, and the first nothing after that, but for `late` writes at most."""
        took_over = arrived(self.lease_writes("second")[0])
        work = self.work("first")
        assert len(work) > late, "the first replica had nothing to do, so this shows nothing"
        assert arrived(work[-1 - late]) < took_over
        assert arrived(self.work("second")[0]) > took_over


def arrived(event: dict[str, Any]) -> str:
    """When the API server received a request; all have the same number of digits, so they compare as text."""
    moment: str = event["requestReceivedTimestamp"]
    return moment


@contextlib.contextmanager
def jobs_all_the_time(scene: Scene) -> Iterator[None]:
    stop = threading.Event()

    def make() -> None:
        while not stop.wait(0.2):
            manifest = a_manifest(f"j{len(scene.made)}", pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=2)])
            scene.plane.request("POST", f"/apis/diloco.dev/v1alpha1/namespaces/{scene.namespace}/dilocojobs", manifest)
            scene.made.append(manifest["metadata"]["name"])

    thread = threading.Thread(target=make)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def scene(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    plane = control_plane
    plane.install_crd()
    namespace: str = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "election-"}})["metadata"]["name"]
    plane.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", f"--group=system:serviceaccounts:{namespace}")
    kubeconfigs = {}
    for name in ("first", "second"):
        plane.kubectl("create", "serviceaccount", name, "-n", namespace)
        kubeconfigs[name] = plane.kubeconfig_for(plane.token(namespace, name), f"{namespace}-{name}")
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    proxy = TcpProxy(host, int(port))
    content = json.loads(kubeconfigs["first"].read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    kubeconfigs["first"].write_text(json.dumps(content))
    options = ("--watch-namespace", namespace, "--leader-elect-namespace", namespace, *TERMS)
    held_while = tmp_path / "held"
    since = plane.audit_position()
    try:
        environment = {"HELD_WHILE": str(held_while)}
        with replica(tmp_path, "first", kubeconfigs["first"], *options, environment=environment, program=[str(HELD_OPERATOR)]) as first:
            first.wait_leads()
            with replica(tmp_path, "second", kubeconfigs["second"], *options) as second:
                second.wait_said("^standing by")
                found = Scene(plane, namespace, first, second, proxy, held_while, since)
                with jobs_all_the_time(found):
                    wait_for(lambda: found.work("first"), "the first replica to work", first)
                    yield found
    finally:
        proxy.close()
        plane.kubectl("delete", "namespace", namespace, "--wait=false")
        plane.kubectl("delete", "clusterrolebinding", namespace)


@pytest.mark.core
def test_a_standby_is_ready_writes_nothing_and_follows_a_leader_that_is_killed(scene: Scene) -> None:
    assert scene.second.get("/readyz") == (200, "ok\n")
    leads = [each.metric("leader_election_master_status", name="diloco-operator") for each in (scene.first, scene.second)]
    assert (leads, scene.work("second")) == ([1, 0], [])
    scene.first.send(signal.SIGKILL)
    scene.first.wait()
    scene.wait_second_works()
    scene.check_order()


def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(scene: Scene) -> None:
    scene.first.send(signal.SIGSTOP)
    scene.wait_second_works()
    scene.first.send(signal.SIGCONT)
    assert scene.first.wait() == 3, [line for line in scene.first.lines() if line.get("level") == "error"]
    assert scene.first.said("lost the lease and exits")
    scene.check_order(late=1)  # it may have been stopped in the millisecond in which it sent one


def test_a_leader_whose_loop_stands_still_past_the_renew_deadline_writes_nothing_when_it_goes_on(scene: Scene) -> None:
    with scene.first_stands_still():
        scene.wait_second_works()
    assert scene.first.wait() == 3, [line for line in scene.first.lines() if line.get("level") == "error"]
    assert scene.first.said(r"lost the lease and exits: .* was not renewed within 8 s")
    scene.check_order()


def test_a_leader_that_loses_the_api_server_ends_before_another_leads(scene: Scene) -> None:
    scene.proxy.cut()
    assert scene.first.wait() == 3
    scene.wait_second_works()
    assert scene.first.when_said("lost the lease and exits") < scene.second.when_said("^leading:")
    scene.check_order()


@pytest.mark.core
def test_a_leader_that_is_told_to_stop_ends_its_writes_and_gives_the_lease_back(scene: Scene) -> None:
    scene.first.send(signal.SIGTERM)
    assert scene.first.wait() == 0
    last = scene.requests("first")[-1]
    assert last["objectRef"]["resource"] == "leases"  # nothing after the lease was given back
    assert scene.first.said("is released")
    scene.wait_second_works()
    scene.check_order()


def test_a_second_signal_ends_it_at_once(scene: Scene) -> None:
    scene.proxy.cut()  # an orderly end would take a while
    scene.first.send(signal.SIGTERM)
    scene.first.wait_said("^stopping:")
    scene.first.send(signal.SIGTERM)
    assert scene.first.wait() == 128 + signal.SIGTERM
