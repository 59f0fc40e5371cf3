"""[placement-trace] A week on a synthetic fleet under the flow, and under simpler rules: tokens, completion, fairness, moves.

Time is virtual; the flow is the operator's. `python -m benchmarks.placement_trace --seed N` takes other fleets, jobs and outages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from statistics import fmean
from typing import cast

from benchmarks.figure import Figure
from benchmarks.from_seed import main
from benchmarks.plots import plot
from benchmarks.trace.by_flow import by_flow, equal, known, measured
from benchmarks.trace.chart import ByRule, draw
from benchmarks.trace.inputs import DAY
from benchmarks.trace.outcome import Outcome, over_seeds
from benchmarks.trace.rules import at_random, by_speed, first_fit, gangs
from benchmarks.trace.world import Ran, Rule, Week, simulate

FLOW, RANDOM = "flow", "first-fit-random"
RULES: Mapping[str, Rule] = {
    FLOW: Rule(partial(by_flow, knowledge=measured)),
    RANDOM: Rule(partial(first_fit, order=at_random)),
    "first-fit-best": Rule(partial(first_fit, order=by_speed)),
    "gangs": Rule(gangs, quorum=lambda job: job.size),
    "flow-blind": Rule(partial(by_flow, knowledge=equal)),
    "flow-known": Rule(partial(by_flow, knowledge=known)),
}
"""The flow as the operator has it; simpler rules to compare it with; and the flow with all speeds known, to show what measuring costs."""
OTHERS = tuple(name for name in RULES if name not in (FLOW, "flow-known"))
EXPECTED = {0.8: 1.05, 1.1: 1.14, 1.5: 1.34}
"""Load -> the flow's tokens over the tokens of first fit in random order, as a prototype measured it."""
LIMIT = 1.0
"""The flow must never have fewer tokens than another rule, with any seed."""


@dataclass(frozen=True, slots=True)
class Size:
    slices: int
    days: float
    seeds: int
    processes: int


FULL = Size(32, 7.0, 3, os.cpu_count() or 1)
SMOKE = Size(24, 0.1, 1, 1)


def ran(size: Size, seed: int, load: float, rule: str) -> Ran:
    return simulate(Week.of(size.slices, load, size.days * DAY, seed), RULES[rule])


def figures(size: Size, seed: int) -> Iterator[Figure]:
    seeds = range(seed, seed + size.seeds)
    keys = [(each, load, rule) for load in EXPECTED for each in seeds for rule in RULES]
    runs = _all(size, keys)
    for load, expected in EXPECTED.items():
        outcomes: dict[str, list[Outcome]] = {rule: [] for rule in RULES}
        for each in seeds:
            week = Week.of(size.slices, load, size.days * DAY, each)
            under = {rule: next(runs) for rule in RULES}
            rivals = under[RANDOM].job_seconds / week.seconds
            for rule, ran_ in under.items():
                outcomes[rule].append(Outcome.of(week, ran_, rivals))
        yield _figure(size, seed, load, expected, outcomes)


def _all(size: Size, keys: list[tuple[int, float, str]]) -> Iterator[Ran]:
    """Yield the runs in the order of the keys, from `size.processes` processes. They are spawned, since this process may have threads."""
    if size.processes == 1:
        yield from (ran(size, *key) for key in keys)
        return
    with ProcessPoolExecutor(max_workers=size.processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(ran, size), *zip(*keys, strict=True))


def _figure(size: Size, seed: int, load: float, expected: float, outcomes: Mapping[str, list[Outcome]]) -> Figure:
    least = min(_ratio(outcomes[FLOW], outcomes[rule], "tokens_per_hour")["least"] for rule in OTHERS)
    details: dict[str, object] = {
        "seed": seed,
        "load": load,
        "expected_by_random": expected,
        "by_random": {
            rule: {
                "tokens": _ratio(runs, outcomes[RANDOM], "tokens_per_hour"),
                "mean_completion": _ratio(runs, outcomes[RANDOM], "mean_completion"),
            }
            for rule, runs in outcomes.items()
        },
        "tokens_of_flow_by": {rule: _ratio(outcomes[FLOW], outcomes[rule], "tokens_per_hour") for rule in OTHERS},
        "rules": {rule: _means(runs) for rule, runs in outcomes.items()},
    }
    unit = f"x the tokens of the best other rule, the least of {size.seeds} seeds; {size.slices} slices, {size.days:g} days, load {load}"
    return Figure(f"placement-trace-{load}", least, unit, LIMIT, least >= LIMIT, size.seeds, details)


def _ratio(of: list[Outcome], by: list[Outcome], measure: str) -> dict[str, float]:
    return over_seeds([getattr(own, measure) / getattr(other, measure) for own, other in zip(of, by, strict=True)])


def _means(outcomes: list[Outcome]) -> dict[str, float]:
    by_outcome = [asdict(outcome) for outcome in outcomes]
    return {name: round(fmean(each[name] for each in by_outcome), 3) for name in by_outcome[0]}


def measure(*, smoke: bool) -> Iterator[Figure]:
    by_load: dict[float, ByRule] = {}
    for load, figure in zip(EXPECTED, figures(SMOKE if smoke else FULL, 0), strict=True):
        by_load[load] = cast("ByRule", figure.details["by_random"])
        yield figure
    plot("placement-trace", partial(draw, by_load), smoke=smoke)


if __name__ == "__main__":
    sys.exit(main("benchmarks.placement_trace", partial(figures, FULL)))
