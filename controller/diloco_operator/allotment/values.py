"""What a unit is worth to its job in each pool: its tokens/s there, relative to the mean over the kinds that the job accepts. Pure.

Values are relative to the job's own mean, because raw tokens/s would favour small models. They are integers, in thousandths, as in the
flow.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from diloco_operator.allotment.flow.problem import MEAN

STEP = MEAN // 20
"""Values are multiples of this. A value changes only when the exact one is further from it than one step and than a twentieth of it."""
RAW_MARGIN, AVERAGE_MARGIN = 0.2, 0.1
"""The least gain for which a unit leaves its slice, as a share of its value. The first holds while its throughput there is a guess or a few
measurements, the second once it is a long average."""
UNTRIED = 1.5
"""The expected throughput of a kind is multiplied by this while only other kinds have been measured, so that jobs try it. It is one
standard deviation of the ratios between similar kinds (Gavel: quartiles 0.9, 1.2 and 1.5)."""


class PoolThroughput(NamedTuple):
    """What is known of the throughput of one unit of a pool."""

    kind: str
    """Kind of accelerator."""
    peak: float
    """The peak of all accelerators of the unit, in TFLOP/s. 0 if it is unknown."""
    measured: float | None = None
    """Tokens/s. None if they are not measured yet."""
    accepted: bool = True
    """False if the pool is switched off. It still shows how well the job uses this kind, but does not count in the mean."""


def exact_values(pools: Mapping[str, PoolThroughput]) -> dict[str, int]:
    """Return pool -> value in thousandths, at least one `STEP`. Pools with the same kind and peak count once in the job's mean."""
    known = {name: estimate for name, pool in pools.items() if (estimate := _tokens_per_second(pool, pools.values())) is not None}
    kinds: dict[tuple[str, float], list[float]] = {}
    for name, estimate in known.items():
        if pools[name].accepted:
            kinds.setdefault((pools[name].kind, pools[name].peak), []).append(estimate)
    mean = _mean(_mean(estimates) for estimates in kinds.values()) if kinds else 0.0
    if mean <= 0:
        return dict.fromkeys(pools, MEAN)
    return {name: max(STEP, round(MEAN * known[name] / mean)) if name in known else MEAN for name in pools}


def _tokens_per_second(pool: PoolThroughput, all_pools: Collection[PoolThroughput]) -> float | None:
    """Return the measured tokens/s, or an estimate, which counts more so that other kinds are tried. If no pool is measured, the peak
    itself. None if that is unknown."""
    if pool.measured is not None:
        return pool.measured
    if all(each.measured is None for each in all_pools):
        return pool.peak or None
    return estimate(pool, all_pools, untried=UNTRIED)


def estimate(pool: PoolThroughput, all_pools: Iterable[PoolThroughput], *, untried: float = 1.0) -> float | None:
    """Return the tokens/s to expect where none are measured: the peak, times the tokens that the job gets out of a TFLOP of this kind, or
    `untried` times the tokens that it gets out of a TFLOP of its other kinds. None if a peak is unknown, or nothing is measured."""
    ratios = [(each.kind, each.measured / each.peak) for each in all_pools if each.measured is not None and each.peak]
    if not pool.peak or not ratios:
        return None
    own_ratios = [ratio for kind, ratio in ratios if kind == pool.kind]
    return pool.peak * (_mean(own_ratios) if own_ratios else untried * _mean(ratio for _, ratio in ratios))


def _mean(figures: Iterable[float]) -> float:
    numbers = list(figures)
    return sum(numbers) / len(numbers)


def settled_value(exact: int, before: int) -> int:
    """Return the value that counts from now on. It stays as it was until the exact one is clearly another, so noise changes no request."""
    if abs(exact - before) <= max(STEP, before // 20):
        return before
    return max(STEP, STEP * round(exact / STEP))


def leaving_cost(value: int, recovery: float | None, horizon: float, *, averaged: bool) -> int:
    """Return what it costs to leave a slice, in thousandths: the value, times the share of the horizon in which nothing is trained. It is
    at least a margin for noise and at most the value.

    Args:
        recovery: seconds that units of the job have taken to train again. None if that is not known yet.
        horizon: seconds within which a move must pay.
        averaged: whether the throughput in this pool is a long average.
    """
    lost = 0.0 if recovery is None else min(1.0, recovery / horizon)
    # In twentieths, so that a slightly different recovery changes no request.
    return round(value * max(AVERAGE_MARGIN if averaged else RAW_MARGIN, math.ceil(20 * lost) / 20))
