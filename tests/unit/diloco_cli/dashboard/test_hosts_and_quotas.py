"""What the pages show of pods: hosts and ranks of a unit, the end of a log, slices in other use; and of quotas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders.cluster_scenes import NOW, Limited, begin, unit
from builders.dashboards import Browser, a_dashboard, a_view, html_of, job_facts
from builders.fake_cluster import FakeCluster
from builders.jobs import JOB_UID
from builders.nodes import a_tpu_slice
from builders.pod_logs import Logs
from builders.pods import a_learner_pod, a_pod
from diloco_cli.checks.nodes import inventory_of
from diloco_cli.dashboard.facts import FleetFacts, SliceNumbers, SlicePlace, slices_of
from diloco_cli.dashboard.fleet_page import fleet_page
from diloco_cli.dashboard.quotas import Allowance, in_order, of_queue, of_quota
from diloco_cli.dashboard.unit_page import unit_page
from diloco_cli.dashboard.unit_pods import LOG_BYTES, LOG_LINES, UnitPods, end_of, hosts_of
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import DILOCO_JOBS, PODS
from diloco_operator.kube.client import Forbidden, Obj
from diloco_operator.operator.projections import project_use
from diloco_operator.reconcile import OperatorConfig

from .test_pages import words

UNIT = "jobs/team/bytes-lm/units/v5p-0"


def a_host(index: int, *, attempt: int = 1, node: str = "tpu-0", **state: Obj) -> Obj:
    """A pod of the unit whose container that trains is in this state."""
    pod = a_learner_pod(host=index, attempt=attempt)
    statuses = [{"name": "learner", "restartCount": 0, "state": state}] if state else []
    phase = "Running" if "running" in state else "Pending"
    return {
        **pod,
        "spec": {**pod["spec"], **({"nodeName": node} if node else {})},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


RUNS = {"startedAt": "2026-11-20T21:00:00Z"}


def said_of(*pods: Obj, per_host: int = 1) -> str:
    facts = job_facts(a_view(units=[unit("v5p-0", "Starting")]), spec={"pools": [{"name": "v5p", "processesPerHost": per_host}]})
    page = unit_page(facts, "v5p-0", UnitPods(hosts_of(pods, JOB_UID)), "/token")
    assert page is not None
    return words(html_of(page))


def test_the_host_that_does_not_run_yet_is_the_one_that_the_others_wait_for() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    said = said_of(a_host(1, waiting=waiting), a_host(0, running=RUNS), per_host=4)
    assert "Attempt 1: 2 hosts, 8 ranks." in said
    assert "The others wait for host 1 (ranks 4 to 7) to run." in said
    assert "1 4 to 7 ImagePullBackOff: the others wait - 0 tpu-0 bytes-lm-v5p-0-a1-1 no such image" in said
    assert "0 0 to 3 Running 2026-11-20 21:00:00 UTC 0 tpu-0" in said


def test_nobody_is_waited_for_while_all_run_or_none_does() -> None:
    assert "others wait" not in said_of(a_host(0, running=RUNS), a_host(1, running=RUNS))
    assert "others wait" not in said_of(a_host(0, node=""), a_host(1, node=""))


def test_a_host_that_has_ended_says_how_and_is_not_waited_for() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "RuntimeError: no data", "finishedAt": "2026-11-20T21:00:30Z"}
    said = said_of(a_host(0, running=RUNS), a_host(1, terminated=ended))
    assert "1 1 Error, status 1 2026-11-20 21:00:30 UTC 0 tpu-0 bytes-lm-v5p-0-a1-1 RuntimeError: no data" in said
    assert "others wait" not in said


def test_hosts_are_those_of_the_newest_attempt_and_no_strangers_pod() -> None:
    stranger = a_host(7, attempt=9, running=RUNS)
    stranger["metadata"]["ownerReferences"] = []
    odd = a_host(2, attempt=2, running=RUNS)
    odd["metadata"]["labels"]["diloco.dev/host"] = "-1"
    hosts = hosts_of([a_host(0, running=RUNS), a_host(0, attempt=2, running=RUNS), a_host(1, attempt=2), stranger, odd], JOB_UID)
    assert [(host.attempt, host.index) for host in hosts] == [(2, 0), (2, 1)]


def test_of_a_long_log_the_last_lines_are_shown_and_no_part_of_a_line() -> None:
    lines = [f"step {number}" for number in range(1000)]
    assert end_of("\n".join(lines).encode()).split("\n") == lines[-LOG_LINES:]
    cut = b"x" * LOG_BYTES + b"\nstep 1\nstep 2\n"
    assert end_of(cut[-LOG_BYTES:]) == "step 1\nstep 2"


async def shown(browser: Browser, path: str, what: str) -> str:
    """Ask for a page until it has read what it shows."""
    text = ""
    while what not in text:
        text = await (await browser.get(path)).text()
    return text


async def with_pods(cluster: FakeCluster, *pods: Obj) -> None:
    await begin(cluster, unit())
    uid = (await cluster.api.get(DILOCO_JOBS, "team", "bytes-lm"))["metadata"]["uid"]
    owner = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "name": "bytes-lm", "uid": uid, "controller": True}
    spec = {"containers": [{"name": "learner", "image": "trainer:1"}], "nodeName": "tpu-0"}
    for pod in pods:
        meta = {**pod["metadata"], "ownerReferences": [owner]}
        made = await cluster.api.create(PODS, {**pod, "metadata": meta, "spec": spec})
        await cluster.write_status(PODS, made["metadata"]["name"], pod["status"], namespace="team")


def on_a_dashboard(logs: Logs) -> Callable[[Callable[[Browser], Awaitable[None]]], Any]:
    """Run the test with the pages of a unit of two hosts whose pods have these logs."""

    def of(test: Callable[[Browser], Awaitable[None]]) -> Any:
        async def run() -> None:
            cluster = FakeCluster(MemoryApi())
            await with_pods(cluster, a_host(0, running=RUNS), a_host(1, running=RUNS))
            async with a_dashboard(cluster.api, logs=logs) as browser:
                await test(browser)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return pytest.mark.slow(run)

    return of


@on_a_dashboard(Logs(bytes_lm_v5p_0_a1_0=[b"step 1\n<b>st", b"ep 2</b>\n"], bytes_lm_v5p_0_a1_1=[b"rank 1 here\n"]))
async def test_the_log_of_the_first_host_is_shown_as_text_and_that_of_another_by_its_link(browser: Browser) -> None:
    text = await shown(browser, UNIT, "Log of host 0")
    assert "step 1\n&lt;b&gt;step 2&lt;/b&gt;</code></pre>" in text
    assert "kubectl diloco logs bytes-lm v5p-0 --host 0 -n team" in text
    assert "/jobs/team/bytes-lm/units/v5p-0/hosts/1" in text
    assert "rank 1 here" in await shown(browser, f"{UNIT}/hosts/1", "Log of host 1")
    assert "It has no host 9 in attempt 1." in await shown(browser, f"{UNIT}/hosts/9", "no host 9")
    assert (await browser.get(f"{UNIT}/hosts/x")).status == 404
    assert (await browser.get("jobs/team/bytes-lm/units/v5p-8")).status == 404


@on_a_dashboard(Logs(bytes_lm_v5p_0_a1_0=Forbidden(403, "Forbidden", 'cannot get resource "pods/log"')))
async def test_a_missing_right_to_logs_and_a_pod_that_is_gone_are_said(browser: Browser) -> None:
    assert "as you may not get pods/log: cannot get resource" in await shown(browser, UNIT, "The log is not shown")
    assert "there is no pod bytes-lm-v5p-0-a1-1 now" in await shown(browser, f"{UNIT}/hosts/1", "There is no log")


@on_a_dashboard(Logs(bytes_lm_v5p_0_a1_0=[b"x" * (1 << 20)] * 5))
async def test_a_log_of_endless_lines_is_read_in_part_and_this_is_said(browser: Browser) -> None:
    text = await shown(browser, UNIT, "Its last 200 lines are too long: this is not their end.")
    assert text.count("x") < LOG_BYTES + 1000, "and the few of the page itself"


@pytest.mark.slow
async def test_who_may_not_list_pods_is_told_on_the_pages_that_lack_them() -> None:
    cluster = FakeCluster(MemoryApi())
    await with_pods(cluster)
    async with a_dashboard(Limited(cluster.api, PODS)) as browser:
        assert "as you may not list pods: pods is forbidden" in await shown(browser, UNIT, "Hosts and log are not shown")
        assert "Slices in other use are not told from free ones: pods is forbidden" in await (await browser.get()).text()


def test_slices_in_other_use_are_told_from_free_ones() -> None:
    nodes = [node for pool in ("np-0", "np-1", "np-2") for node in a_tpu_slice(pool, kind="tpu-v6e-slice", topology="2x2")]
    inventory = inventory_of(nodes, OperatorConfig().disruption_signals, NOW)
    names = sorted(each.name for each in inventory.every_slice())
    hosts = {each.name: each.hosts[0].node for each in inventory.every_slice()}
    tpus = {"resources": {"requests": {"google.com/tpu": "4"}}}
    pods = [
        a_pod("ours", node=hosts[names[0]], container=tpus),
        a_pod("theirs", node=hosts[names[1]], container=tpus),
        a_pod("agent", node=hosts[names[2]], container={"resources": {"requests": {"cpu": "1"}}}),
    ]
    view = a_view(units=[unit(slice=names[0])])
    found = slices_of(inventory, [view], [project_use(pod, None) for pod in pods], NOW)
    assert found == {SlicePlace("tpu-v6e 2x2", ""): SliceNumbers(total=3, used=1, others=1)}
    assert "1 of 3, 1 free, 1 in other use" in words(html_of(fleet_page(FleetFacts([view], found, (), sees_others=True), "/token")))
    assert "tpu-v6e 2x2 1 of 3, 1 in other use" in words(html_of(fleet_page(FleetFacts([view], found, ()), "/token")))


def test_quotas_are_shown_with_their_use_accelerators_first() -> None:
    quota = {
        "metadata": {"namespace": "team", "name": "gpus"},
        "spec": {"hard": {"cpu": 64, "requests.nvidia.com/gpu": "8"}},
        "status": {"used": {"requests.nvidia.com/gpu": "6"}},
    }
    queue = {
        "metadata": {"name": "research"},
        "spec": {"resourceGroups": [{"flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}]}]},
        "status": {"pendingWorkloads": 2, "flavorsUsage": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "12"}]}]},
    }
    found = in_order([*of_quota(quota), *of_queue(queue)])
    assert found == [
        Allowance("ClusterQueue research", "h100", "nvidia.com/gpu", "12", "16", 2),
        Allowance("ResourceQuota team/gpus", "", "requests.nvidia.com/gpu", "6", "8"),
        Allowance("ResourceQuota team/gpus", "", "cpu", "0", "64"),
    ]
    said = words(html_of(fleet_page(FleetFacts([], None, (), quotas=found), "/token")))
    assert "ClusterQueue research h100 nvidia.com/gpu 12 16 2 ResourceQuota team/gpus - requests.nvidia.com/gpu 6 8 -" in said
