"""[outer-step-cost] What an outer step costs the processors of the syncer and of a learner.

One job has two learners with steps of 36 ms and a model of 1.26 M parameters in 24 fragments, H = 24, in bfloat16. There is one outer step
for each local step, as in `gradientmail`. Steps sleep, so that processor time is that of the exchange; a learner that runs alone beside
them has the same steps, and its time is subtracted. Processor times of whole processes are divided by the time of a pass of
`benchmarks.reference`; passes are measured all through the run in this process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, RunSize, Workload, each_run
from benchmarks.figure import Figure, rounded
from benchmarks.process_rig import durations
from benchmarks.reference import pass_seconds

SYNCER_LIMIT, LEARNER_LIMIT = 1.21, 0.545
"""Half of what commit b9ef3b70 takes: 2.42 and 1.09."""
LEARNERS = ("a", "b")
TRAINING = {"sync_interval": 24, "compression": "BFloat16"}
PASS_EVERY = 0.5
"""Seconds between two passes of the reference."""


FULL = RunSize(Workload(mebibytes=5, step_seconds=0.036), runs=3, warm_up_steps=100, window=20.0)
SMOKE = RunSize(Workload(mebibytes=5, step_seconds=0.036), runs=1, warm_up_steps=5, window=1.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds."""

    syncer: float
    """The syncer, for each outer step."""
    learner: float
    """A learner, for each local step; the mean of both."""
    reference: float
    """A pass of the reference."""


def processor_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(directory: Path, size: RunSize) -> Cost:
    with ExchangeRig(directory, size.workload, TRAINING) as rig:
        syncer = rig.start_syncer()
        learners = [rig.start_learner(unit) for unit in LEARNERS]
        alone = rig.start_learner("alone", alone=True)
        units = [*LEARNERS, "alone"]
        rig.wait_for_steps(units, size.warm_up_steps)
        watched = [syncer, *learners, alone]
        start, before = time.monotonic(), [processor_seconds(process.pid) for process in watched]
        passes = []
        while time.monotonic() < start + size.window:
            passes.append(pass_seconds())
            time.sleep(PASS_EVERY)
        end, after = time.monotonic(), [processor_seconds(process.pid) for process in watched]
        steps = [len(durations(ends, start, end)) for ends in rig.steps_until(units, end)]
    spent = [now - then for now, then in zip(after, before, strict=True)]
    per_step = [seconds / count for seconds, count in zip(spent[1:], steps, strict=True)]
    outer_steps = sum(steps[:2]) / 2
    return Cost(spent[0] / outer_steps, sum(per_step[:2]) / 2 - per_step[2], median(passes))


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the medians of the runs."""
    size = SMOKE if smoke else FULL
    costs = each_run(size.runs, lambda folder: cost(folder, size))
    reference = median(cost_.reference for cost_ in costs)
    for name, limit, seconds in (
        ("outer-step-cost-syncer", SYNCER_LIMIT, [cost_.syncer for cost_ in costs]),
        ("outer-step-cost-learner", LEARNER_LIMIT, [cost_.learner for cost_ in costs]),
    ):
        value = median(seconds) / reference
        details = {"milliseconds": rounded([1e3 * seconds_ for seconds_ in seconds], 3), "pass_ms": round(1e3 * reference, 3)}
        yield Figure(name, value, "passes of the reference", limit, value <= limit, size.runs, details)
