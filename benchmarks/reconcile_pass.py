"""[reconcile-pass] One pure pass over a job that trains, all of whose units have just reported: nothing to create, figures to compare.

Two figures: the median pass over 16 units (limit 2 ms), and what one unit costs at 1,024 units relative to 16 (limit 1.5: the cost
of a pass is linear in units; measured pairwise in one run, the median of the ratios).
"""

from __future__ import annotations

import datetime
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.certificates.view import project_certificates
from diloco_operator.fleet import Inventory, project_node
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.plan import Create
from diloco_operator.reconcile import Children, ObservedState, OperatorConfig, parse_job, project_child, project_pod, reconcile
from diloco_operator.report import Report, UnitPhase, UnitReport

from benchmarks.report import emit

LIMIT_MS = 2.0
LIMIT_RATIO = 1.5
START = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
_KINDS = {"ConfigMap": "config_map", "Service": "service", "PersistentVolumeClaim": "volume_claim"}


def _job(units: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "learner", "image": "trainer", "command": ["train"]}]}}
    pools = [
        {
            "name": f"pool{index}",
            "accelerator": "tpu-v5p",
            "topology": "2x2x1",
            "learners": {"min": 0, "max": units // 4},
            "template": template,
        }
        for index in range(4)
    ]
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "bench", "namespace": "default", "uid": "uid-bench", "generation": 1},
        "spec": {"learners": {"min": units // 2, "max": units}, "pools": pools, "training": {"steps": 1000}},
    }


_V5P = CATALOGUE["tpu-v5p"]


def _node(index: int) -> dict[str, Any]:
    name = f"tpu-{index}"
    labels = {
        "kubernetes.io/hostname": name,
        **_V5P.labels[0].on_node(topology="2x2x1", per_host=4),
        "cloud.google.com/gke-nodepool": f"np-{index}",
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {_V5P.resource: "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def training_state(units: int) -> ObservedState:
    """The snapshot of a job all of whose units contribute, made by reconcile itself from nothing."""
    inventory = Inventory(OperatorConfig().disruption_signals)
    for index in range(units):
        inventory.update_node(project_node(_node(index)))
    inventory.update_node(project_node({**_node(0), "metadata": {"name": "cpu", "labels": {}}}))
    job, pods, children, secrets = _job(units), {}, {}, {}
    issuer = Issuer(START.timestamp, OperatorConfig().certificate_lifetime)
    report = None
    for _ in range(5):
        observed = ObservedState(
            job=parse_job(job),
            fleet=inventory,
            config=OperatorConfig(),
            pods=tuple(project_pod(pod) for pod in pods.values()),
            children=Children(
                **{_KINDS[kind]: project_child(obj) for kind, obj in children.items()},
                authority=secrets.get("bench-ca"),
                certificates={name: secret for name, secret in secrets.items() if name != "bench-ca"},
            ),
            report=report,
        )
        plan = reconcile(observed, START)
        inventory.set_reservations(observed.job.key, plan.reservations)
        assert not any(wanted.uid for wanted in plan.certificates), "what is made in one pass is not changed in the next"
        for create in certificate_writes(issuer, plan.certificates):
            assert isinstance(create, Create)
            secrets[create.obj["metadata"]["name"]] = project_certificates(create.obj)
        for create in plan.creates:
            obj = create.obj
            target = children if create.resource.kind in _KINDS else pods
            target[create.resource.kind if target is children else obj["metadata"]["name"]] = obj
            if target is pods:
                component = obj["metadata"]["labels"]["diloco.dev/component"]
                running = {"name": component, "state": {"running": {"startedAt": "2026-11-20T12:00:00Z"}}}
                obj["status"] = {"phase": "Running", "containerStatuses": [running]}
                obj["spec"]["nodeName"] = obj["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname", "cpu")
        if plan.status is not None:
            job["status"] = plan.status.status
        names = [unit["name"] for unit in job.get("status", {}).get("units", ())]
        seen = {name: UnitReport(name, 1, UnitPhase.CONTRIBUTING, tokens=10, tokens_per_second=5.0) for name in names}
        report = Report(received_at=START.timestamp(), t=5, steps=1000, seeded=True, units=seen)
    states = [unit["state"] for unit in job["status"]["units"]]
    assert states == ["Training"] * units, "the benchmark's job does not train"
    return observed


def _seconds(call: Callable[[], object], repeat: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - begin) / repeat


def main() -> bool:
    small, large = training_state(16), training_state(1024)
    later = START + datetime.timedelta(seconds=7)
    gc.collect()
    gc.disable()
    try:
        pairs = [(_seconds(lambda: reconcile(small, later), 20), _seconds(lambda: reconcile(large, later), 1)) for _ in range(15)]
    finally:
        gc.enable()
    median_ms = statistics.median(a for a, _ in pairs) * 1000
    ratio = statistics.median((b / 1024) / (a / 16) for a, b in pairs)
    fast = emit("reconcile-pass", median_ms, "ms per pass, 16 units", LIMIT_MS, median_ms <= LIMIT_MS, len(pairs) * 20)
    linear = emit("reconcile-pass-linear", ratio, "cost per unit, 1024 vs 16 units", LIMIT_RATIO, ratio <= LIMIT_RATIO, len(pairs))
    return fast and linear


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
