"""Which rank of a unit is lost, and for whose sake the unit ends. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT = 0.5
"""Each end of a side channel says something at least this often, seconds."""
SILENCE = 4.0
"""A rank is lost when nothing was heard of it for so long, seconds. With what it takes to tell the others, a unit ends within 5 s."""
LOOKS = 3
"""How often the leader looks, after a rank's program raised, whether a rank is gone: its loss makes collectives raise in the others."""


class Silence:
    """How long each peer has been silent while this process could listen.

    A pause of this process itself (stopped, suspended, starved of processor time) counts as no more than one tick: it cannot know who
    spoke meanwhile.
    """

    def __init__(self, now: float, tick: float, limit: float = SILENCE) -> None:
        """Begin with `tick`: `lost` is called every `tick` seconds. `limit`: silence that a peer may keep, seconds."""
        self._tick = tick
        self._limit = limit
        self._before = now
        self._silent: dict[int, float] = {}

    def heard(self, peer: int) -> None:
        """Note that the peer said something."""
        self._silent[peer] = 0.0

    def forget(self, peer: int) -> None:
        """Forget a peer that left."""
        self._silent.pop(peer, None)

    def lost(self, now: float) -> list[int]:
        """Return the peers that were silent for too long. The time since the call before is added to all of them."""
        passed = min(now - self._before, 2 * self._tick)
        self._before = now
        for peer in self._silent:
            self._silent[peer] += passed
        return [peer for peer, seconds in self._silent.items() if seconds >= self._limit]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a unit ends."""

    rank: int
    why: str
    """What the rank did, to be read after its name: `is lost: …`, `ended: …`."""


class Verdict:
    """Finds the rank for whose sake a unit ends. What is heard first is not always it: when a rank is killed, the programs of the others
    raise, and either may be heard first."""

    def __init__(self) -> None:
        self._lost: Cause | None = None
        self._raised: Cause | None = None
        self._left: Cause | None = None
        self._looks = 0
        self._spoken: set[int] = set()

    def lost(self, rank: int, why: str) -> None:
        """Note that the rank is gone. No news of one whose program raised before."""
        if self._lost is None and rank not in self._spoken:
            self._lost = Cause(rank, why)

    def raised(self, rank: int, why: str) -> None:
        """Note that the rank's program raised."""
        self._spoken.add(rank)
        if self._raised is None:
            self._raised = Cause(rank, why)

    def left_early(self, rank: int, why: str) -> None:
        """Note that the rank's program has left its loop. All may do so one after the other, so that it is a cause only once another rank
        is gone or has raised."""
        if self._left is None:
            self._left = Cause(rank, why)

    def look(self) -> Cause | None:
        """Return the cause; None if there is none, or if it is too early to tell. Called every so often, after what came was heard: a
        process that gets little processor time waits for as many looks, not for a time."""
        if self._lost is None and self._raised is not None:
            self._looks += 1
            return self._left or self._raised if self._looks > LOOKS else None
        return self._lost and (self._left or self._lost)
