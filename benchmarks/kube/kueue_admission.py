"""[kueue-admission] Units per second that the real Kueue admits, against bare pod groups of the same pods.

A job whose units all ask for quota at once, of which there is enough. The operator's time runs from the job's POST until a watch has seen
the scheduling gate go from the last learner pod; that of the bare groups from the moment when their first pod is there, POSTed by a client
that does nothing else, until the same. Both need a webhook call, a Workload, an admission and a patch for each unit; the operator also
makes certificates, status and the syncer. The two take turns in coming first, because Kueue holds ever more Workloads.
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
        """When the first pod was seen at all."""
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
        """Return when the last of so many was admitted."""
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
    """Measure from the POST of the job until its last unit was admitted; return its pods as well."""
    wanted = job("queued", namespace, units)
    wanted["spec"] |= {"queueName": QUEUE}
    wanted["spec"]["learners"]["min"] = units  # or those beyond the minimum would wait until it has its nodes
    async with _watching(bench.client, namespace) as admitted:
        begun = time.perf_counter()
        await bench.client.create(names.DILOCO_JOBS, wanted)
        seconds = await admitted.until(units) - begun
    pods = await bench.pods(namespace)
    await bench.client.delete(names.DILOCO_JOBS, namespace, "queued")
    return seconds, pods


async def _bare_seconds(bench: Rig, namespace: str, pods: list[Obj]) -> float:
    """Return the same of copies of the pods, from the moment when the first of them was seen: the client is a process that takes time to
    start."""
    async with _watching(bench.client, namespace) as admitted:
        await asyncio.to_thread(bare_seconds, bench.plane, pods, namespace)
        ended = await admitted.until(len(pods))
        assert admitted.begun is not None
        return ended - admitted.begun


async def compare(size: Size) -> list[tuple[float, float]]:
    """Return (operator's seconds, bare client's seconds) of each run."""
    provide_programs(("kueue",))
    found: list[tuple[float, float]] = []
    async with rig() as bench:
        with tempfile.TemporaryDirectory(prefix="diloco-kueue-") as folder, kueue(bench.plane, Path(folder)) as queues:
            queues.flavor(QUEUE, {})
            queues.cluster_queue(QUEUE, {QUEUE: dict.fromkeys(("cpu", "memory", CATALOGUE["tpu-v5p"].resource), "1000000")})
            with bench.operator():
                first = await bench.namespace("first")
                _queue(queues, first)
                _, pods = await _operator_seconds(bench, first, size.units)  # a warm-up, whose pods the bare groups are copies of
                for run in range(size.runs):
                    mine, bare = await bench.namespace(f"operator-{run}"), await bench.namespace(f"bare-{run}")
                    _queue(queues, mine)
                    _queue(queues, bare)
                    if run % 2:
                        theirs = await _bare_seconds(bench, bare, pods)
                    ours, _ = await _operator_seconds(bench, mine, size.units)
                    if not run % 2:
                        theirs = await _bare_seconds(bench, bare, pods)
                    found.append((ours, theirs))
    return found


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the median of the runs."""
    size = SMOKE if smoke else FULL
    found = asyncio.run(compare(size))
    ratios = [theirs / ours for ours, theirs in found]
    value = statistics.median(ratios)
    details = {
        "units": size.units,
        "ratios": rounded(ratios, 4),
        "operator_units_per_second": rounded([size.units / ours for ours, _ in found], 1),
        "bare_groups_per_second": rounded([size.units / theirs for _, theirs in found], 1),
    }
    yield Figure("kueue-admission", value, "ratio", LIMIT, value >= LIMIT, size.runs, details)
