"""[reconcile-pass] One pure pass over a training job whose units have all just reported: nothing to create, only figures to compare.

[reconcile-pass] is the processor time of a pass over 16 units, over that of a pass of `reference` beside it; the median. The limit, 15 %
above what is reached, finds a change of the code that makes a pass dearer by more than the noise of a run. `instructions`, the number of
Python's bytecode instructions in one pass, is the same on every machine. [reconcile-pass-linear] is the cost of one unit at 256 units, the
most of a job, relative to 16 units: a pass should be linear in units. Passes of both sizes alternate in one run, and the value is the
median of the ratios of neighbours.
"""

from __future__ import annotations

import datetime
import gc
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.reconcile import ObservedState, reconcile

from benchmarks import reference
from benchmarks.figure import Figure

LIMIT = 1.1
"""Passes of the reference."""
LIMIT_RATIO = 1.5
POOLS = 4
REPORT_AGE = 7.0
"""Seconds between two reports of a syncer."""


@dataclass(frozen=True, slots=True)
class Size:
    small: int
    large: int
    """Numbers of units, here and in `small`."""
    passes: int
    """Passes over the small job, each beside one of the reference."""
    repeats: int
    """Passes over the small job, whose mean is compared with one pass over the large job."""
    pairs: int


FULL = Size(small=16, large=256, passes=300, repeats=20, pairs=15)
SMOKE = Size(small=16, large=64, passes=4, repeats=2, pairs=2)


def training_job(units: int) -> tuple[ObservedState, datetime.datetime]:
    """What a pass observes of a job whose units all contribute and have just reported, and the time of the pass."""
    job = a_job("bench").with_learners(units // 2, units)
    for index in range(POOLS):
        job.with_pool(f"pool{index}", max=units // POOLS)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(units))).train()
    if set(stage.states().values()) != {"Training"} or len(stage.states()) != units:
        raise RuntimeError(f"the job does not train: {stage.states()}")
    stage.advance(REPORT_AGE)
    stage.all_contribute(t=11)
    return stage.observed(), datetime.datetime.fromtimestamp(stage.now, datetime.UTC)


def _seconds(call: Callable[[], object], repeat: int = 1) -> float:
    begin = time.process_time()
    for _ in range(repeat):
        call()
    return (time.process_time() - begin) / repeat


def instructions_of(call: Callable[[], object]) -> int:
    """The number of bytecode instructions that this thread executes in one call."""
    monitoring, count, own_thread = sys.monitoring, itertools.count(), threading.get_ident()

    def executed(code: CodeType, offset: int) -> None:
        if threading.get_ident() == own_thread:
            next(count)

    monitoring.use_tool_id(monitoring.PROFILER_ID, "instructions")
    try:
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, executed)
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
        alone = [reference.in_passes(lambda: _seconds(lambda: reconcile(small, now))) for _ in range(size.passes)]
        pairs = [
            (_seconds(lambda: reconcile(small, now), size.repeats), _seconds(lambda: reconcile(large, now))) for _ in range(size.pairs)
        ]
    finally:
        gc.enable()
    instructions = instructions_of(lambda: reconcile(small, now))
    value = statistics.median(passes for _, passes in alone)
    ratio = statistics.median((large_pass / size.large) / (small_pass / size.small) for small_pass, large_pass in pairs)
    details = {"milliseconds": 1000 * statistics.median(seconds for seconds, _ in alone), "instructions": instructions}
    unit = f"passes of benchmarks/reference.py per pass, {size.small} units"
    yield Figure("reconcile-pass", value, unit, LIMIT, value <= LIMIT, size.passes, details)
    unit = f"cost per unit, {size.large} vs {size.small} units"
    yield Figure("reconcile-pass-linear", ratio, unit, LIMIT_RATIO, ratio <= LIMIT_RATIO, size.pairs)
