"""What the syncer knows of each unit, for reports and for the final result. Pure: time comes in as an argument."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.algorithm.members import usable_step_seconds
from diloco.contract import MOST_PAUSE
from diloco.protocol.diloco_pb2 import Recovery

RATE_WINDOW = 15.0
"""Window in which throughput is measured, seconds."""
_LATE = 2
"""A value is late after this many times the interval between the last two values, but never before RATE_WINDOW is over."""
MOST_LOSS = 1e9
"""Upper bound of a loss's absolute value. No mean over tokens comes near it, and sums of such losses stay finite."""
LOSS_ALPHA = 0.05
"""Weight of one step's loss in a unit's moving average, which then covers about 40 steps."""


MOST_PAUSE_TEXT = 200
"""Characters that are kept of the reason of a pause."""


def usable_loss(loss: float) -> bool:
    """Whether a reported loss can be a mean over tokens: neither NaN nor absurd."""
    return abs(loss) <= MOST_LOSS


class Phase(enum.IntEnum):
    """As in the proto's UnitReport.State."""

    JOINING = 1
    CONTRIBUTING = 2
    DISCONNECTED = 3
    DONE = 4
    REFUSED = 5


class Rate:
    """Growth of a counter per second, over the last RATE_WINDOW seconds, or over the last step if that took longer."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> None:
        """Add the counter's value, `total`. If it is smaller than before, the measurement begins anew."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, total))
        while len(self._samples) > 2 and self._samples[1][0] < now - RATE_WINDOW:
            self._samples.popleft()

    def reset(self) -> None:
        self._samples.clear()

    def value(self, now: float) -> float:
        """Return the rate per second. 0 with less than two values, or if the next one is late."""
        if len(self._samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        if last_at < now - max(RATE_WINDOW, _LATE * (last_at - self._samples[-2][0])):
            return 0.0
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


@dataclass(slots=True)
class UnitStats:
    """One unit over all its attempts. Its committed work is in the ledger."""

    unit: str
    attempt: int = 0
    phase: Phase = Phase.DISCONNECTED
    refused: dict[str, int] = field(default_factory=dict)
    """Refused contributions and joins by reason."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The last message of each reason, since this process began."""
    message: str = ""
    loss: float | None = None
    """Moving average over the newest attempt's steps. None if it has reported no loss."""
    loss_step: int = 0
    """The last local step with a loss."""
    local_step: int = 0
    """The local step of the newest attempt."""
    step_seconds: float = 0.0
    """Seconds of a step of the newest attempt."""
    own_data: bool = False
    """Its program feeds itself: its tokens are counted, but no samples."""
    seen: int = 0
    """The newest outer step that its last report knows of."""
    left: bool = False
    """The program of the newest attempt left its loop before the job was done."""
    holds_parameters: bool = False
    """Its process has taken the job's parameters, and may take its first step."""
    heard_at: float | None = None
    """When it last did something: a step, a contribution, a join, or the end of a pause. Of a unit that has not joined this process of the
    syncer: when this began. None if the syncer does not know the unit."""
    alive_at: float | None = None
    """When its process last said that it is alive. None if it has not since it joined."""
    pause: str = ""
    """Why its program takes no steps for a while, in the program's own words. Empty if it does not pause."""
    paused_until: float | None = None
    """When its pause must be over, or when the last pause was over. None if there was none."""
    lost_at: float | None = None
    """When the unit was lost. None again after its next contribution."""
    recover_seconds: float = 0.0
    """The last time from a loss to the first contribution after it. 0 if there was none."""
    resting_since: float | None = None
    """When it was told to rest. None if it trains or is away."""
    recovery: Recovery | None = None
    """How far the newest attempt's process is with taking its state. None if it has not said so."""
    given: int = 0
    """How often it was named as a donor, since this process began."""
    received_bytes: int = 0
    """Bytes of chunks that came from it since this process began."""
    sent_bytes: int = 0
    """Bytes of chunks that went to it since this process began."""
    rate: Rate = field(default_factory=Rate)

    def joined(self, attempt: int, now: float) -> None:
        """Note that a process acts for the unit. A new attempt resets the numbers of the newest attempt."""
        if self.phase in (Phase.JOINING, Phase.CONTRIBUTING):
            self.lost(now, "")
        if attempt != self.attempt:
            self.loss, self.loss_step, self.local_step, self.step_seconds = None, 0, 0, 0.0
        self.attempt = attempt
        self.resting_since = None
        self.phase = Phase.JOINING
        self.message = ""
        self.heard_at = now
        self.holds_parameters = self.left = False
        self.recovery = None
        self.alive_at, self.pause, self.paused_until = None, "", None
        self.rate.reset()

    def alive(self, local_step: int, pause: str, left: float, now: float) -> bool:
        """Note a heartbeat. True if a pause has begun or ended with it. `left`: how many seconds the pause may still take."""
        self.alive_at = now
        self.local_step = max(self.local_step, local_step)
        changed = pause != self.pause
        if pause:
            self.paused_until = now + (min(max(0.0, left), MOST_PAUSE) if math.isfinite(left) else 0.0)
        elif self.pause:
            self.heard_at = self.paused_until = now
            self.rate.reset()  # or the rate would count the pause as the time of a step
        self.pause = pause
        return changed

    def seconds_since_alive(self, now: float) -> float:
        """Return the seconds since anything was heard from it. 0 if nothing was."""
        return now - max((at for at in (self.alive_at, self.heard_at) if at is not None), default=now)

    def progressed(self, local_step: int, step_seconds: float, loss: float, tokens_done: int, now: float) -> bool:
        """Note that a local step was reported. True if the unit was joining and contributes from now on."""
        self.heard_at = now
        self.local_step = max(self.local_step, local_step)
        if usable_step_seconds(step_seconds):
            self.step_seconds = step_seconds
        if usable_loss(loss):
            # A trainer that logs every tenth step reports one loss for all ten, so it counts as ten steps.
            share = 1 - (1 - LOSS_ALPHA) ** max(1, local_step - self.loss_step)
            self.loss = loss if self.loss is None else self.loss + share * (loss - self.loss)
            self.loss_step = local_step
        self.rate.add(now, tokens_done)
        if self.phase is Phase.JOINING:
            self.phase = Phase.CONTRIBUTING
            return True
        return False

    def contributed(self, now: float) -> None:
        self.heard_at = now
        if self.lost_at is not None:
            self.recover_seconds = now - self.lost_at
            self.lost_at = None

    def lost(self, now: float, message: str, phase: Phase = Phase.DISCONNECTED) -> None:
        """Note that the unit is away: disconnected, drained or refused."""
        if self.lost_at is None and self.phase is not Phase.DONE:
            self.lost_at = now
        self.resting_since = None
        self.phase = phase
        self.message = message
        self.rate.reset()

    def finished(self, now: float) -> None:
        """Note that the unit said Bye after Done."""
        self.heard_at = now
        self.resting_since = None
        self.phase = Phase.DONE
        self.message = ""
        self.lost_at = None
        self.rate.reset()

    def refuse(self, reason: str, message: str) -> None:
        """Count a refused contribution or join."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self.refusals[reason] = message


class UnitStatsTable:
    """The statistics of every unit ever seen in the job."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        """Restore `stored`, a result of `to_json`, if it is given. Raises KeyError, TypeError or ValueError for anything else."""
        self._units: dict[str, UnitStats] = {}
        for name, values in (stored or {}).items():
            refused = {str(reason): int(count) for reason, count in values["refused"].items()}
            self._units[name] = UnitStats(name, int(values["attempt"]), Phase.DISCONNECTED, refused)

    def take_attempts(self, fences: Mapping[str, int], now: float) -> None:
        """Take each unit's newest attempt from `fences`, so that the operator names none that the syncer refuses. A unit without a fence
        has no attempt: what is restored may be of another job, whose attempts say nothing about this one's. Silence counts from `now`."""
        for unit in {*self._units, *fences}:
            stats = self.of(unit)
            stats.attempt, stats.heard_at = fences.get(unit, 0), now

    def of(self, unit: str) -> UnitStats:
        """Return the unit's statistics, new ones for a unit that was never seen."""
        return self._units.setdefault(unit, UnitStats(unit))

    def all(self) -> list[UnitStats]:
        """Return the statistics of all units, ordered by the units' names."""
        return [self._units[name] for name in sorted(self._units)]

    def loss(self) -> float | None:
        """Return the mean loss of the units that contribute, or did until the end. None if none has a loss."""
        losses = [unit.loss for unit in self._units.values() if unit.phase in (Phase.CONTRIBUTING, Phase.DONE) and unit.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def to_json(self) -> dict[str, Any]:
        return {stats.unit: {"attempt": stats.attempt, "refused": dict(stats.refused)} for stats in self.all()}
