"""Which rank of a unit is lost, and which one is the cause of the unit's end. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT = 0.5
"""Each end of a side channel sends something at least this often, seconds."""
SILENCE = 4.0
"""A rank is lost after this silence, seconds. Telling the others takes less than one more, so the unit ends within 5 s."""
LOOKS = 3
"""How often the leader looks for a lost rank after a rank's program has raised: collectives raise when another rank is lost."""


class Silence:
    """How long each peer has been silent while this process could listen.

    The time between two calls of `lost` counts as two ticks at most. If it was longer, this process itself has paused (stopped, suspended,
    starved of processor time), and cannot know who spoke meanwhile.
    """

    def __init__(self, now: float, tick: float, limit: float = SILENCE) -> None:
        """`lost` is called every `tick` seconds. A peer may be silent for `limit` seconds."""
        self._tick = tick
        self._limit = limit
        self._before = now
        self._silent: dict[int, float] = {}

    def heard(self, peer: int) -> None:
        """Note that the peer has sent something."""
        self._silent[peer] = 0.0

    def forget(self, peer: int) -> None:
        self._silent.pop(peer, None)

    def lost(self, now: float) -> list[int]:
        """Return the peers that were silent for too long. Adds the time since the last call to the silence of each."""
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
    """What happened to the rank, in words that follow its name: `is lost: …`, `ended: …`."""


class Verdict:
    """Finds the rank that is the cause of the unit's end. That need not be the first one heard of: when a rank is killed, the programs of
    others raise, and they may be heard before the loss."""

    def __init__(self) -> None:
        self._lost: Cause | None = None
        self._raised: Cause | None = None
        self._left: Cause | None = None
        self._looks = 0
        self._spoken: set[int] = set()

    def lost(self, rank: int, why: str) -> None:
        """Note that the rank is gone. Ignored for a rank whose program raised before."""
        if self._lost is None and rank not in self._spoken:
            self._lost = Cause(rank, why)

    def raised(self, rank: int, why: str) -> None:
        self._spoken.add(rank)
        if self._raised is None:
            self._raised = Cause(rank, why)

    def left_early(self, rank: int, why: str) -> None:
        """Note that the rank's program has left its loop. All ranks may do so one after the other, so it is a cause only once another rank
        is gone or has raised."""
        if self._left is None:
            self._left = Cause(rank, why)

    def look(self) -> Cause | None:
        """Return the cause. None if there is none, or it is too early to tell.

        Called at every tick, after all messages were handled. It counts calls and not seconds, so that a process that gets little processor
        time hears as much before it judges.
        """
        if self._lost is None and self._raised is not None:
            self._looks += 1
            if self._looks <= LOOKS:
                return None
            return self._left or self._raised
        if self._lost is None:
            return None
        return self._left or self._lost
