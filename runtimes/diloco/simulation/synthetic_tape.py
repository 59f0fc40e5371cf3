"""A synthetic tape: how fast the units of a job are, when they are slow, and when they fail, drawn by a generator or written by hand.

One JSON object a line, in the order of time:

    {"type": "synthetic", "format": 1, "seed": 7, "units": {"unit-0": 1.0, "unit-1": 1.31}}
    {"type": "slow", "at": 40.2, "unit": "unit-1", "factor": 2.0, "seconds": 30.0}
    {"type": "fail", "at": 95.7, "unit": "unit-0", "seconds": 61.3}

`units`: seconds of a step. `seconds` of a failure: until the unit begins again. `seed`: of the generator, and of the moments at which units
begin. A tape that happened is another file (`diloco.tape.records`): this one says what shall happen.

See docs/decisions/0281-synthetic-tapes.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.random import Generator, default_rng

from diloco.simulation.failures import ReturnDelay
from diloco.wording import plural

FORMAT: Final = 1
KIND: Final = "synthetic"
MOST_UNITS: Final = 4096
MOST_EVENTS: Final = 1_000_000
_DIGITS: Final = 3
"""Decimals of seconds and factors in a file: a millisecond is far below a step."""


class SyntheticTapeError(Exception):
    """The lines are no synthetic tape. The message names the line, and says what is wrong."""


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
    """Draw what happens to so many units in so many seconds. Each has random numbers of its own: what happens to one does not depend on how
    many there are. Raises ValueError for numbers that are not above 0, and for more events than a tape holds."""
    for name, value in (("units", units), ("seconds", seconds), ("step_seconds", fate.step_seconds), ("slow_factor", fate.slow_factor)):
        if value <= 0 or math.isinf(value):
            raise ValueError(f"{name} must be above 0 and finite, not {value}")
    if units > MOST_UNITS:
        raise ValueError(f"a tape has at most {MOST_UNITS} units, not {units}")
    rates = 1 / fate.slow_every + 1 / fate.fail_every
    if units * seconds * rates > MOST_EVENTS:
        raise ValueError(f"that is about {units * seconds * rates:.0f} events, and a tape holds {MOST_EVENTS}: take fewer, or less time")
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


def to_lines(tape: SyntheticTape) -> Iterator[str]:
    """Yield the lines of its file."""
    yield json.dumps({"type": KIND, "format": FORMAT, "seed": tape.seed, "units": dict(tape.units)})
    for one in tape.happenings:
        match one:
            case Slow():
                yield json.dumps({"type": "slow", "at": one.at, "unit": one.unit, "factor": one.factor, "seconds": one.seconds})
            case Fail():
                yield json.dumps({"type": "fail", "at": one.at, "unit": one.unit, "seconds": one.seconds})


def from_lines(lines: Sequence[str]) -> SyntheticTape:
    """Read a tape. Raises SyntheticTapeError."""
    tape: SyntheticTape | None = None
    happenings: list[Happening] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if tape is None:
                tape = _head(found)
            else:
                happenings.append(_happening(found, tape))
        except KeyError as error:
            raise SyntheticTapeError(f"line {number}: {error} is missing") from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SyntheticTapeError(f"line {number}: {error}") from error
    if tape is None:
        raise SyntheticTapeError(f"it is empty: its first line must be an object of the type {KIND!r}; see `diloco tape generate`")
    return SyntheticTape(tape.seed, tape.units, sorted(happenings, key=lambda one: one.at))


def _head(found: Any) -> SyntheticTape:
    if found["type"] != KIND or found["format"] != FORMAT:
        raise ValueError(f"a synthetic tape begins with an object of the type {KIND!r} and format {FORMAT}; see `diloco tape generate`")
    units = {str(name): _above_0(seconds, f"the step of unit {name}") for name, seconds in found["units"].items()}
    if not 1 <= len(units) <= MOST_UNITS:
        raise ValueError(f"it has {plural(len(units), 'unit')}, and there must be 1 to {MOST_UNITS}")
    return SyntheticTape(int(found["seed"]), units, ())


def _happening(found: Any, tape: SyntheticTape) -> Happening:
    at, unit, seconds = float(found["at"]), str(found["unit"]), _above_0(found["seconds"], "seconds")
    if unit not in tape.units:
        raise ValueError(f"unit {unit!r} is none of the first line")
    if not 0 <= at < math.inf:
        raise ValueError(f"at must be 0 or more and finite, not {at}")
    match found["type"]:
        case "slow":
            return Slow(at, unit, _above_0(found["factor"], "factor"), seconds)
        case "fail":
            return Fail(at, unit, seconds)
        case kind:
            raise ValueError(f"the type {kind!r} is none of slow and fail")


def _above_0(value: Any, what: str) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{what} must be above 0 and finite, not {number}")
    return number
