"""The ways of fragments between the syncer and its units, on links with bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diloco.simulation.link import Link
from diloco.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Each direction has as much. Fragments are all that is sent."""

    fragment_bits: float
    """Of an answer or a broadcast."""
    whole_bits: float
    """Of the whole value of a fragment, which a unit that joins gets, or one whose broadcasts wait for each other."""
    unit: float = math.inf
    """Of the own link of each unit, bits a second."""
    syncer: float = math.inf
    """Of the syncer's link, bits a second, which all units share."""


class Network:
    """Both directions. A unit's answers have one stream, what it is sent another."""

    def __init__(self, timeline: Timeline, bandwidth: Bandwidth) -> None:
        self._bandwidth = bandwidth
        self._up = Link(timeline, bandwidth.syncer, bandwidth.unit)
        self._down = Link(timeline, bandwidth.syncer, bandwidth.unit)
        self._to_come: dict[str, set[int]] = {}
        """By unit that joins, the fragments that it does not hold yet."""

    def answer(self, unit: str, t: int, arrived: Callable[[], None]) -> None:
        """Send an answer of outer step t. Of those that wait the newest goes first."""
        self._up.send(unit, t, self._bandwidth.fragment_bits, arrived, newest_first=True)

    def over(self, unit: str, t: int) -> None:
        """The exchange of outer step t is closed: what the unit has not sent of its answer, it does not send."""
        self._up.drop(unit, t)

    def broadcast(self, unit: str, fragment: int, arrived: Callable[[], None]) -> None:
        """Send a new version of the fragment. One that still waits is not sent: its whole value goes in its place."""
        if fragment in self._to_come.get(unit, ()):
            return  # it gets the newest value anyway
        if not self._down.replace_waiting(unit, fragment, arrived, self._bandwidth.whole_bits):
            self._down.send(unit, fragment, self._bandwidth.fragment_bits, arrived)

    def copy(self, unit: str, fragments: int, received: Callable[[int], None], done: Callable[[], None]) -> None:
        """Send the whole value of each fragment. `received`: with each that has arrived."""
        to_come = self._to_come[unit] = set(range(fragments))

        def arrived(fragment: int) -> None:
            to_come.discard(fragment)
            received(fragment)
            if not to_come:
                del self._to_come[unit]
                done()

        for fragment in range(fragments):
            self._down.send(unit, ("whole", fragment), self._bandwidth.whole_bits, partial(arrived, fragment))

    def left(self, unit: str) -> None:
        """The unit's connection is closed."""
        self._up.close(unit)
        self._down.close(unit)
        self._to_come.pop(unit, None)
