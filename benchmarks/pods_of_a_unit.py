"""[pods-512-hosts] Bytes of all objects that one attempt of a unit with 512 hosts brings: pods, and the list of the hosts.

The value is for the larger one of a TPU slice and a group of GPU hosts. `tpu_growth` and `gpu_growth` are the bytes for a host in the large
unit over those in a unit with an eighth of the hosts: 1 if no pod holds a list of all hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from builders.jobs import a_job
from builders.nodes import a_gpu_node, a_tpu_slice
from builders.stage import Stage

from benchmarks.figure import Figure

LIMIT_MIB = 5.0
TOPOLOGIES: Mapping[int, str] = {8: "2x4x4", 64: "4x8x8", 512: "8x16x16"}
"""Hosts -> the topology of v5p slices with 4 chips a host."""
FULL, SMOKE = 512, 64


def tpu_unit(hosts: int) -> Stage:
    job = a_job().with_pool(max=1, topology=TOPOLOGIES[hosts])
    return _started(Stage(job, *a_tpu_slice("gke-cluster-v5p-2f1c07e5", hosts, topology=TOPOLOGIES[hosts])), hosts)


def gpu_unit(hosts: int) -> Stage:
    job = a_job().with_gpu_pool(max=1, hosts=hosts)
    return _started(Stage(job, *(a_gpu_node(f"gke-cluster-h100-2f1c07e5-{index:04}") for index in range(hosts))), hosts)


def _started(stage: Stage, hosts: int) -> Stage:
    stage.settle()
    if len(stage.learner_pods()) != hosts:
        raise RuntimeError(f"{len(stage.learner_pods())} pods of {hosts}: {stage.status['pools']}")
    return stage


def unit_bytes(stage: Stage) -> int:
    """Bytes of the unit's objects as JSON, as they are sent."""
    objects = [*(stage.pods[name] for name in stage.learner_pods()), *stage.host_lists.values()]
    return sum(len(json.dumps(obj, separators=(",", ":"))) for obj in objects)


def measure(*, smoke: bool) -> Iterator[Figure]:
    hosts = SMOKE if smoke else FULL
    sizes = {kind: (unit_bytes(made(hosts)), unit_bytes(made(hosts // 8))) for kind, made in (("tpu", tpu_unit), ("gpu", gpu_unit))}
    largest = max(large for large, _ in sizes.values()) / 2**20
    details = {f"{kind}_mib": round(large / 2**20, 3) for kind, (large, _) in sizes.items()}
    growth = {f"{kind}_growth": round(large / 8 / small, 3) for kind, (large, small) in sizes.items()}
    yield Figure(
        "pods-512-hosts", largest, f"MiB of manifests, one unit of {hosts} hosts", LIMIT_MIB, largest <= LIMIT_MIB, 1, details | growth
    )
