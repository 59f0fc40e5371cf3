"""[blast-radius] One pod of a job with 64 units of 4 hosts fails: how long until its unit has 4 successors, and which other pods change.

The time begins with the answer to the status write that marks the pod Failed. After the unit was made again, the other 252 pods must still
be the same pods, by uid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

from benchmarks.figure import Figure, percentile
from benchmarks.kube.rig import PodWatch, Rig, failed, job, rig, running, shuffled, watching

HOSTS = 4
LIMIT = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    units: int
    failures: int


FULL = Size(units=64, failures=20)
SMOKE = Size(units=4, failures=2)


async def one_failure(bench: Rig, watch: PodWatch, victim: Obj, units: int) -> float:
    """Seconds until the unit was made again. Raises RuntimeError if another pod was touched."""
    namespace = victim["metadata"]["namespace"]
    unit = victim["metadata"]["labels"][names.LABEL_UNIT]
    everything = await bench.pods(namespace)
    before = [pod for pod in everything if pod["status"]["phase"] != "Failed"]  # the operator keeps earlier victims for their logs
    others = {pod["metadata"]["uid"] for pod in before if pod["metadata"]["labels"][names.LABEL_UNIT] != unit}
    assert len(others) == (units - 1) * HOSTS
    known = set(watch.added)
    await bench.mark([victim], failed)
    begun = time.perf_counter()
    await watch.until(lambda: len(watch.added.keys() - known) >= HOSTS, "the unit's successors made")
    took = max(watch.added[name] for name in watch.added.keys() - known) - begun
    old = {pod["metadata"]["name"] for pod in before if pod["metadata"]["labels"][names.LABEL_UNIT] == unit}
    old.remove(victim["metadata"]["name"])
    await watch.until(lambda: old <= watch.removed, "the unit's other old pods deleted")
    known_names = {each["metadata"]["name"] for each in everything}
    fresh = [pod for pod in await bench.pods(namespace) if pod["metadata"]["name"] not in known_names]
    await bench.mark(fresh, running)
    after = {pod["metadata"]["uid"] for pod in await bench.pods(namespace) if "deletionTimestamp" not in pod["metadata"]}
    if len(fresh) != HOSTS or not others <= after:
        raise RuntimeError(f"one failure in {unit} made {len(fresh)} pods and touched {len(others - after)} of {len(others)} others")
    return took


async def replacement_times(size: Size) -> list[float]:
    async with rig() as bench:
        await bench.add_slices(size.units, hosts=HOSTS)
        namespace = await bench.namespace("blast")
        with bench.operator():
            async with watching(bench.client, namespace) as watch:
                await bench.client.create(names.DILOCO_JOBS, job("blast", namespace, size.units, hosts=HOSTS))
                await watch.until(lambda: len(watch.added) == size.units * HOSTS, "every learner pod made")
                pods = await bench.pods(namespace)
                await bench.mark(pods, running)
                by_unit = {pod["metadata"]["labels"][names.LABEL_UNIT]: pod for pod in shuffled(pods, seed=1)}
                return [await one_failure(bench, watch, pod, size.units) for pod in shuffled(by_unit.values(), seed=2)[: size.failures]]


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the figure. Its value is the longest of all times."""
    size = SMOKE if smoke else FULL
    took = asyncio.run(replacement_times(size))
    value = max(took)
    details = {
        "p50": percentile(took, 0.5),
        "made_again": HOSTS,
        "untouched": (size.units - 1) * HOSTS,
        "units": size.units,
        "hosts": HOSTS,
    }
    yield Figure("blast-radius", value, "s", LIMIT, value < LIMIT, len(took), details)
