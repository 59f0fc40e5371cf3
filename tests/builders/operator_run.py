"""An operator in this process: `async with running(an_operator(api, telemetry, now=wall_clock)): ...`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.operator import DecisionOptions, Operator, RunConfig
from diloco_operator.plan import Plan
from diloco_operator.reconcile import Judged, ObservedState, OperatorConfig
from diloco_operator.telemetry.watcher import Telemetry


async def an_api(now: Callable[[], float], *, seed: int = 3) -> MemoryApi:
    """An API server that knows DiLoCoJobs; `now` is the wall clock in seconds since the epoch."""
    api = MemoryApi(clock=lambda: datetime.fromtimestamp(now(), tz=UTC), random=random.Random(seed))
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    return api


type Decide = Callable[[ObservedState, datetime], Plan]


def an_operator(
    client: Any,
    telemetry: Telemetry,
    *,
    now: Callable[[], float],
    seed: int = 7,
    config: OperatorConfig | None = None,
    decide: Decide | None = None,
    **options: Any,
) -> Operator:
    """`client` may be any that has a `Client`'s methods. It stops at once unless `run` says otherwise; `options` go to `Operator`.
    `decide`: instead of the reconcile."""
    decisions = DecisionOptions(config or OperatorConfig())
    if decide is not None:
        decisions = replace(decisions, judge=lambda _, now: Judged(None, lambda observed: decide(observed, now)))
    chosen = {"decisions": decisions, "run": RunConfig(stop_grace=0), "rng": random.Random(seed).random, **options}
    return Operator(client, telemetry=telemetry, now=now, **chosen)


@asynccontextmanager
async def running(operator: Operator, *, defects: bool = False) -> AsyncIterator[asyncio.Task[None]]:
    """The operator runs while the context is open. Raises what ended it earlier, and fails after a defect, unless `defects`."""
    task = asyncio.create_task(operator.run())
    try:
        yield task
        if task.done() and not task.cancelled():
            task.result()
        assert defects or operator.counters.defects == 0, "a reconcile met a defect; the log has its traceback"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
