"""[reconcile-pass] One pure pass over a job that trains and all of whose units have just reported: nothing to create, figures to compare.

[reconcile-pass] is the median pass over 16 units, in time of the processor. Its `instructions`, those of Python's bytecode in one pass, are
the same on every machine: where they have not grown, a longer pass is the machine's. [reconcile-pass-linear] is what one unit costs at
1,024 units relative to 16: a pass is linear in units. Passes of both sizes alternate in one run, and the value is the median of the ratios
of neighbours.
"""

from __future__ import annotations

import datetime
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.reconcile import ObservedState, reconcile

from benchmarks.figure import Figure

LIMIT_MS = 2.0
LIMIT_RATIO = 1.5
POOLS = 4
REPORT_AGE = 7.0
"""Seconds between two reports of a syncer."""


@dataclass(frozen=True, slots=True)
class Size:
    small: int
    large: int
    """Units."""
    repeats: int
    """Passes over the small job whose mean is one measurement."""
    pairs: int


FULL = Size(small=16, large=1024, repeats=20, pairs=15)
SMOKE = Size(small=16, large=64, repeats=2, pairs=2)


def training_job(units: int) -> tuple[ObservedState, datetime.datetime]:
    """Return what a pass observes of a job all of whose units contribute and have just reported, and when."""
    job = a_job("bench").with_learners(units // 2, units)
    for index in range(POOLS):
        job.with_pool(f"pool{index}", max=units // POOLS)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(units))).train()
    if set(stage.states().values()) != {"Training"} or len(stage.states()) != units:
        raise RuntimeError(f"the job does not train: {stage.states()}")
    stage.advance(REPORT_AGE)
    stage.all_contribute(t=11)
    return stage.observed(), datetime.datetime.fromtimestamp(stage.now, datetime.UTC)


def _seconds(call: Callable[[], object], repeat: int) -> float:
    begin = time.process_time()
    for _ in range(repeat):
        call()
    return (time.process_time() - begin) / repeat


def _instructions(call: Callable[[], object]) -> int:
    """Return bytecode instructions of one call."""
    monitoring, count = sys.monitoring, itertools.count()
    monitoring.use_tool_id(monitoring.PROFILER_ID, "instructions")
    try:
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, lambda code, offset: next(count))
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION)
        call()
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.NO_EVENTS)
    finally:
        monitoring.free_tool_id(monitoring.PROFILER_ID)
    return next(count)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    small, now = training_job(size.small)
    large, _ = training_job(size.large)
    gc.collect()
    gc.disable()
    try:
        pairs = [
            (_seconds(lambda: reconcile(small, now), size.repeats), _seconds(lambda: reconcile(large, now), 1)) for _ in range(size.pairs)
        ]
    finally:
        gc.enable()
    instructions = _instructions(lambda: reconcile(small, now))
    median_ms = statistics.median(small_pass for small_pass, _ in pairs) * 1000
    ratio = statistics.median((large_pass / size.large) / (small_pass / size.small) for small_pass, large_pass in pairs)
    unit = f"ms per pass, {size.small} units"
    details = {"instructions": instructions}
    yield Figure("reconcile-pass", median_ms, unit, LIMIT_MS, median_ms <= LIMIT_MS, size.pairs * size.repeats, details)
    unit = f"cost per unit, {size.large} vs {size.small} units"
    yield Figure("reconcile-pass-linear", ratio, unit, LIMIT_RATIO, ratio <= LIMIT_RATIO, size.pairs)
