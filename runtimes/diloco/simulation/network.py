"""What goes between the syncer and its units, and when it is there: words, and fragments in both directions.

Each unit has a connection, from when it asks for the parameters until its process ends. What is under way then is lost.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from numpy.random import Generator

from diloco.simulation.link import Link
from diloco.simulation.path import SEGMENT_BITS, Path
from diloco.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bits of what is sent. Words, such as reports and pulls, have none: one segment each, which no transfer delays."""

    fragment: float = 0.0
    """Bits of an answer or a broadcast."""
    whole: float = 0.0
    """Bits of the whole value of a fragment, which a unit that joins gets, or one whose broadcasts wait for each other."""


class Network:
    """Both directions. A unit's answers have one stream, what it is sent another."""

    def __init__(self, timeline: Timeline, sizes: Sizes, random: Generator, syncer: float = math.inf) -> None:
        """`random`: of losses. `syncer`: bandwidth of the syncer's link in each direction, bits a second, which all units share."""
        self._sizes = sizes
        self._up = Link(timeline, syncer)
        self._down = Link(timeline, syncer)
        self._to_units = _Deliveries(timeline, random)
        self._to_syncer = _Deliveries(timeline, random)
        self._paths: dict[str, Path] = {}
        """By unit that is connected."""
        self._to_come: dict[str, set[int]] = {}
        """By unit that joins, the fragments whose whole values have not been sent yet."""

    @property
    def up_bits(self) -> float:
        """That units have sent so far, with what was sent again."""
        return self._up.bits

    @property
    def down_bits(self) -> float:
        """That the syncer has sent so far."""
        return self._down.bits

    # --- connections --------------------------------------------------------------------------------------------------

    def connect(self, unit: str, path: Path) -> None:
        """Connect the unit, whose process begins, by this way to the syncer."""
        self._paths[unit] = path
        self._up.limit(unit, path.rate)
        self._down.limit(unit, path.rate)

    def left(self, unit: str, gone: Callable[[], None]) -> None:
        """Disconnect the unit, whose process has ended. `gone` is called when the syncer hears of it."""
        self._up.close(unit)
        self._down.close(unit)
        self._to_come.pop(unit, None)
        path = self._paths.pop(unit)
        self._to_units.forget(unit)
        self._to_syncer.forget(unit)
        self._to_syncer.last(unit, path, gone)

    # --- words --------------------------------------------------------------------------------------------------------

    def tell_syncer(self, unit: str, heard: Callable[[], None]) -> None:
        """Let the unit say something; `heard` is called when the syncer has it."""
        self._to_syncer.send(unit, self._paths[unit], SEGMENT_BITS, heard)

    def tell_unit(self, unit: str, heard: Callable[[], None]) -> None:
        """Let the syncer say something; `heard` is called when the unit has it."""
        if (path := self._paths.get(unit)) is not None:
            self._to_units.send(unit, path, SEGMENT_BITS, heard)

    # --- fragments ----------------------------------------------------------------------------------------------------

    def answer(self, unit: str, t: int, arrived: Callable[[], None]) -> None:
        """Send an answer of outer step t. Of those that wait the newest goes first."""
        path, bits = self._paths[unit], self._sizes.fragment
        self._up.send(unit, t, path.sent(bits), lambda: self._to_syncer.send(unit, path, bits, arrived), newest_first=True)

    def over(self, unit: str, t: int) -> None:
        """Close the exchange of outer step t: what the unit has not sent of its answer, it does not send once it hears that."""
        self.tell_unit(unit, lambda: self._up.drop(unit, t))

    def broadcast(self, unit: str, fragment: int, arrived: Callable[[], None]) -> None:
        """Send a new version of the fragment. One that still waits is not sent: its whole value goes in its place."""
        path = self._paths.get(unit)
        if path is None or fragment in self._to_come.get(unit, ()):
            return  # it is gone; or it gets the newest value anyway
        bits, whole = self._sizes.fragment, self._sizes.whole
        if not self._down.replace_waiting(unit, fragment, self._deliver(unit, path, whole, arrived), path.sent(whole)):
            self._down.send(unit, fragment, path.sent(bits), self._deliver(unit, path, bits, arrived))

    def copy(self, unit: str, fragments: int, sent: Callable[[int], None], done: Callable[[], None]) -> None:
        """Send the whole value of each fragment. `sent`: with each, when its newest value is on its way; `done`: they are there."""
        path, bits = self._paths.get(unit), self._sizes.whole
        if path is None:
            return
        to_come = self._to_come[unit] = set(range(fragments))

        def on_its_way(fragment: int) -> None:
            to_come.discard(fragment)
            sent(fragment)
            if not to_come:
                del self._to_come[unit]
                self._to_units.send(unit, path, bits, done)

        for fragment in range(fragments):
            self._down.send(unit, ("whole", fragment), path.sent(bits), partial(on_its_way, fragment))

    def _deliver(self, unit: str, path: Path, bits: float, arrived: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._to_units.send(unit, path, bits, arrived)


_NEVER: Final = -math.inf


class _Deliveries:
    """One direction, behind the links: what has been sent arrives after its delay, and in order."""

    def __init__(self, timeline: Timeline, random: Generator) -> None:
        self._timeline = timeline
        self._random = random
        self._arrives: dict[str, float] = {}
        """By unit, when the last of all that was sent arrives."""
        self._connection: dict[str, int] = {}
        """By unit: what was sent over an earlier one does not arrive."""

    def send(self, unit: str, path: Path, bits: float, arrived: Callable[[], None]) -> None:
        """Call `arrived` when the last of these bits, which have just been sent, is there: at once on a way that costs no time."""
        if not path.latency:
            arrived()
            return
        connection = self._connection.get(unit, 0)
        self._at(unit, path, bits, lambda: arrived() if self._connection.get(unit, 0) == connection else None)

    def last(self, unit: str, path: Path, arrived: Callable[[], None]) -> None:
        """Let the unit say a word that ends the connection, after `forget`."""
        if not path.latency:
            arrived()
            return
        self._at(unit, path, SEGMENT_BITS, arrived)

    def forget(self, unit: str) -> None:
        """Drop what has not arrived."""
        self._connection[unit] = self._connection.get(unit, 0) + 1

    def _at(self, unit: str, path: Path, bits: float, arrived: Callable[[], None]) -> None:
        when = max(self._arrives.get(unit, _NEVER), self._timeline.now + path.delay(bits, self._random))
        self._arrives[unit] = when
        self._timeline.at(when, arrived)
