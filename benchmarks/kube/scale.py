"""[scale-from-zero] From the POST of a job to the moment when all its units train, on nodes that Karpenter makes for it.

This is measured twice, without nodes and with all nodes present; the difference is the cost of growing. It is divided by the time that
Karpenter and kube-scheduler need for copies of the same pods without an operator, from the first POST until all run, also without nodes at
the beginning.

[scale-to-zero] From the suspension of that job until Karpenter has none of its machines left, divided by the time from the deletion of the
copies until the same; the copies are on machines of another node pool. Both begin at the same moment: Karpenter looks for unused nodes
every 10 s and looks again 15 s later, so at different moments they would differ by chance. A node that misses one look waits for the next.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from builders.jobs import JobBuilder, template
from builders.karpenter import h100
from diloco_operator.api import names
from diloco_operator.api.status import UnitState
from diloco_operator.kube.client import Obj

from benchmarks.figure import Figure, rounded
from benchmarks.kube.growing_rig import GrowingRig, growing_rig
from benchmarks.kube.rig import bare_copy, side_by_side
from benchmarks.kube.simulated_syncer import simulated_syncer

LIMIT = 1.3
OURS, BARE = "ours", "bare"
"""Two node pools with the same machines."""


@dataclass(frozen=True, slots=True)
class Size:
    units: int
    runs: int


FULL = Size(units=8, runs=5)
SMOKE = Size(units=1, runs=1)


@dataclass(frozen=True, slots=True)
class Run:
    """Times of one run, in seconds."""

    from_zero: float
    on_nodes: float
    bare: float
    to_zero: float
    bare_to_zero: float

    @property
    def growth(self) -> float:
        return (self.from_zero - self.on_nodes) / self.bare


def a_job(name: str, namespace: str, units: int) -> Obj:
    """A job whose units have one host of eight GPUs each."""
    where = template(nodeSelector={"karpenter.sh/nodepool": OURS})
    pool = {"hosts": 1, "accelerator": "nvidia-h100-80gb", "acceleratorsPerHost": 8, "min": units, "max": units, "template": where}
    return (
        JobBuilder(name)
        .in_namespace(namespace)
        .with_learners(units, units)
        .with_pool("h100", **pool, provisioning={"mode": "Autoscaler"})
        .with_training(steps=100_000)
        .build()
    )


async def seconds_to_train(bench: GrowingRig, namespace: str, name: str, units: int, address: str) -> float:
    """Seconds from the POST of the job until all units train."""
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/dilocojobs/{name}"

    def trains() -> bool:
        # The simulated syncer reports units before their pods run, and the operator believes it. So check pods and slices as well.
        if bench.runs(namespace) < units:
            return False
        found: list[Obj] = bench.plane.request("GET", path).get("status", {}).get("units", [])
        return len([unit for unit in found if unit["state"] == UnitState.TRAINING and unit.get("slice")]) == units

    begun = time.perf_counter()
    await bench.client.create(names.DILOCO_JOBS, a_job(name, namespace, units))

    def made() -> bool:
        learners = f"{names.LABEL_COMPONENT}%3D{names.COMPONENT_LEARNER},{names.LABEL_JOB}%3D{name}"
        pods = bench.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={learners}")["items"]
        syncer = bench.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name={name}-syncer")["items"]
        return len(pods) == units and bool(syncer) and bool(syncer[0]["spec"].get("nodeName"))

    await bench.until(made, "every pod of the job made")
    async with simulated_syncer(bench, namespace, name, address):
        await bench.until(trains, "every unit trains")
        return time.perf_counter() - begun


async def compare(size: Size) -> list[Run]:
    async with growing_rig([h100(OURS), h100(BARE)], volumes=2 * size.runs) as bench:
        with bench.operator({"progressInterval": "500ms"}):
            return [await one(bench, run, size.units) for run in range(size.runs)]


async def one(bench: GrowingRig, run: int, units: int) -> Run:
    karpenter = bench.autoscaler
    ours, bare = f"ours-{run}", f"bare-{run}"
    for namespace in (ours, bare):
        await asyncio.to_thread(bench.plane.kubectl, "create", "namespace", namespace)
        await asyncio.to_thread(bench.plane.kubectl, "wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=180s")
    for pool in (OURS, BARE):
        karpenter.consolidate_after(pool, "Never")
    from_zero = await seconds_to_train(bench, ours, "first", units, f"127.78.{run}.1")
    pods = await bench.pods(ours)
    await bench.client.delete(names.DILOCO_JOBS, ours, "first")
    await bench.until(lambda: bench.runs(ours) == 0, "the first job's pods gone")
    on_nodes = await seconds_to_train(bench, ours, "second", units, f"127.78.{run}.2")

    copies = [elsewhere(bare_copy(pod, bare)) for pod in pods]
    begun = time.perf_counter()
    await side_by_side([partial(bench.client.create, names.PODS, copy) for copy in copies])
    await bench.until(lambda: bench.runs(bare) == units, "every bare pod runs")
    bare_seconds = time.perf_counter() - begun

    for pool in (OURS, BARE):
        karpenter.consolidate_after(pool, "1s")
    begun = time.perf_counter()
    await asyncio.gather(
        bench.client.patch(names.DILOCO_JOBS, ours, "second", {"spec": {"suspend": True}}),
        asyncio.to_thread(bench.plane.request, "DELETE", f"/api/v1/namespaces/{bare}/pods", {"gracePeriodSeconds": 0}),
    )
    to_zero, bare_to_zero = await asyncio.gather(*(seconds_to_zero(bench, pool, begun) for pool in (OURS, BARE)))
    await bench.client.delete(names.DILOCO_JOBS, ours, "second")
    return Run(from_zero, on_nodes, bare_seconds, to_zero, bare_to_zero)


async def seconds_to_zero(bench: GrowingRig, pool: str, begun: float) -> float:
    await bench.until(lambda: not bench.autoscaler.claims_of(pool), "no machine left")
    return time.perf_counter() - begun


def elsewhere(pod: Obj) -> Obj:
    """The pod for machines of the other node pool. Its owner is in another namespace, so it is removed: the garbage collector would delete
    the pod."""
    meta = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {**pod, "metadata": meta, "spec": {**spec, "nodeSelector": {"karpenter.sh/nodepool": BARE}}}


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the medians of the runs."""
    size = SMOKE if smoke else FULL
    runs = asyncio.run(compare(size))
    growths = [run.growth for run in runs]
    value = statistics.median(growths)
    details = {
        "units": size.units,
        "ratios": rounded(growths, 3),
        "from_zero_s": rounded([run.from_zero for run in runs], 2),
        "on_nodes_s": rounded([run.on_nodes for run in runs], 2),
        "bare_s": rounded([run.bare for run in runs], 2),
    }
    yield Figure("scale-from-zero", value, "ratio", LIMIT, value <= LIMIT, size.runs, details)
    job_s, bare_s = [run.to_zero for run in runs], [run.bare_to_zero for run in runs]
    shrinks = [job_seconds / bare_seconds for job_seconds, bare_seconds in zip(job_s, bare_s, strict=True)]
    value = statistics.median(shrinks)
    shrinking = {"units": size.units, "ratios": rounded(shrinks, 3), "job_s": rounded(job_s, 2), "bare_s": rounded(bare_s, 2)}
    yield Figure("scale-to-zero", value, "ratio", LIMIT, value <= LIMIT, size.runs, shrinking)
