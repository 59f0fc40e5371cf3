"""The draws of the trace, against numbers derived from its parameters."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from statistics import fmean, pstdev, quantiles

import pytest

from benchmarks.trace.inputs import (
    DAY,
    FAR,
    GAP_CV,
    KINDS,
    NEAR,
    RUN_TIMES,
    SIZES,
    WEEK,
    Ratio,
    Slice,
    TraceJob,
    available,
    fleet,
    jobs,
    outages,
)


def drawn(load: float = 1.0, seed: int = 0, slices: int = 48) -> list[TraceJob]:
    return jobs(fleet(slices), load, WEEK, random.Random(seed))


@pytest.mark.parametrize(
    ("ratio", "derived"),
    [
        # mu = (ln 0.9 + ln 1.2 + ln 1.5) / 3 = 0.1608, sigma = ln(1.5 / 0.9) / 1.349 = 0.3787; quartiles exp(mu -+ 0.6745 sigma)
        (NEAR, (0.910, 1.174, 1.516)),
        # mu = 1.3507, sigma = 0.7230
        (FAR, (2.370, 3.860, 6.287)),
    ],
)
def test_ratios_of_speeds_have_the_quartiles_of_their_distribution_near_the_published_ones(
    ratio: Ratio, derived: tuple[float, float, float]
) -> None:
    draw = random.Random(0)
    found = quantiles([ratio.draw(draw) for _ in range(20_000)], n=4)
    assert found == pytest.approx(derived, rel=0.03)  # the standard error of a quartile is 0.7 % at most
    assert derived == pytest.approx(ratio.quartiles, rel=0.06)


@pytest.mark.parametrize(
    ("index", "derived"),
    [
        # exp(mu -+ 0.6745 sigma) of all that is at most 2 days, which cuts off 0.5 %: their quartiles are the quantiles 0.249, 0.498, 0.746
        (0, (34.4, 197.0, 1120.0)),
        # which cuts off 1.8 %: the quantiles 0.246, 0.491, 0.737
        (1, (160.0, 849.0, 4390.0)),
    ],
)
def test_run_times_have_the_quartiles_of_their_trace(index: int, derived: tuple[float, float, float]) -> None:
    draw = random.Random(1)
    found = [RUN_TIMES[index].draw(draw) for _ in range(20_000)]
    assert quantiles(found, n=4) == pytest.approx(derived, rel=0.08)  # the standard error of these is 2.5 %
    assert max(found) <= 2 * DAY


@pytest.mark.slow
def test_gaps_between_arrivals_vary_as_they_should() -> None:
    variations = []
    for seed in range(8):
        times = [job.created for job in drawn(seed=seed)]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        variations.append(pstdev(gaps) / fmean(gaps))
    assert fmean(variations) == pytest.approx(GAP_CV, rel=0.03)


@pytest.mark.parametrize("load", [0.8, 1.1, 1.5])
def test_jobs_want_the_load_of_the_slices_that_are_there(load: float) -> None:
    found = drawn(load)
    slices = fleet(48)
    # of 48 slices 10 are spot slices, which are there 8 of 10 hours: 48 - 10 x 0.2 = 46
    assert available(slices) == pytest.approx(46)
    assert sum(job.run_time * job.size for job in found) == pytest.approx(load * 46 * WEEK)
    assert all(0 < job.created < WEEK for job in found)
    for job in found[:20]:  # on slices of mean speed the tokens take the run time
        mean = fmean(job.speeds[each.kind] for each in slices)
        assert job.tokens / (job.size * mean) == pytest.approx(job.run_time)


def test_sizes_come_as_often_as_published() -> None:
    found = Counter(job.size for job in drawn(slices=96))
    total = sum(found.values())
    # 5,700 jobs: the standard error of a share is 0.6 % at most
    assert [found[size] / total for size in SIZES] == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.02)


def test_a_fleet_has_the_published_shares_of_kinds() -> None:
    found = Counter(each.kind for each in fleet(48))
    # 48 x 3456 / 10,412 = 15.93; 11.50, 8.08, 7.18, 4.4994 and 0.81 for the others: the three largest remainders get one more
    assert [found[kind.name] for kind in KINDS] == [16, 11, 8, 7, 5, 1]
    assert len(fleet(10)) == 10


def test_a_spot_slice_is_there_for_its_share_and_a_node_fails_as_often_as_published() -> None:
    slices = [Slice("reference", spot=True)] * 20 + [Slice("reference")] * 80
    until = 1000 * DAY
    found = outages(slices, until, random.Random(0))
    away = sum(min(outage.end, until) - outage.begin for outage in found if outage.slice < 20)
    assert away / (20 * until) == pytest.approx(0.2, rel=0.02)
    # 80 nodes for 1,000 days: 520 failures, with a standard deviation of 23; repairs take 0.1 % of the time
    assert sum(outage.slice >= 20 for outage in found) == pytest.approx(520, abs=70)


def test_no_outage_of_a_slice_begins_within_another() -> None:
    last: dict[int, float] = {}
    for outage in outages(fleet(48), WEEK, random.Random(3)):
        assert last.get(outage.slice, 0.0) <= outage.begin < outage.end
        last[outage.slice] = outage.end
