"""How long the syncer of a job at its end waits for the learners, which take the final parameters, evaluate them and say Bye.

If the syncer ended sooner, a learner would take it for lost and look for it.
"""

from __future__ import annotations

from diloco.contract import MOST_PAUSE
from diloco.syncer.config import Timeouts
from diloco.syncer.reporting.unit_stats import Phase, UnitStatsTable
from diloco.syncer.streams.learner_stream import LearnerStreams
from diloco.syncer.streams.sessions import SessionRegistry


class ShutdownGrace:
    """When the syncer may end. Times are in seconds on the clock of the unit statistics."""

    def __init__(
        self,
        timeouts: Timeouts,
        streams: LearnerStreams,
        sessions: SessionRegistry,
        unit_stats: UnitStatsTable,
        *,
        continued_at: float | None,
        began_finished: bool,
    ) -> None:
        """
        Args:
            continued_at: when this process took the job over from an earlier one. None if the job is new
            began_finished: the job was over when this process took it over
        """
        self._timeouts = timeouts
        self._streams = streams
        self._sessions = sessions
        self._unit_stats = unit_stats
        self._continued_at = continued_at
        self.began_finished = began_finished
        self.finished_at: float | None = None
        """When the job reached its end. None if it has not."""

    @property
    def until(self) -> float | None:
        """When to end. None while the job goes on."""
        if self.finished_at is None:
            return None
        # A joined learner evaluates and says Bye. If it pauses for its evaluation, it has said for how long.
        if self._streams.joined() or self._streams.joining():
            paused = [self._unit_stats.of(session.unit).paused_until for _, session in self._streams.joined()]
            # It hears of the end only after the last versions, which a slow link may carry for longer than the farewell.
            received = [stream.acknowledged_at for stream, _ in self._streams.joined_ranks()]
            busy_until = max([self.finished_at, *filter(None, paused + received)])
            # It could announce pauses, or acknowledge byte by byte, for ever.
            return min(busy_until, self.finished_at + MOST_PAUSE) + self._timeouts.farewell
        # A learner that is away may be on its way back. It must hear that the job is done, or it would look for its syncer for ever.
        linger = self._timeouts.linger
        away = self._sessions.any_on_its_way
        until = self.finished_at + (linger if away or self.began_finished else 0.0)
        # Some units may have brought the job to its end before all others have found this process.
        if self._continued_at is not None and any(unit.phase is Phase.DISCONNECTED for unit in self._unit_stats.all()):
            until = max(until, self._continued_at + linger)
        return until
