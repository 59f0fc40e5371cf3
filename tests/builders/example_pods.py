"""The example jobs, and the pods that an operator makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from builders.jobs import a_job
from builders.stage import Stage
from diloco_operator.api.job import DiLoCoJob, load
from diloco_operator.fleet import Host
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.reconcile.children.places import pinned_places
from diloco_operator.reconcile.children.pods import learner_pods, learner_template_base

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRICS = ("efa", "gpudirect-rdma", "gpudirect-tcpxo", "host-network", "infiniband", "nvl72", "shared-memory")
"""Examples that show what NCCL needs between processes and hosts."""


def job_of(path: Path) -> DiLoCoJob:
    return load(yaml.safe_load(path.read_text()))


def pods_of(path: Path) -> list[dict[str, Any]]:
    """The learner pods of one unit of every pool."""
    job, spec = Stage(a_job()).observed().job, job_of(path).spec
    made = []
    for pool in spec.pools:
        hosts = [Host(f"host-{index}") for index in range(pool.shape.hosts)]
        base = learner_template_base(job, spec, pool, OperatorConfig())
        made += learner_pods(base, unit=f"{pool.name}-0", attempt=1, places=pinned_places({}, "s", hosts), locality="", template_hash="")
    return made
