"""[units-per-second] How fast the operator makes 1,000 jobs of 16 units, from nothing.

From the moment when 1,000 jobs are handed to the API until the last of 16,000 learner pods (one host to a unit) was created: watch,
reconcile, placement, every object of each job and its status, all on the in-memory API in one process with the operator.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from diloco_operator.api import names

from benchmarks.report import emit
from benchmarks.simulated_cluster import UNITS, job, new_api, operating

BENCH = "units-per-second"
JOBS = 1000
LIMIT = 500.0
RUNS = 3


async def measure(jobs: int) -> float:
    """Units a second."""
    api = await new_api(jobs * UNITS)
    wanted = jobs * UNITS
    made: set[str] = set()
    last = 0.0
    complete = asyncio.Event()

    def on_create(name: str, at: float) -> None:
        nonlocal last
        if not name.endswith("-syncer"):
            made.add(name)
            last = at
            if len(made) == wanted:
                complete.set()

    async with operating(api, kubelet=False, on_create=on_create):
        await asyncio.sleep(0.5)  # the operator is up and idle: nodes are known, no job is
        begun = time.perf_counter()
        for index in range(jobs):
            await api.create(names.DILOCO_JOBS, job(f"job-{index}"))
            await asyncio.sleep(0)
        await complete.wait()
    return wanted / (last - begun)


def main() -> bool:
    """Median of the runs."""
    rates = [asyncio.run(measure(JOBS)) for _ in range(RUNS)]
    value = statistics.median(rates)
    return emit(BENCH, value, "units/s", LIMIT, value >= LIMIT, RUNS, jobs=JOBS, units=UNITS, worst=round(min(rates), 1))
