"""Which rates an arm tries next, from those that it has tried. Pure.

From the first pair the search goes to neighbours until the best pair lies inside of what was tried, on each axis: an inner rate of twice
and of half as much, an outer one of 0.2 more and less. Arms get equal numbers of trials: one that was inside early goes on in finer steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from benchmarks.law.trials import Rates

FIRST: Final = Rates()
LEAST_TRIALS: Final = 6
_OCTAVE: Final = 4
"""Quarters of a doubling."""

type Losses = Mapping[Rates, float]
"""Held-out loss by what was tried."""


def best(losses: Losses) -> Rates:
    """Return the pair with the lowest loss; of equal ones the lower rates. Raises ValueError when nothing was tried."""
    return min(losses, key=lambda rates: (losses[rates], rates.quarters, rates.tenths))


def is_inside(losses: Losses, *, outer: bool) -> bool:
    """Return whether the best pair has a worse neighbour on both sides of each axis. `outer`: there is an outer optimizer."""
    return bool(losses) and all(rates in losses for rates in _neighbours(best(losses), outer))


def next_rates(losses: Losses, *, outer: bool) -> Rates:
    """Return the pair to try next: a neighbour of the best, else one that is nearer to it."""
    if not losses:
        return FIRST
    at = best(losses)
    return next(rates for rates in (*_neighbours(at, outer), *_finer(at, outer)) if rates not in losses)


def _neighbours(at: Rates, outer: bool) -> Iterator[Rates]:
    for quarters in (-_OCTAVE, _OCTAVE):
        yield Rates(at.quarters + quarters, at.tenths)
    for tenths in (2, -2) if outer else ():
        if at.tenths + tenths > 0:
            yield Rates(at.quarters, at.tenths + tenths)


def _finer(at: Rates, outer: bool) -> Iterator[Rates]:
    for quarters in (-2, 2):
        yield Rates(at.quarters + quarters, at.tenths)
    for tenths in (1, -1) if outer else ():
        if at.tenths + tenths > 0:
            yield Rates(at.quarters, at.tenths + tenths)
    for quarters in (-1, 1, -3, 3):
        yield Rates(at.quarters + quarters, at.tenths)
    for quarters in range(5, 100):
        yield Rates(at.quarters + quarters, at.tenths)
        yield Rates(at.quarters - quarters, at.tenths)
