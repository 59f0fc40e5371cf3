"""[wan-speedup] [wan-step] One job across four regions, against torch's data parallel over the same links, in one run.

`wan-step` is the median step of a job with a learner in each region, over that of the same job in one place. It is the worse of BFloat16
and Int4. `wan-speedup` is a step of data parallel over these links, over a step of the job in BFloat16, in which data parallel sends its
gradients as well. Both are without losses. The lines also have the tokens per hour, the bytes, the results under two rates of loss, and
what it costs when a region is cut off for a minute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.exchange_rig import Workload
from benchmarks.figure import Figure
from benchmarks.wan.arms import Cut, Size, apart, data_parallel, together
from benchmarks.wan.network import WideNetwork
from benchmarks.wan.probe import measured
from benchmarks.wan.regions import REGIONS, scaled

SPEEDUP_LIMIT = 20.0
STEP_LIMIT = 1.05
FULL = Size(
    Workload(mebibytes=16, step_seconds=0.25),
    regions=4,
    settled=48,
    seconds=30.0,
    group_steps=4,
    cut_seconds=60.0,
    losses=(0.0, 0.001, 0.01),
    compressions=("BFloat16", "Int4"),
)
SMOKE = Size(
    Workload(mebibytes=1, step_seconds=0.05),
    regions=2,
    settled=2,
    seconds=1.0,
    group_steps=1,
    cut_seconds=1.0,
    losses=(0.0,),
    compressions=("BFloat16",),
)


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield both figures of one run."""
    size = SMOKE if smoke else FULL
    links = scaled(size.parameters, size.workload.step_seconds, REGIONS[: size.regions])
    jobs: dict[str, Any] = {}
    steps: dict[str, float] = {}
    cut: Cut | None = None
    with tempfile.TemporaryDirectory() as directory, WideNetwork(links) as network:
        folder = Path(directory)
        congestion_control = network.congestion_control
        probed = measured(network, judged=not smoke)
        for compression in size.compressions:
            in_one_place = together(folder / f"together-{compression}", size, network, compression)
            windows, cut = apart(folder / f"apart-{compression}", size, network, compression, cut=compression == size.compressions[-1])
            steps[compression] = windows[0].step_seconds / in_one_place.step_seconds
            jobs[compression] = {"together": in_one_place.as_details(), "apart": [window.as_details() for window in windows]}
        group = data_parallel(folder / "group", size, network)
    step_of = {compression: jobs[compression]["apart"][0]["step_seconds"] for compression in size.compressions}
    speedup = group[0].step_seconds / step_of["BFloat16"]
    network_line = {
        "congestion_control": congestion_control,
        "megabits": [round(rate / 1e6, 1) for rate in links.rates],
        "round_trips_ms": {f"{a}-{b}": round(1e3 * seconds, 1) for (a, b), seconds in probed.round_trips.items()},
        "measured_megabits": {f"{a}-{b}": round(rate / 1e6, 1) for (a, b), rate in probed.rates.items()},
    }
    details = {
        "network": network_line,
        "data_parallel": [window.as_details() for window in group],
        "jobs": jobs,
        "tokens_over_data_parallel": {
            compression: round(jobs[compression]["apart"][0]["merged_tokens_per_hour"] / group[0].tokens_per_hour, 2)
            for compression in size.compressions
        },
    }
    yield Figure("wan-speedup", speedup, "ratio", SPEEDUP_LIMIT, speedup >= SPEEDUP_LIMIT, 1, details)
    worst = max(steps.values())
    assert cut is not None, "the last job has been cut"
    of_step = {
        "by_compression": {name: round(ratio, 4) for name, ratio in steps.items()},
        "cut": {
            "seconds": cut.seconds,
            "others_longest_over_median": round(cut.others_longest_over_median, 3),
            "own_longest_over_median": round(cut.own_longest_over_median, 3),
            "merges": cut.merges,
            "back_seconds": round(cut.back_seconds, 1),
        },
    }
    yield Figure("wan-step", worst, "ratio", STEP_LIMIT, worst <= STEP_LIMIT, 1, of_step)
