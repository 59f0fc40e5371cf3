"""Rules and dashboards of the chart over a real Prometheus that scrapes an operator at work: each expression has series."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from builders.chart import CHART, one, render
from builders.control_plane import ControlPlane
from builders.jobs import JobBuilder
from builders.kube_jobs import KubeCluster, kube_cluster, operator
from builders.local_jobs import a_fleet, a_quadratic_job
from builders.operator_process import OperatorReplica
from builders.prometheus import Prometheus, a_prometheus
from diloco_operator.api import names

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("many-learners")]  # one control plane with test_kube_jobs.py

CHOSEN = {"$namespace": ".*", "$dilocojob": ".*", "$__rate_interval": "1m", "$__range": "10m"}
"""What Grafana puts into an expression."""


def rule_file(folder: Path) -> Path:
    """The rules as the chart's ConfigMap has them."""
    objects = render({"metrics": {"prometheusRule": {"enabled": True, "as": "ConfigMap"}}})
    file = folder / "rules.yaml"
    file.write_text(one(objects, "ConfigMap", "diloco-operator-rules")["data"]["diloco.yaml"])
    return file


def panels() -> dict[str, list[str]]:
    """The expressions of each panel of each dashboard."""
    found = {}
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            expressions = []
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in CHOSEN.items():
                    expression = expression.replace(name, value)
                expressions.append(expression)
            found[f"{path.stem}: {panel['title']}"] = expressions
    return found


async def restart_wait_and_refusal(cluster: KubeCluster, plane: ControlPlane) -> None:
    """A job whose unit crashed and came back; one that waits for nodes that there are none of; one of another controller, whose status says
    what a healthy job's does not: refused contributions, a loss on held-out data, a snapshot."""
    crash = {"QUADRATIC_CRASH_AT_STEP": 6, "QUADRATIC_CRASH_UNIT": "v5p-1"}
    await cluster.apply(a_quadratic_job(steps=1_000_000, every_steps=4, environment={"QUADRATIC_STEP_MS": 100, **crash}))
    await cluster.apply(JobBuilder("waits").in_namespace("default").with_pool("v6e", accelerator="tpu-v6e", topology="2x2").build())
    other = JobBuilder("told").in_namespace("default").with_spec(managedBy="example.com/other").with_pool().build()
    await cluster.apply(other)
    status = {
        "units": [{"name": "v5p-0", "pool": "v5p", "state": "Training", "attempt": 1, "refused": {"NonFinite": 2}}],
        "progress": {"step": 9, "steps": 100, "loss": 2.5, "cosine": 0.5},
        "model": {"step": 8},
    }
    path = f"/apis/{names.API_VERSION}/namespaces/default/dilocojobs/told/status"
    change = {"status": status}
    await asyncio.to_thread(plane.request, "PATCH", path, change, content_type="application/merge-patch+json")


def has_recovered(operator: OperatorReplica) -> bool:
    counts = ("diloco_job_recovery_seconds_count", "diloco_job_placement_failures_total", "diloco_job_refused_contributions_total")
    return all(operator.total(count) > 0 for count in counts)


def without_series(prometheus: Prometheus, expressions: dict[str, list[str]]) -> dict[str, list[str]]:
    found = {what: [each for each in every if not prometheus.series(each)] for what, every in expressions.items()}
    return {what: missing for what, missing in found.items() if missing}


async def test_each_expression_of_rules_and_dashboards_has_series_of_an_operator_at_work(jobs_plane: ControlPlane, tmp_path: Path) -> None:
    plane = jobs_plane
    plane.wait_for(lambda: plane.kubectl("get", "pods,dlj", "-o", "name").stdout == "", "the jobs of earlier tests to be gone")
    async with kube_cluster(plane, tmp_path, a_fleet(tpus=2, gpus=1)) as cluster:
        with operator(plane, tmp_path) as replica:
            target = await asyncio.to_thread(replica.address, "/metrics")
            with a_prometheus(tmp_path, target, rule_file(tmp_path)) as prometheus:
                await restart_wait_and_refusal(cluster, plane)
                await asyncio.to_thread(plane.wait_for, lambda: has_recovered(replica), "a unit to crash and to come back", 600.0)
                await asyncio.to_thread(check, prometheus)


def rules_of(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]


def wait_for_series(prometheus: Prometheus, what: str, expressions: dict[str, list[str]]) -> None:
    try:
        prometheus.wait_for(lambda: not without_series(prometheus, expressions), what)
    except AssertionError:
        raise AssertionError(f"{what} without a series: {without_series(prometheus, expressions)}") from None


def check(prometheus: Prometheus) -> None:
    prometheus.wait_for(lambda: {rule["health"] for rule in rules_of(prometheus)} == {"ok"}, "all rules to have been evaluated")
    recorded = {rule["name"]: [rule["name"]] for rule in rules_of(prometheus) if rule["type"] == "recording"}
    assert len(recorded) == 10
    wait_for_series(prometheus, "recording rules", recorded)
    wait_for_series(prometheus, "panels", panels())
    # A job's goodput has the job's labels, and not those of the scrape.
    for series in prometheus.series("namespace_dilocojob:diloco_job_goodput:ratio"):
        assert set(series) == {"__name__", "namespace", "dilocojob"}
