"""A learner unit as a state machine: it takes steps, loses slices, starts again, and answers the syncer between its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from diloco.algorithm.events import Metadata, Pull
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.goodput import Accounts, Use
from diloco.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a unit runs on, and how that fails."""

    slices: int
    chips_per_slice: int
    chip_seconds_between_failures: float
    """Mean time between failures of one chip, seconds; infinity: none fails."""
    step_seconds: float
    down_seconds: float
    """Until a unit trains again after a failure."""
    up_seconds: float
    """Until it trains with a slice that has come back."""
    returns: ReturnDelay
    elastic: bool = True
    """It trains on without the slices that are out. False: it waits `down_seconds` for replacements, and has all slices again then."""


class Syncer(Protocol):
    """What a unit says to the syncer."""

    def joined(self, unit: SimulatedUnit) -> None:
        """It holds the present parameters and begins to train."""
        ...

    def left(self, unit: SimulatedUnit) -> None:
        """Its process is gone."""
        ...

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        """It takes no steps until then, on purpose."""
        ...

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        """It has taken a step."""
        ...

    def answered(self, unit: SimulatedUnit, pull: Pull, steps: int, tokens: int) -> None:
        """Its answer has arrived."""
        ...


class SimulatedUnit:
    """One learner unit. `tokens`: of a slice in a step."""

    def __init__(
        self, name: str, hardware: Hardware, fragments: int, timeline: Timeline, syncer: Syncer, random: Generator, tokens: int = 1000
    ) -> None:
        self.name = name
        self.hardware = hardware
        self.accounts = Accounts()
        self.present = hardware.slices
        """Slices that it has."""
        self.training = False
        """It is in a step that no failure ends."""
        self.resting = False
        """The syncer has told it to take no step."""
        self._fragments = fragments
        self._timeline = timeline
        self._syncer = syncer
        self._random = random
        self._tokens_per_slice = tokens
        self._step = 0
        self._tokens = 0
        self._adopted_step = [0] * fragments
        self._adopted_tokens = [0] * fragments
        self._returns: list[float] = []
        """When each slice that is out comes back, seconds."""
        self._pulls: list[Pull] = []
        self._arrived: set[int] = set()
        """Fragments whose broadcasts wait for the end of the step under way."""

    @property
    def tokens(self) -> int:
        """Of its completed steps."""
        return self._tokens

    # --- what the syncer says -----------------------------------------------------------------------------------------

    def begin(self, at: float) -> None:
        """Join at `at`, seconds, and train from then on."""
        self._timeline.at(at, self._join)

    def pulled(self, pull: Pull) -> None:
        """It answers at the end of the step under way."""
        self._pulls.append(pull)

    def merged(self, fragment: int) -> None:
        """A new version of the fragment has arrived; it is adopted at the end of the step under way."""
        self._arrived.add(fragment)
        self._pulls = [pull for pull in self._pulls if pull.fragment != fragment]

    # --- what it does -------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._adopted_step = [self._step] * self._fragments
        self._adopted_tokens = [self._tokens] * self._fragments
        self._pulls.clear()
        self._arrived.clear()
        self.resting = False
        self._syncer.joined(self)
        self._next_step()

    def _next_step(self) -> None:
        hardware = self.hardware
        if self._take_back() and hardware.elastic:
            self._spend(Use.RECONFIGURATION, hardware.up_seconds, self._next_step)
            self._syncer.paused(self, self._timeline.now + hardware.up_seconds)
            return
        if self.resting:
            self._spend(Use.WAITING, hardware.step_seconds, self._rested)
            return
        mean = self.present * hardware.chips_per_slice * hardware.step_seconds / hardware.chip_seconds_between_failures
        failed = min(int(self._random.poisson(mean)), self.present)
        if not failed:
            self.training = True
            self._spend(Use.TRAINING, hardware.step_seconds, self._stepped)
            return
        # The whole step is lost: its failures are known at its end, as in the paper's simulation.
        self._spend(Use.LOST_WORK, hardware.step_seconds, lambda: self._failed(failed))

    def _stepped(self) -> None:
        self.training = False
        self._step += 1
        self._tokens += self.present * self._tokens_per_slice
        self._report()
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            p = pull.fragment
            self._syncer.answered(self, pull, self._step - self._adopted_step[p], self._tokens - self._adopted_tokens[p])
        for fragment in self._arrived:
            self._adopted_step[fragment], self._adopted_tokens[fragment] = self._step, self._tokens
        self._arrived.clear()
        self._next_step()

    def _rested(self) -> None:
        self._report()
        self._next_step()

    def _report(self) -> None:
        step, tokens = self._step, self._tokens
        steps = tuple([step - before for before in self._adopted_step])
        since = tuple([tokens - before for before in self._adopted_tokens])
        self._syncer.stepped(self, Metadata(step, steps, since, self.hardware.step_seconds))

    def _failed(self, slices: int) -> None:
        """Of a step in which so many slices failed: the unit starts again without them."""
        now, hardware = self._timeline.now, self.hardware
        self._syncer.left(self)
        self.present -= slices
        if hardware.elastic:
            self._returns += [now + hardware.returns.draw(self._random) for _ in range(slices)]
        else:
            self._returns += [now + hardware.down_seconds] * slices
        self._take_back()
        self._spend(Use.RECOVERY, hardware.down_seconds, self._restarted)

    def _restarted(self) -> None:
        self._take_back()  # what has come back meanwhile is part of the new start
        if self.present:
            self._join()
            return
        until = min(self._returns)
        self._spend(Use.RECOVERY, until - self._timeline.now, self._restarted)

    def _take_back(self) -> bool:
        """Take the slices that have come back. True: there were some."""
        if not self._returns:
            return False
        now = self._timeline.now
        back = sum(at <= now for at in self._returns)
        if back:
            self._returns = [at for at in self._returns if at > now]
            self.present += back
        return bool(back)

    def _spend(self, use: Use, seconds: float, then: Callable[[], None]) -> None:
        """Be busy with that for so long."""
        self.accounts.add(use, self.present, self.hardware.slices - self.present, seconds)
        self._timeline.at(self._timeline.now + seconds, then)
