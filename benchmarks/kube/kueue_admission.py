"""[kueue-admission] Units per second that the real Kueue admits, against bare pod groups of the same pods.

All units of a job ask for quota at once, and there is enough of it. The operator's time runs from the job's POST until a watch has seen the
scheduling gate go from the last learner pod. The time of the bare groups ends in the same way; it begins when their first pod exists, which
a client POSTs that does nothing else. Both need a webhook call, a Workload, an admission and a patch for each unit; the operator also makes
certificates, status and the syncer. The two take turns in coming first, because Kueue holds ever more Workloads.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from builders.control_plane import provide_programs
from builders.kueue import Kueue, kueue
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.kube.client import Client, Obj

from benchmarks.figure import Figure, rounded
from benchmarks.kube.rig import Rig, bare_seconds, job, rig

LIMIT = 0.8
QUEUE = "bench"
_WITHIN = 240.0


@dataclass(frozen=True, slots=True)
class Size:
    units: int
    runs: int


FULL = Size(units=100, runs=6)
SMOKE = Size(units=4, runs=2)


class _Admitted:
    """When each learner pod of a namespace lost its gate, on `time.perf_counter`'s clock."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.begun: float | None = None
        """When the first pod was seen. None if none was."""
        self._changed = asyncio.Event()

    def see(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if self.begun is None:
            self.begun = time.perf_counter()
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
        if names.KUEUE_GATE not in gates and name not in self.at:
            self.at[name] = time.perf_counter()
            self._changed.set()

    async def until(self, count: int) -> float:
        """Wait until `count` pods are admitted, and return when the last one was."""
        async with asyncio.timeout(_WITHIN):
            while len(self.at) < count:
                self._changed.clear()
                await self._changed.wait()
        return max(self.at.values())


@asynccontextmanager
async def _watching(client: Client, namespace: str) -> AsyncIterator[_Admitted]:
    selector, admitted = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}", _Admitted()
    version = (await client.list(names.PODS, namespace)).resource_version

    async def follow() -> None:
        stream = client.watch(names.PODS, namespace, resource_version=version, label_selector=selector, timeout_seconds=2 * _WITHIN)
        async for event in stream:
            admitted.see(event.object)

    task = asyncio.create_task(follow())
    try:
        yield admitted
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _queue(queues: Kueue, namespace: str) -> None:
    queues.local_queue(QUEUE, QUEUE, namespace=namespace)


async def _operator_seconds(bench: Rig, namespace: str, units: int) -> tuple[float, list[Obj]]:
    """(seconds from the POST of the job until its last unit was admitted, the job's pods)."""
    wanted = job("queued", namespace, units)
    wanted["spec"] |= {"queueName": QUEUE}
    wanted["spec"]["learners"]["min"] = units  # otherwise units beyond the minimum would wait until the minimum has its nodes
    async with _watching(bench.client, namespace) as admitted:
        begun = time.perf_counter()
        await bench.client.create(names.DILOCO_JOBS, wanted)
        seconds = await admitted.until(units) - begun
    pods = await bench.pods(namespace)
    await bench.client.delete(names.DILOCO_JOBS, namespace, "queued")
    return seconds, pods


async def _bare_seconds(bench: Rig, namespace: str, pods: list[Obj]) -> float:
    """Seconds until copies of the pods were admitted, from the moment when the first was seen: the process that creates them takes time to
    start."""
    async with _watching(bench.client, namespace) as admitted:
        await asyncio.to_thread(bare_seconds, bench.plane, pods, namespace)
        ended = await admitted.until(len(pods))
        assert admitted.begun is not None
        return ended - admitted.begun


async def compare(size: Size) -> list[tuple[float, float]]:
    """(operator's seconds, bare groups' seconds) of each run."""
    provide_programs(("kueue",))
    seconds: list[tuple[float, float]] = []
    async with rig() as bench:
        with tempfile.TemporaryDirectory(prefix="diloco-kueue-") as folder, kueue(bench.plane, Path(folder)) as queues:
            queues.flavor(QUEUE, {})
            queues.cluster_queue(QUEUE, {QUEUE: dict.fromkeys(("cpu", "memory", CATALOGUE["tpu-v5p"].resource), "1000000")})
            with bench.operator():
                first = await bench.namespace("first")
                _queue(queues, first)
                _, pods = await _operator_seconds(bench, first, size.units)  # a warm-up; the bare groups are copies of its pods
                for run in range(size.runs):
                    operator_namespace, bare_namespace = await bench.namespace(f"operator-{run}"), await bench.namespace(f"bare-{run}")
                    _queue(queues, operator_namespace)
                    _queue(queues, bare_namespace)
                    if run % 2:
                        bare_s = await _bare_seconds(bench, bare_namespace, pods)
                    operator_s, _ = await _operator_seconds(bench, operator_namespace, size.units)
                    if not run % 2:
                        bare_s = await _bare_seconds(bench, bare_namespace, pods)
                    seconds.append((operator_s, bare_s))
    return seconds


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the median of the runs."""
    size = SMOKE if smoke else FULL
    seconds = asyncio.run(compare(size))
    ratios = [bare_s / operator_s for operator_s, bare_s in seconds]
    value = statistics.median(ratios)
    details = {
        "units": size.units,
        "ratios": rounded(ratios, 4),
        "operator_units_per_second": rounded([size.units / operator_s for operator_s, _ in seconds], 1),
        "bare_groups_per_second": rounded([size.units / bare_s for _, bare_s in seconds], 1),
    }
    yield Figure("kueue-admission", value, "ratio", LIMIT, value >= LIMIT, size.runs, details)
