"""Which rates an arm tries next, from those that it has tried. Pure.

From the first trial the search goes to neighbours until the best one lies inside of what was tried, on each axis: an outer momentum of
0.3 more and less, an inner rate of twice and of half as much, an outer one of 0.2 more and less. Momenta end at 0 and at 0.9, which the
publications have. Arms get equal numbers of trials: one that was inside early goes on in finer steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from benchmarks.law.trials import Rates

FIRST: Final = Rates()
LEAST_TRIALS: Final = 6
_OCTAVE: Final = 4
"""Quarters of a doubling."""
_MOMENTUM: Final = range(0, 10, 3)
"""Tenths."""

type Losses = Mapping[Rates, float]
"""Held-out loss by what was tried."""


def best(losses: Losses) -> Rates:
    """Return the rates with the lowest loss; of equal ones the lower. Raises ValueError when nothing was tried."""
    return min(losses, key=lambda rates: (losses[rates], rates.quarters, rates.tenths, rates.momentum_tenths))


def is_inside(losses: Losses, *, outer: bool) -> bool:
    """Return whether the best rates have a worse neighbour on both sides of each axis. `outer`: there is an outer optimizer."""
    return bool(losses) and all(rates in losses for rates in _neighbours(best(losses), outer))


def next_rates(losses: Losses, *, outer: bool) -> Rates:
    """Return the rates to try next: a neighbour of the best, else one that is nearer to it."""
    if not losses:
        return FIRST
    at = best(losses)
    return next(rates for rates in (*_neighbours(at, outer), *_finer(at, outer)) if rates not in losses)


def _neighbours(at: Rates, outer: bool) -> Iterator[Rates]:
    if outer:
        yield from (replace(at, momentum_tenths=tenths) for tenths in _MOMENTUM if abs(tenths - at.momentum_tenths) == _MOMENTUM.step)
    yield from (replace(at, quarters=at.quarters + quarters) for quarters in (-_OCTAVE, _OCTAVE))
    if outer:
        yield from _outer(at, 2)


def _finer(at: Rates, outer: bool) -> Iterator[Rates]:
    yield from (replace(at, quarters=at.quarters + quarters) for quarters in (-2, 2))
    if outer:
        yield from _outer(at, 1)
    yield from (replace(at, quarters=at.quarters + quarters) for quarters in (-1, 1, -3, 3))
    for quarters in range(5, 100):
        yield from (replace(at, quarters=at.quarters + each) for each in (quarters, -quarters))


def _outer(at: Rates, by: int) -> Iterator[Rates]:
    yield from (replace(at, tenths=at.tenths + tenths) for tenths in (by, -by) if at.tenths + tenths > 0)
