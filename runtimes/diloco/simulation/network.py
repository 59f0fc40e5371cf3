"""Messages between the syncer and its units, and when they arrive: words, and fragments in both directions.

Each unit has a connection, from when it asks for the parameters until its process ends. Messages that are under way then are lost.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from numpy.random import Generator

from diloco.learner.push_order import PushOrder
from diloco.simulation.link import Link
from diloco.simulation.path import SEGMENT_BITS, Path
from diloco.simulation.timeline import Timeline
from diloco.syncer.streams.send_order import SendOrder

type Arrived = Callable[[], None]
"""Called when the other end has the message."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of messages in bits. A word, such as a report or a pull, is one segment, which delays nothing."""

    fragment: float = 0.0
    """An answer or a broadcast."""
    whole: float = 0.0
    """The whole value of a fragment, for a unit that joins, or whose broadcasts wait for each other."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a fragment that waits to be sent."""

    size: float
    """Bits."""
    arrived: Arrived


@dataclass(slots=True)
class _Connection:
    path: Path
    answers: PushOrder[Arrived]
    broadcasts: SendOrder[_Version, Arrived] = field(default_factory=SendOrder)
    to_copy: set[int] = field(default_factory=set)
    """Fragments that the unit has no value of yet."""
    copied: Arrived = lambda: None
    """Called once the unit has all fragments."""


class Network:
    """Both directions. A unit's answers are one stream, the broadcasts to it another."""

    def __init__(self, timeline: Timeline, sizes: Sizes, random: Generator, overlap_steps: int, syncer: float = math.inf) -> None:
        """`random`: decides which segments are lost. `overlap_steps`: tau. `syncer`: bandwidth of the syncer's link in each direction, in
        bits a second; all units share it."""
        self._timeline = timeline
        self._sizes = sizes
        self._overlap_steps = overlap_steps
        self._up = Link(timeline, syncer)
        self._down = Link(timeline, syncer)
        self._to_units = _Deliveries(timeline, random)
        self._to_syncer = _Deliveries(timeline, random)
        self._connections: dict[str, _Connection] = {}

    @property
    def up_bits(self) -> float:
        """Bits that units have sent so far, with what was sent again."""
        return self._up.bits

    @property
    def down_bits(self) -> float:
        """Bits that the syncer has sent so far."""
        return self._down.bits

    # --- connections --------------------------------------------------------------------------------------------------

    def connect(self, unit: str, path: Path) -> None:
        """The unit's process begins: connect it to the syncer by this path."""
        answers: PushOrder[Arrived] = PushOrder(self._overlap_steps, lambda: self._timeline.now, lambda _: None)
        self._connections[unit] = _Connection(path, answers)
        for link in (self._up, self._down):
            link.limit(unit, path.rate, local=path.local)

    def left(self, unit: str, gone: Callable[[], None]) -> None:
        """The unit's process has ended: disconnect it. `gone` is called when the syncer hears of it."""
        path = self._connections.pop(unit).path
        self._up.close(unit)
        self._down.close(unit)
        self._to_units.forget(unit)
        self._to_syncer.forget(unit)
        self._to_syncer.last(unit, path, gone)

    # --- words --------------------------------------------------------------------------------------------------------

    def tell_syncer(self, unit: str, arrived: Arrived) -> None:
        """The unit sends a word; `arrived` is called when the syncer has it."""
        connection = self._connections[unit]
        queued = self._up.queue_seconds(unit, connection.path, more=connection.answers.waits)
        self._to_syncer.send(unit, connection.path, SEGMENT_BITS, arrived, queued)

    def tell_unit(self, unit: str, arrived: Arrived) -> None:
        """The syncer sends a word; `arrived` is called when the unit has it."""
        if (connection := self._connections.get(unit)) is not None:
            queued = self._down.queue_seconds(unit, connection.path, more=connection.broadcasts.has_version)
            self._to_units.send(unit, connection.path, SEGMENT_BITS, arrived, queued)

    def pull(self, unit: str, fragment: int, t: int, arrived: Arrived) -> None:
        """Ask the unit for a fragment at outer step t, after the newest version of the fragment has been sent to it."""
        if (connection := self._connections.get(unit)) is None:
            return

        def asked() -> None:
            connection.answers.clock(t)
            self._cut_short(unit, connection)
            arrived()

        connection.broadcasts.pull(fragment, t, self._overlap_steps, asked)
        self._tell_pulls(unit, connection)

    def _tell_pulls(self, unit: str, connection: _Connection) -> None:
        """Send the pulls whose turn has come."""
        while (pull := connection.broadcasts.next_pull()) is not None:
            self.tell_unit(unit, pull)

    # --- fragments ----------------------------------------------------------------------------------------------------

    def answer(self, unit: str, fragment: int, t: int, arrived: Arrived) -> None:
        """Send an answer to the pull of outer step t when its turn comes."""
        connection = self._connections[unit]
        connection.answers.push(fragment, t, arrived)
        self._cut_short(unit, connection)
        self._send_up(unit, connection)

    def broadcast(self, unit: str, fragment: int, t: int, arrived: Arrived) -> None:
        """Send version t of the fragment when its turn comes."""
        if (connection := self._connections.get(unit)) is not None:
            self._add(unit, connection, fragment, t, arrived, whole=False)
            self._send_down(unit, connection)

    def copy(self, unit: str, versions: Sequence[int], done: Arrived) -> None:
        """Send the whole value of each fragment, in these versions or newer ones. `done` is called when all have arrived."""
        if (connection := self._connections.get(unit)) is None:
            return
        connection.to_copy, connection.copied = set(range(len(versions))), done
        for fragment, version in enumerate(versions):
            self._add(unit, connection, fragment, version, lambda: None, whole=True)
        self._send_down(unit, connection)

    def _add(self, unit: str, connection: _Connection, fragment: int, t: int, arrived: Arrived, *, whole: bool) -> None:
        """Queue a version, as a delta if it fits, unless the unit must get it `whole`."""

        def come() -> None:
            connection.answers.merged(fragment, t)
            self._cut_short(unit, connection)
            arrived()
            if fragment in connection.to_copy:
                connection.to_copy.discard(fragment)
                if not connection.to_copy:
                    connection.copied()

        sizes = self._sizes
        delta = not whole and connection.broadcasts.fits(fragment, sizes.fragment, sizes.whole)
        connection.broadcasts.add(fragment, t, _Version(sizes.fragment if delta else sizes.whole, come), delta=delta)

    def _send_down(self, unit: str, connection: _Connection) -> None:
        """Send the next version to the unit."""
        broadcasts, path = connection.broadcasts, connection.path
        while broadcasts.has_version and self._down.is_free(unit):
            version = broadcasts.begin()

            def gone(version: _Version = version) -> None:
                broadcasts.sending = None
                self._to_units.send(unit, path, version.size, version.arrived)
                self._tell_pulls(unit, connection)
                self._send_down(unit, connection)

            self._down.send(unit, path.sent(version.size), gone)

    def _send_up(self, unit: str, connection: _Connection) -> None:
        answers, path = connection.answers, connection.path
        if not self._up.is_free(unit) or (answer := answers.begin()) is None:
            return

        def arrived() -> None:
            answer.what()
            acknowledged_at = self._timeline.now + path.latency
            self._timeline.at(acknowledged_at, partial(answers.arrived, answer.begun_at, acknowledged_at))

        def gone() -> None:
            answers.sending = None
            self._to_syncer.send(unit, path, self._sizes.fragment, arrived)
            self._send_up(unit, connection)

        self._up.send(unit, path.sent(self._sizes.fragment), gone)

    def _cut_short(self, unit: str, connection: _Connection) -> None:
        """End the answer under way if it is not needed any more (`over`)."""
        if (sending := connection.answers.sending) is not None and sending.over:
            connection.answers.sending = None
            connection.answers.gave_up(sending.begun_at)
            self._up.cut_short(unit, connection.path, lambda: self._send_up(unit, connection))


_NEVER: Final = -math.inf


class _Deliveries:
    """One direction, after the links: messages arrive after their delay, and in order."""

    def __init__(self, timeline: Timeline, random: Generator) -> None:
        self._timeline = timeline
        self._random = random
        self._arrives: dict[str, float] = {}
        """When the last message to or from each unit arrives."""
        self._connection: dict[str, int] = {}
        """Number of each unit's connection. Messages of an earlier connection do not arrive."""

    def send(self, unit: str, path: Path, bits: float, arrived: Callable[[], None], queued: float = 0.0) -> None:
        """Call `arrived` when the last of these bits has arrived. They leave after `queued` seconds. At once on a path that takes no
        time."""
        if not path.latency and not queued and self._arrives.get(unit, _NEVER) <= self._timeline.now:
            arrived()
            return
        connection = self._connection.get(unit, 0)

        def arrived_if_connected() -> None:
            if self._connection.get(unit, 0) == connection:
                arrived()

        self._at(unit, path, bits, queued, arrived_if_connected)

    def last(self, unit: str, path: Path, arrived: Callable[[], None]) -> None:
        """The unit sends the word that ends its connection. Call this after `forget`."""
        if not path.latency:
            arrived()
            return
        self._at(unit, path, SEGMENT_BITS, 0.0, arrived)

    def forget(self, unit: str) -> None:
        """Drop messages that have not arrived."""
        self._connection[unit] = self._connection.get(unit, 0) + 1

    def _at(self, unit: str, path: Path, bits: float, queued: float, arrived: Callable[[], None]) -> None:
        when = max(self._arrives.get(unit, _NEVER), self._timeline.now + queued + path.delay(bits, self._random))
        self._arrives[unit] = when
        self._timeline.at(when, arrived)
