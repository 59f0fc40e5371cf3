"""The dashboard and the report of a cluster in a browser, against a real API server: their facts are the API's, and hostile texts text."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.browsed_pages import PATIENCE, opened, opened_file, row, serious
from builders.browser import a_browser
from builders.control_plane import ON_LATE, ControlPlane
from builders.jobs import JobBuilder
from builders.nodes import TPU, a_tpu_node
from builders.operator_process import OperatorReplica, replica, wait_for
from diloco_operator.api import names
from playwright.sync_api import Page, expect

HOSTILE = "</td></svg></script><script>alert(1)</script>&<img src=x onerror='alert(2)'>"
NODES = [f"shown-{index}" for index in range(4)]
"""TPU slices of one host: one for each job, one for a stranger's pod, one is free."""


@dataclass(frozen=True)
class Scene:
    """A namespace with two jobs. No kubelet: pods are bound, and what they say the test writes."""

    plane: ControlPlane
    namespace: str

    @property
    def zone(self) -> str:
        return f"zone-of-{self.namespace}"

    def get(self, kind: str, name: str) -> Any:
        """The object; {}: there is none."""
        return json.loads(self.plane.kubectl("get", kind, name, "-n", self.namespace, "-o", "json", "--ignore-not-found").stdout or "{}")

    def create(self, kind: str, obj: dict[str, Any]) -> None:
        meta = {**obj["metadata"], "namespace": self.namespace}
        self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/{kind}", {**obj, "metadata": meta})

    def apply(self, job: str) -> None:
        made = JobBuilder(job).with_spec(**ON_LATE).with_learners(1, 1)
        manifest = made.with_pool("v6e", accelerator="tpu-v6e", topology="2x2", max=1).build()
        self.plane.request("POST", f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/dilocojobs", manifest)

    def unit(self, job: str) -> dict[str, Any]:
        """Its one unit, as the API has it; {}: none yet."""
        return next(iter((self.get("dlj", job).get("status") or {}).get("units") or ()), {})

    def words(self, job: str) -> list[str]:
        """The messages of its conditions."""
        return [each["message"] for each in self.get("dlj", job)["status"].get("conditions", ())]

    def is_bound(self, job: str) -> bool:
        """Whether the pod of its unit is on the unit's slice."""
        where = self.unit(job).get("slice")
        return bool(where) and self.pod(job).get("spec", {}).get("nodeName") == where

    def tpus_used(self) -> str:
        """As the quota `tpus` counts them; "": it does not yet."""
        return str((self.get("resourcequota", "tpus").get("status") or {}).get("used", {}).get(f"requests.{TPU}", ""))

    def pod(self, job: str) -> dict[str, Any]:
        """The pod of its unit."""
        found: dict[str, Any] = self.get("pod", f"{job}-v6e-0-a1-0")
        return found

    def say_of_pod(self, pod: str, **status: Any) -> None:
        """A kubelet writes this."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/status"
        self.plane.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


@pytest.fixture
def scene(control_plane: ControlPlane) -> Iterator[Scene]:
    plane = control_plane
    plane.install_crd()
    plane.offer_late_volumes()
    namespace = plane.request("POST", "/api/v1/namespaces", {"metadata": {"generateName": "shown-"}})["metadata"]["name"]
    scene = Scene(plane, namespace)
    labels = a_tpu_node("any", kind="tpu-v6e-slice", topology="2x2")["metadata"]["labels"]
    with ExitStack() as stack:
        stack.callback(plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        for name in NODES:
            own = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": scene.zone, "cloud.google.com/gke-nodepool": name}
            plane.add_node(name, {**labels, **own}, {TPU: "4"})
        stack.callback(plane.kubectl, "delete", "node", *NODES)
        plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
        yield scene


def begin(scene: Scene, operator: OperatorReplica) -> None:
    """Two jobs on a slice each, of which one says hostile things; a stranger's pod on another slice; a quota."""
    quota = {"metadata": {"name": "tpus"}, "spec": {"hard": {f"requests.{TPU}": "16"}}}
    scene.create("resourcequotas", quota)
    tpus = {"limits": {TPU: "4"}, "requests": {TPU: "4"}}
    main = {"name": "main", "image": "image:1", "resources": tpus}
    scene.create("pods", {"metadata": {"name": "stranger"}, "spec": {"containers": [main], "nodeName": NODES[3]}})
    for job in ("hostile", "plain"):
        scene.apply(job)
    for job in ("hostile", "plain"):
        wait_for(functools.partial(scene.is_bound, job), f"the pod of {job} to be on its slice", operator)
    container = {"name": "learner", "image": "i", "imageID": "", "ready": False, "restartCount": 3}
    waiting = {**container, "state": {"waiting": {"reason": "ImagePullBackOff", "message": HOSTILE}}}
    scene.say_of_pod("hostile-v6e-0-a1-0", phase="Pending", containerStatuses=[waiting])
    scene.say_of_pod("hostile-syncer", phase="Pending", containerStatuses=[{**waiting, "name": "syncer"}])
    running = {**container, "ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-26T12:00:00Z"}}}
    scene.say_of_pod("plain-v6e-0-a1-0", phase="Running", containerStatuses=[running])
    wait_for(lambda: HOSTILE in scene.unit("hostile").get("message", ""), "the kubelet's words of a learner in the status", operator)
    wait_for(lambda: HOSTILE in " ".join(scene.words("hostile")), "the kubelet's words of the syncer in the status", operator)
    job = scene.get("dlj", "hostile")["metadata"]
    event = {
        "metadata": {"name": "crashed", "annotations": {names.LABEL_UNIT: HOSTILE, names.ANNOTATION_SAID: HOSTILE}},
        "involvedObject": {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "name": "hostile", "namespace": scene.namespace, "uid": job["uid"],
        },
        "reason": "UnitCrashed", "message": HOSTILE, "type": "Warning", "lastTimestamp": "2026-11-26T12:00:00Z",
    }  # fmt: skip
    scene.create("events", event)
    wait_for(lambda: scene.tpus_used() == "12", "the quota to count three pods of four TPUs", operator)


@contextmanager
def served(scene: Scene) -> Iterator[str]:
    """`kubectl diloco dashboard`, as a person runs it; its address."""
    command = ["kubectl", "diloco", "dashboard", "-n", scene.namespace, "--no-browser"]
    with subprocess.Popen(command, env=scene.plane.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith(f"Dashboard of namespace {scene.namespace}: http://127.0.0.1:"), said
            yield said.split()[-1]
        finally:
            process.terminate()


def shows_text_only(page: Page, *sections: str) -> None:
    """Each of these has the hostile text, and the page has no element of it."""
    for section in sections:
        expect(page.locator(section)).to_contain_text(HOSTILE, timeout=PATIENCE)
    expect(page.locator("img")).to_have_count(0)
    assert [
        each.get_attribute("src") for each in page.locator("script").all() if "dashboard.js" not in (each.get_attribute("src") or "")
    ] == []


def cells(page: Page, section: str) -> dict[str, list[str]]:
    """The rows of a section's table, by their first cell."""
    rows = [each.locator("td").all_inner_texts() for each in page.locator(f"{section} tbody tr").all()]
    return {cells[0]: cells for cells in rows}


def check_fleet(page: Page, scene: Scene) -> None:
    shown_jobs = [each.locator("td").all_inner_texts() for each in page.locator("#jobs tbody tr").all()]
    fleet = {tuple(shown[:2]): shown for shown in shown_jobs}
    for job in ("hostile", "plain"):
        status = scene.get("dlj", job)["status"]
        learners = status["learners"]
        shown = fleet[scene.namespace, job]
        assert (shown[2], shown[4]) == (status["state"], f"{learners['contributing']}/{learners['desired']}")
    heads = page.locator("#hardware th").all_inner_texts()
    assert row(page, "hardware", "tpu-v6e 2x2")[heads.index(scene.zone)] == "2 of 4, 1 free, 1 in other use"
    assert cells(page, "#quotas")[f"ResourceQuota {scene.namespace}/tpus"][2:5] == [f"requests.{TPU}", scene.tpus_used(), "16"]


def check_job(page: Page, scene: Scene, job: str, prefix: str = "") -> None:
    found = scene.get("dlj", job)
    conditions = cells(page, f"{prefix}#conditions" if not prefix else f"{prefix} section:has(h2:text-is('Conditions'))")
    facts = {each["type"]: [each["status"], each["reason"], each["message"]] for each in found["status"]["conditions"]}
    assert {kind: [shown[1], shown[2], shown[4]] for kind, shown in conditions.items()} == facts
    units = cells(page, f"{prefix}#units" if not prefix else f"{prefix} section:has(h2:text-is('Units'))")
    for unit in found["status"]["units"]:
        shown = units[unit["name"]]
        assert [shown[1], shown[3], shown[4]] == [unit["state"], unit["slice"], str(unit["attempt"])]
        assert shown[-1] == f"{unit['reason']}: {unit['message']}"


def check_hosts(page: Page, scene: Scene, job: str, facts: Sequence[str]) -> None:
    pod = scene.pod(job)
    expect(page.locator("#ranks tbody tr")).to_have_count(1, timeout=PATIENCE)
    shown = row(page, "ranks", "0")
    assert [shown[1], shown[2], *shown[4:]] == ["0", facts[0], facts[1], pod["spec"]["nodeName"], pod["metadata"]["name"], facts[2]]


@pytest.mark.timeout(1800)
def test_pages_have_the_facts_of_the_api_and_hostile_texts_as_text(scene: Scene, tmp_path: Path) -> None:
    options = ("--watch-namespace", scene.namespace, "--leader-elect-namespace", scene.namespace)
    complaints: list[str] = []
    with replica(tmp_path, "operator", scene.plane.kubeconfig, *options) as operator:
        begin(scene, operator)
        with served(scene) as url, a_browser() as browser:
            page = opened(browser, url, complaints)
            page.on("dialog", lambda dialog: complaints.append(dialog.message))
            shows_text_only(page, "#jobs")
            check_fleet(page, scene)
            jobs = f"{url}jobs/{scene.namespace}"
            page.goto(f"{jobs}/plain")
            check_job(page, scene, "plain")
            page.goto(f"{jobs}/plain/units/v6e-0")
            check_hosts(page, scene, "plain", ("Running", "0", "-"))
            expect(page.locator("#log")).to_contain_text("There is no log:", timeout=PATIENCE)  # no kubelet runs there
            page.goto(f"{jobs}/hostile")
            shows_text_only(page, "#units", "#ends")
            check_job(page, scene, "hostile")
            page.goto(f"{jobs}/hostile/units/v6e-0")
            shows_text_only(page, "#now", "#ranks")
            check_hosts(page, scene, "hostile", ("ImagePullBackOff", "3", HOSTILE))
            assert serious(page) == []
            page.goto(f"{url}waiting")
            shows_text_only(page, "#jobs")

            scene.plane.kubectl("diloco", "report", "hostile", "-n", scene.namespace, "-o", str(tmp_path / "hostile.html"))
            file = opened_file(browser, (tmp_path / "hostile.html").as_uri(), complaints)
            shows_text_only(file, "article:first-of-type")
            check_job(file, scene, "hostile", "article:first-of-type")
            file.get_by_role("link", name="v6e-0").click()
            shows_text_only(file, "article:target")
            assert serious(file) == []
    assert not complaints, complaints
