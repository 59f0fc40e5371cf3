"""How many units each cluster gets of a job whose pools are in several: a number for the pools here, and one for each pool elsewhere. Pure.

The numbers are on record in status and stay, so that no unit leaves a cluster because an order changed. A number moves on only from where
units have waited for hardware for long.

See docs/decisions/0285-numbers-of-parts.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

HERE: Final = ""
"""Stands for all pools of this cluster: between them placement decides."""
MOVES_AFTER: Final = 600.0
"""Seconds for which units must have waited for hardware before others, elsewhere, start in their place. Nodes of an autoscaler may take as
long."""


class Place(NamedTuple):
    """Where units of the job can be."""

    name: str
    """A pool in another cluster, or `HERE`."""
    min: int
    max: int
    placed: int
    """Units that have hardware there."""
    waiting_since: float | None
    """Since when further units wait there. None if none does."""
    value: float
    """Tokens/s of one unit there relative to the others; 0 if that is not measured."""


def share_out(places: Sequence[Place], most: int, recorded: Mapping[str, int], now: float) -> dict[str, int]:
    """Return how many units each place gets, `most` in all or as many as the places take. `recorded`: the numbers on record."""
    wanted = min(most, sum(place.max for place in places))
    numbers = dict(recorded) if _fits(places, wanted, recorded) else _first_shares(places, wanted, recorded)
    late = [place for place in places if place.waiting_since is not None and now >= place.waiting_since + MOVES_AFTER]
    for place in late:
        unused = max(0, numbers[place.name] - max(place.placed, place.min))
        # From the next place on, so that a number that no place can use goes round instead of back and forth.
        index = places.index(place)
        for other in (*places[index + 1 :], *places[:index]):
            moved = min(unused, other.max - numbers[other.name]) if other not in late else 0
            numbers[place.name] -= moved
            numbers[other.name] += moved
            unused -= moved
    return numbers


def next_move(places: Iterable[Place], now: float) -> float | None:
    """Return when a number may move on next although nothing changes. None if none may."""
    due = (place.waiting_since + MOVES_AFTER for place in places if place.waiting_since is not None)
    return min((moment for moment in due if moment > now), default=None)


def _fits(places: Sequence[Place], wanted: int, numbers: Mapping[str, int]) -> bool:
    within = all(place.min <= numbers.get(place.name, -1) <= place.max for place in places)
    return within and numbers.keys() == {place.name for place in places} and sum(numbers.values()) == wanted


def _first_shares(places: Sequence[Place], wanted: int, recorded: Mapping[str, int]) -> dict[str, int]:
    """Minima first, then the units that have hardware, then what each has on record, then the most valuable places, in the order of the
    pools where values are equal or not known."""
    measured = all(place.value for place in places)
    best = sorted(places, key=lambda place: -place.value) if measured else places
    numbers = {place.name: 0 for place in places}
    left = wanted
    least = {place.name: place.min for place in places}
    kept = {place.name: min(place.max, recorded.get(place.name, 0)) for place in places}
    running = {place.name: min(place.placed, kept[place.name]) for place in places}
    for limits in (least, running, kept, {place.name: place.max for place in places}):
        for place in best:
            more = min(left, max(0, limits[place.name] - numbers[place.name]))
            numbers[place.name] += more
            left -= more
    return numbers
