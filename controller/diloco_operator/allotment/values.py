"""What a unit is worth to its job in each pool: its tokens/s there, relative to the mean over the kinds that the job accepts. Pure.

Relative to the job's own mean, because raw tokens/s would favour small models. Integers in thousandths, as the flow counts.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from diloco_operator.allotment.flow.problem import MEAN

STEP = MEAN // 20
"""Values are multiples of this. A value stays as long as the exact one is no further from it than one step, or a twentieth of it."""
RAW_MARGIN, AVERAGE_MARGIN = 0.2, 0.1
"""What a unit must gain at least by leaving its slice, as a share of its value: where its throughput there is a guess or a few
measurements, and where it is a long average."""
UNTRIED = 1.5
"""A kind of which nothing is measured, while others are, counts as so many times what is expected of it, so that jobs try it: one standard
deviation of the ratios between kinds that are near each other (Gavel: quartiles 0.9, 1.2 and 1.5)."""


class PoolThroughput(NamedTuple):
    """What is known of the throughput of one unit of a pool."""

    kind: str
    """Kind of accelerator."""
    peak: float
    """The peak of all its accelerators, TFLOP/s; 0: unknown."""
    measured: float | None = None
    """Tokens/s; None: not known yet."""
    accepted: bool = True
    """False: the pool is switched off. It says how well the job uses its kind, and is no part of the mean."""


def exact_values(pools: Mapping[str, PoolThroughput]) -> dict[str, int]:
    """Return pool -> value in thousandths, at least one `STEP`. Of pools that have one kind and one peak the mean counts one."""
    known = {name: estimate for name, pool in pools.items() if (estimate := _tokens_per_second(pool, pools.values())) is not None}
    kinds: dict[tuple[str, float], list[float]] = {}
    for name, estimate in known.items():
        if pools[name].accepted:
            kinds.setdefault((pools[name].kind, pools[name].peak), []).append(estimate)
    mean = _mean(_mean(estimates) for estimates in kinds.values()) if kinds else 0.0
    if mean <= 0:
        return dict.fromkeys(pools, MEAN)
    return {name: max(STEP, round(MEAN * known[name] / mean)) if name in known else MEAN for name in pools}


def _tokens_per_second(pool: PoolThroughput, all_pools: Iterable[PoolThroughput]) -> float | None:
    """Return the tokens/s as measured; else the peak, times what the job gets out of a TFLOP/s of this kind, or `UNTRIED` times what it
    gets out of others; else, where nothing is measured, the peak alone. None: unknown."""
    if pool.measured is not None:
        return pool.measured
    measured = [(each.kind, each.measured / each.peak if each.peak else None) for each in all_pools if each.measured is not None]
    if not measured:
        return pool.peak or None
    uses = [use for _, use in measured if use is not None]
    own = [use for kind, use in measured if use is not None and kind == pool.kind]
    if not pool.peak or not uses:
        return None
    return pool.peak * (_mean(own) if own else UNTRIED * _mean(uses))


def _mean(figures: Iterable[float]) -> float:
    found = list(figures)
    return sum(found) / len(found)


def settled_value(exact: int, before: int) -> int:
    """Return the value that counts: the one before, unless the exact one has clearly left it. So noise changes no request."""
    if abs(exact - before) <= max(STEP, before // 20):
        return before
    return max(STEP, STEP * round(exact / STEP))


def leaving_cost(value: int, recovery: float | None, horizon: float, *, averaged: bool) -> int:
    """Return what it costs to leave a slice, in thousandths: the share of the horizon in which nothing is trained, times the value; no less
    than a margin for noise, no more than the value. Shares are rounded up to twentieths.

    `recovery`: seconds that units of the job have taken to train again; None: not known. `horizon`: seconds for which a move must pay.
    `averaged`: the throughput in this pool is a long average."""
    lost = 0.0 if recovery is None else min(1.0, recovery / horizon)
    return round(value * max(AVERAGE_MARGIN if averaged else RAW_MARGIN, math.ceil(20 * lost) / 20))
