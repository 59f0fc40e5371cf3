"""A synthetic tape: how fast the units of a job are, when they are slow, and when they fail, drawn by a generator. A tape that happened is
another thing (`diloco.tape.records`): this one says what shall happen.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from diloco.simulation.failures import ReturnDelay
from numpy.random import Generator, default_rng

_DIGITS: Final = 3
"""Decimals of seconds: a millisecond is far below a step."""


@dataclass(frozen=True, slots=True)
class Slow:
    """The steps that a unit begins in this time are longer."""

    at: float
    """Seconds from the beginning."""
    unit: str
    factor: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """A unit ends without a word, and begins again later."""

    at: float
    """Seconds from the beginning."""
    unit: str
    seconds: float
    """Time until it begins again."""


type Happening = Slow | Fail


@dataclass(frozen=True, slots=True)
class SyntheticTape:
    """What shall happen to the units of a job."""

    seed: int
    """Seed of the generator, and of the moments at which units begin."""
    units: Mapping[str, float]
    """By name, seconds of a step."""
    happenings: Sequence[Happening]
    """In the order of time."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What a generator draws from. Times in seconds."""

    step_seconds: float = 1.0
    """Duration of a step, in the mean."""
    spread: float = 0.2
    """Standard deviation of the logarithm of the units' speeds, which do not change: 0.2 is a fifth faster or slower."""
    slow_every: float = math.inf
    """Mean time between two slowdowns of one unit; infinity: none is ever slow."""
    slow_factor: float = 2.0
    slow_seconds: float = 30.0
    """How long a slowdown lasts, in the mean; exponential."""
    fail_every: float = math.inf
    """Mean time from a start of a unit to its failure; infinity: none fails."""
    away_seconds: float = 60.0
    """Time from a failure until the unit begins again, in the mean."""


def generate(units: int, seconds: float, fate: Fate, seed: int) -> SyntheticTape:
    """Draw what happens to `units` units in `seconds` seconds. Each has random numbers of its own, so what happens to one does not depend
    on how many there are."""
    speeds: dict[str, float] = {}
    happenings: list[Happening] = []
    for number in range(units):
        name, random = f"unit-{number}", default_rng([seed, number])
        speeds[name] = round(fate.step_seconds * math.exp(fate.spread * float(random.standard_normal())), _DIGITS)
        slow, fail = random.spawn(2)
        happenings += _slowdowns(name, seconds, fate, slow)
        happenings += _failures(name, seconds, fate, fail)
    return SyntheticTape(seed, speeds, sorted(happenings, key=lambda one: (one.at, one.unit, isinstance(one, Slow))))


def _slowdowns(unit: str, seconds: float, fate: Fate, random: Generator) -> Iterator[Slow]:
    """Yield those of one unit: none begins before the last one has ended."""
    at = 0.0
    while not math.isinf(fate.slow_every):
        at += float(random.exponential(fate.slow_every))
        if at >= seconds:
            return
        lasts = float(random.exponential(fate.slow_seconds))
        yield Slow(round(at, _DIGITS), unit, fate.slow_factor, round(lasts, _DIGITS))
        at += lasts


def _failures(unit: str, seconds: float, fate: Fate, random: Generator) -> Iterator[Fail]:
    """Yield those of one unit: none fails while it is away."""
    if math.isinf(fate.fail_every):
        return
    away = ReturnDelay.with_mean(fate.away_seconds)
    at = 0.0
    while True:
        at += float(random.exponential(fate.fail_every))
        if at >= seconds:
            return
        lasts = away.draw(random)
        yield Fail(round(at, _DIGITS), unit, round(lasts, _DIGITS))
        at += lasts
