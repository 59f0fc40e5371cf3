"""How long the syncer of a job that has reached its end waits for its learners."""

from __future__ import annotations

from diloco.syncer.config import Timeouts
from diloco.syncer.peer import Peers
from diloco.syncer.sessions import SessionRegistry
from diloco.syncer.unit_stats import UnitStatsTable


class Farewell:
    """Times in seconds on the clock of the unit statistics."""

    def __init__(
        self, timeouts: Timeouts, peers: Peers, sessions: SessionRegistry, unit_stats: UnitStatsTable, *, began_finished: bool
    ) -> None:
        """`began_finished`: the process found a finished job."""
        self._timeouts = timeouts
        self._peers = peers
        self._sessions = sessions
        self._unit_stats = unit_stats
        self.began_finished = began_finished
        self.finished_at: float | None = None
        """When the job reached its end; None: it has not."""

    @property
    def until(self) -> float | None:
        """When to end: once no learner is connected that still may evaluate and say Bye. One that pauses has its time. None: not yet."""
        if self.finished_at is None:
            return None
        if self._peers.joined() or self._peers.joining():
            paused = (self._unit_stats.of(session.unit).paused_until for _, session in self._peers.joined())
            return max([self.finished_at, *filter(None, paused)]) + self._timeouts.farewell
        away = self._sessions.wake_at() is not None
        return self.finished_at + (self._timeouts.linger if away or self.began_finished else 0.0)
