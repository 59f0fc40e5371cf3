"""Draws the inputs of a week from a seed: a fleet of six kinds, outages of its slices, and jobs with the shapes of public traces.

Sources: alibaba/clusterdata 2026 for kinds and their shares; Helios and Philly for run times; Gavel for sizes and speeds; RSC-1 (arXiv
2410.21680) for failures of nodes.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

DAY = 86_400.0
"""Seconds."""
WEEK = 7 * DAY


# --- fleet ------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster the reference kind is than another. Drawn for each job from a lognormal distribution."""

    quartiles: tuple[float, float, float]

    @property
    def mu(self) -> float:
        """Mean of the logarithm. It is that of the quartiles' logarithms, which are not quite symmetric."""
        return sum(map(math.log, self.quartiles)) / 3

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm. The quartiles of a normal distribution are 1.349 standard deviations apart."""
        return math.log(self.quartiles[2] / self.quartiles[0]) / 1.349

    def draw(self, random_: random.Random) -> float:
        return random_.lognormvariate(self.mu, self.sigma)


NEAR, FAR = Ratio((0.9, 1.2, 1.5)), Ratio((2.3, 4.1, 6.1))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of accelerator."""

    name: str
    share: int
    """Share of the fleet, in parts."""
    ratio: Ratio | None
    """None for the reference kind."""

    @property
    def peak(self) -> float:
        """The speed in a catalogue: that of the median job, with 1 for the reference."""
        return 1 / self.ratio.quartiles[1] if self.ratio else 1.0


KINDS = (
    Kind("reference", 3456, None),
    Kind("far-1", 2494, FAR),
    Kind("near-1", 1752, NEAR),
    Kind("far-2", 1558, FAR),
    Kind("far-3", 976, FAR),
    Kind("near-2", 176, NEAR),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of one host, for one unit. Jobs take either capacity type."""

    kind: str
    spot: bool = False


def fleet(slices: int) -> list[Slice]:
    """A fleet of `slices` slices. Each kind gets its share, by largest remainders. Every fourth slice of a kind is a spot slice."""
    shares = [slices * kind.share / sum(kind.share for kind in KINDS) for kind in KINDS]
    counts = [math.floor(share) for share in shares]
    for index in sorted(range(len(KINDS)), key=lambda index: counts[index] - shares[index])[: slices - sum(counts)]:
        counts[index] += 1
    return [Slice(kind.name, index % 4 == 3) for kind, count in zip(KINDS, counts, strict=True) for index in range(count)]


# --- outages ----------------------------------------------------------------------------------------------------------------------
FAILURES_PER_DAY = 6.5 / 1000
"""Failures of a node per day."""
REPAIR = 4 * 3600.0
"""Mean seconds of a repair, exponential. There is no source, but at this rate of failures it hardly matters."""
SPOT_ON, SPOT_OFF = 8 * 3600.0, 2 * 3600.0
"""Mean seconds for which a spot slice is available, and is away, exponential. There is no source."""


@dataclass(frozen=True, slots=True)
class Outage:
    slice: int
    begin: float
    end: float


def available(slices: Sequence[Slice]) -> float:
    """The mean number of available slices."""
    return sum(SPOT_ON / (SPOT_ON + SPOT_OFF) if each.spot else 1.0 for each in slices)


def outages(slices: Sequence[Slice], until: float, random_: random.Random) -> list[Outage]:
    """The times in which slices are away. A failure while a slice is away does not count."""
    drawn = []
    for index, each in enumerate(slices):
        lasts, away = (SPOT_ON, SPOT_OFF) if each.spot else (math.inf, 0.0)
        now = 0.0
        while now < until:
            failure = random_.expovariate(FAILURES_PER_DAY / DAY)
            leaves = random_.expovariate(1 / lasts) if lasts < math.inf else math.inf
            begin = now + min(failure, leaves)
            now = begin + random_.expovariate(1 / (REPAIR if failure < leaves else away))
            if begin < until:
                drawn.append(Outage(index, begin, now))
    return sorted(drawn, key=lambda outage: (outage.begin, outage.slice))


# --- jobs -------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RunTimes:
    """A lognormal distribution, in seconds. Values above `longest` are drawn anew."""

    mu: float
    sigma: float
    longest: float = 2 * DAY

    def draw(self, random_: random.Random) -> float:
        while (seconds := random_.lognormvariate(self.mu, self.sigma)) > self.longest:
            pass
        return seconds


RUN_TIMES = (RunTimes(5.3, 2.6), RunTimes(6.8, 2.5))
"""Run times of Helios and of Philly. Each is for half of the jobs."""
SIZES, SIZE_WEIGHTS = (1, 2, 4, 8), (70, 10, 15, 5)
GAP_CV = 1.4
"""Standard deviation of the time between two arrivals, over its mean."""
TOKENS_PER_SECOND = 1000.0
"""Throughput of a unit on the reference kind."""
START = 120.0
"""Seconds from when a unit gets a slice to its first step: start of pod and program, and the job's state."""


@dataclass(frozen=True)
class TraceJob:
    """A job as its user wants it."""

    key: str
    created: float
    size: int
    run_time: float
    """Seconds that the job would take with `size` units on slices of mean speed."""
    tokens: float
    """The job is complete when this number is merged."""
    speeds: Mapping[str, float]
    """Kind of the fleet -> tokens per second of one unit there."""
    at_random: tuple[str, ...]
    """All kinds, in random order."""

    @property
    def min(self) -> int:
        """Half of the job's size. This is its quorum, too."""
        return (self.size + 1) // 2

    @property
    def max(self) -> int:
        return 2 * self.size

    @cached_property
    def by_speed(self) -> tuple[str, ...]:
        """All kinds, the fastest for this job first, as a user would order them who knows the speeds."""
        return tuple(sorted(self.speeds, key=lambda kind: (-self.speeds[kind], kind)))


def jobs(slices: Sequence[Slice], load: float, seconds: float, random_: random.Random) -> list[TraceJob]:
    """Jobs whose run times multiplied by sizes add up to `load` times the slices that are available in this time. The last job is cut to
    fit."""
    drawn = list(_run_times(load * available(slices) * seconds, random_))
    gaps = [random_.gammavariate(1 / GAP_CV**2, 1.0) for _ in range(len(drawn) + 1)]
    scale, now = seconds / sum(gaps), 0.0
    kinds = {each.kind for each in slices}
    trace = []
    for index, ((run_time, size), gap) in enumerate(zip(drawn, gaps, strict=False)):
        now += gap * scale
        drawn_speeds = {kind.name: TOKENS_PER_SECOND / (kind.ratio.draw(random_) if kind.ratio else 1.0) for kind in KINDS}
        order = random_.sample(sorted(drawn_speeds), len(drawn_speeds))
        speeds = {kind: drawn_speeds[kind] for kind in drawn_speeds if kind in kinds}
        mean = sum(speeds[each.kind] for each in slices) / len(slices)
        at_random = tuple(kind for kind in order if kind in kinds)
        trace.append(TraceJob(f"job-{index:05d}", now, size, run_time, run_time * size * mean, speeds, at_random))
    return trace


def _run_times(slice_seconds: float, random_: random.Random) -> Iterator[tuple[float, int]]:
    """Yield run times and sizes until they add up to `slice_seconds`."""
    while slice_seconds > 0:
        size = random_.choices(SIZES, SIZE_WEIGHTS)[0]
        run_time = min(random_.choice(RUN_TIMES).draw(random_), slice_seconds / size)
        slice_seconds -= run_time * size
        yield run_time, size
