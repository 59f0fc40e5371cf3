"""A job on virtual time: the driver that runs in syncers, without arrays, and simulated units.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from numpy.random import Generator

from diloco.algorithm.clock import Clock
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.driver import Driver, NoArrays
from diloco.algorithm.effects import Broadcast, Close, Decode, Effect, Merged, Pull, Rest, Skipped
from diloco.algorithm.events import Computed, Event, Joined, Left, Metadata, Offer, Offered, Paused, Reported, Seeded, Tick, Usable
from diloco.algorithm.guards import Guard
from diloco.contract import Training
from diloco.goodput import Accounts
from diloco.simulation.network import Network, Sizes
from diloco.simulation.timeline import Timeline
from diloco.simulation.unit import TOKENS, Hardware, SimulatedUnit, Slices

_NORM = 1.0
"""Norm of every outer gradient: the guards see a healthy run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to."""

    seconds: float
    """That it was simulated, virtual."""
    outer_steps: int
    goodput: float
    """The share of all slice-seconds that went into completed steps, 0..1."""
    uptime: float
    """The share of the time in which at least one unit was in a step that was completed, 0..1."""
    contributions: float
    """Per merge."""
    merges: int
    skipped: int
    """Outer steps whose fragment had no contribution."""
    merged_tokens: float
    """Tokens in merges over those of completed steps, 0..1: the rest was overwritten, or was under way at the end."""
    merged: float
    """Those tokens themselves; a slice trains `unit.TOKENS` in a step."""
    failures: int
    """The failures of units."""
    accounts: Accounts
    staleness: float = 0.0
    """Outer steps since the last contribution of a unit, the mean over its outer steps from its first contribution to its last."""
    reclaimed: int = 0
    """Units that had to leave because the cloud took their slices away."""
    moved: int = 0
    """Units that left their slices for better ones."""
    up_bits: float = 0.0
    """That all units have sent: answers, and what was sent again of them."""
    down_bits: float = 0.0
    """That the syncer has sent: broadcasts, and the parameters that units get when they join."""


class SimulatedJob:
    """Runs one job. Learner and syncer cost no time here, but for the steps, failures and starts of the units, and the ways between them
    (`Hardware.path`)."""

    def __init__(
        self,
        training: Training,
        hardware: Sequence[Hardware],
        random: Generator,
        *,
        clock: Clock | None = None,
        sizes: Sizes | None = None,
        syncer_bandwidth: float = math.inf,
        driver: Driver | None = None,
        tokens: int = TOKENS,
    ) -> None:
        """Simulate one unit for each `hardware`. They begin at random moments of the first step. `clock`: as of the coordinator. `sizes`:
        None: what is sent has none. `syncer_bandwidth`: of each direction of the syncer's link, bits a second. `driver`: of a job that has
        begun; None: one without arrays. `tokens`: of a slice in a step."""
        self.timeline = Timeline()
        self.merged_of: defaultdict[str, float] = defaultdict(float)
        """By unit, tokens that came into merges. Those of one fragment count as 1 / P of them."""
        self.merged_tokens = 0.0
        """The merged tokens of all units."""
        self._training = training
        self._random = random
        self._tokens = tokens
        self._driver = driver if driver is not None else _without_arrays(training, clock)
        self._coordinator = self._driver.coordinator
        self.slices: Slices | None = None
        """Where units are that come from now on; None: they keep what they have."""
        self._network = Network(self.timeline, sizes or Sizes(), random, training.overlap_steps, syncer_bandwidth)
        self._given: dict[int, dict[str, int]] = {}
        """Per open exchange, tokens of its contributions by unit."""
        self._listening: dict[str, None] = {}
        """Units that have asked for the parameters, and are sent what is new."""
        self._merged = self._contributions = self._skipped = 0
        self._contributed: dict[str, int] = {}
        """By unit, the outer step of its last contribution."""
        self._stale = self._steps_between = 0
        self._up_since: float | None = None
        self._up_seconds = 0.0
        self.units: dict[str, SimulatedUnit] = {}
        self.add(hardware)

    def add(self, hardware: Iterable[Hardware]) -> None:
        """Add one more unit for each. They begin at random moments of the next step."""
        for one in hardware:
            self.add_unit(f"u{len(self.units)}", one)

    def add_unit(self, name: str, hardware: Hardware) -> None:
        """Add the same, of one with this name."""
        (own,) = self._random.spawn(1)
        unit = SimulatedUnit(name, hardware, self._training.fragments, self.timeline, self, own, self._tokens, slices=self.slices)
        self.units[name] = unit
        unit.begin(self.timeline.now + own.random() * hardware.step_seconds)

    def run(self, seconds: float = math.inf, tokens: float = math.inf) -> Outcome:
        """Simulate until that virtual time, until so many tokens have come into merges, or to the end of the job. May go on afterwards."""
        timeline, driver = self.timeline, self._driver
        self._advance()
        while self.merged_tokens < tokens and not self._coordinator.done:
            wake = driver.wake_at(timeline.now)
            at = timeline.next_at if wake is None else min(wake, timeline.next_at)
            if at > seconds or math.isinf(at):
                break
            if timeline.next_at <= at:
                timeline.step()
            else:
                timeline.move_to(at)
            self._note_uptime()
            self._advance()
        else:
            seconds = timeline.now
        timeline.move_to(seconds)
        self._note_uptime()
        return self._outcome(seconds)

    # --- what units say -----------------------------------------------------------------------------------------------

    def wanted(self, unit: SimulatedUnit) -> None:
        """Connect the unit, and send it the parameters."""
        network = self._network

        def asked() -> None:
            self._listening[unit.name] = None
            held = list(self._coordinator.versions)
            network.copy(unit.name, held, lambda: unit.received(held))

        network.connect(unit.name, unit.hardware.path)
        network.tell_syncer(unit.name, asked)

    def joined(self, unit: SimulatedUnit) -> None:
        """Tell the coordinator that the unit has the parameters and trains."""
        self._network.tell_syncer(unit.name, lambda: self._take(Joined(self.timeline.now, unit.name)))

    def left(self, unit: SimulatedUnit) -> None:
        """Tell the coordinator that the unit's process has ended. What is under way from and to it is lost."""

        def gone() -> None:
            self._listening.pop(unit.name, None)
            self._take(Left(self.timeline.now, unit.name))

        self._network.left(unit.name, gone)

    def adopted(self, unit: SimulatedUnit, fragment: int, version: int) -> None:
        """Take note of nothing: there are no arrays."""

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        """Tell the coordinator that the unit takes no steps until then."""
        self._network.tell_syncer(unit.name, lambda: self._take(Paused(self.timeline.now, unit.name, until)))

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        """Report a local step of the unit."""
        self._network.tell_syncer(unit.name, lambda: self._take(Reported(self.timeline.now, unit.name, metadata)))

    def answered(self, unit: SimulatedUnit, pull: Pull, base: int, steps: int, tokens: int) -> None:
        """Send the unit's answer to a pull: `steps` and `tokens` since it adopted version `base` of the fragment."""
        offer = Offer(pull.fragment, pull.t, self._coordinator.coding, base, steps, tokens)
        self._network.answer(unit.name, pull.fragment, pull.t, lambda: self._take(Offered(self.timeline.now, unit.name, offer)))

    def _take(self, event: Event) -> None:
        for effect in self._driver.take(event):
            self._carry_out(effect)

    # --- what the driver wants -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while effects := self._driver.take(Tick(self.timeline.now)):
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Pull():
                for name in effect.units:
                    self._network.pull(name, effect.fragment, effect.t, partial(self.units[name].pulled, effect))
            case Decode():
                if not self._decode(effect):
                    self._given.setdefault(effect.offer.t, {})[effect.unit] = effect.offer.tokens
            case Close():
                for outcome in self._close(effect):
                    self._carry_out(outcome)
            case Merged():
                self._book(effect)
            case Broadcast():
                self._broadcast(effect.t, effect.fragment)
            case Skipped():
                self._skipped += 1
            case Rest():
                self._network.tell_unit(effect.unit, partial(self.units[effect.unit].rest, effect.rests))

    def _decode(self, effect: Decode) -> Sequence[Effect]:
        """Do the arithmetic of an answer; nothing follows from one that is accepted."""
        return self._driver.take(Usable(self.timeline.now, effect.unit, effect.offer, _NORM))

    def _close(self, effect: Close) -> Sequence[Effect]:
        """Do the arithmetic of a merge, and return what follows."""
        return self._driver.take(Computed(self.timeline.now, effect.t, finite=True))

    def _book(self, merged: Merged) -> None:
        self._merged += 1
        self._contributions += len(merged.units)
        given = self._given.pop(merged.t)
        for name in merged.units:
            self.merged_of[name] += given[name] / self._training.fragments
            self.merged_tokens += given[name] / self._training.fragments
            gap = merged.t - self._contributed.get(name, merged.t)
            self._stale += gap * (gap - 1) // 2  # it was 0, 1, ... gap - 1 outer steps old
            self._steps_between += gap
            self._contributed[name] = merged.t

    def _broadcast(self, t: int, fragment: int) -> None:
        for name, unit in self.units.items():
            if name in self._listening:
                self._network.broadcast(name, fragment, t, partial(unit.merged, fragment, t))

    # --- what is counted ----------------------------------------------------------------------------------------------

    def _note_uptime(self) -> None:
        now = self.timeline.now
        up = any(unit.training for unit in self.units.values())
        if self._up_since is not None:
            self._up_seconds += now - self._up_since
        self._up_since = now if up else None

    def _outcome(self, seconds: float) -> Outcome:
        accounts = Accounts()
        for unit in self.units.values():
            unit.book()
            accounts.include(unit.accounts)
        trained = sum(unit.tokens for unit in self.units.values())
        return Outcome(
            seconds,
            self._coordinator.t,
            accounts.goodput,
            self._up_seconds / seconds,
            self._contributions / self._merged if self._merged else 0.0,
            self._merged,
            self._skipped,
            self.merged_tokens / trained if trained else 0.0,
            self.merged_tokens,
            sum(unit.failures for unit in self.units.values()),
            accounts,
            self._stale / self._steps_between if self._steps_between else 0.0,
            up_bits=self._network.up_bits,
            down_bits=self._network.down_bits,
        )


def _without_arrays(training: Training, clock: Clock | None) -> Driver:
    """Return the driver of a job that has begun, and has no parameters."""
    driver = Driver(Coordinator(training, Guard([1] * training.fragments), clock=clock), NoArrays())
    driver.take(Seeded(0.0, (_NORM,) * training.fragments))
    return driver
