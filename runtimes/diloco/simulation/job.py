"""A job on virtual time: the same driver as in a syncer, without arrays, with simulated units.

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
"""Norm of every outer gradient, so that the guards see a healthy run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    """Simulated time."""
    outer_steps: int
    goodput: float
    """The share of all slice-seconds that went into completed steps, 0..1."""
    uptime: float
    """The share of the time in which at least one unit was in a step that was completed, 0..1."""
    contributions: float
    """Mean number of contributions in a merge."""
    merges: int
    skipped: int
    """Outer steps whose fragment had no contribution."""
    merged_tokens: float
    """Tokens in merges divided by tokens of completed steps, 0..1. The rest was overwritten, or under way at the end."""
    merged: float
    """Tokens in merges; a slice trains `unit.TOKENS` in a step."""
    failures: int
    """Failures of units."""
    accounts: Accounts
    staleness: float = 0.0
    """Outer steps since a unit's last contribution, the mean over all outer steps from each unit's first contribution to its last."""
    reclaimed: int = 0
    """Units that had to leave because the cloud took their slices away."""
    moved: int = 0
    """Units that left their slices for better ones."""
    up_bits: float = 0.0
    """Bits that all units have sent: answers, with what was sent again of them."""
    down_bits: float = 0.0
    """Bits that the syncer has sent: broadcasts, and parameters for units that join."""


class SimulatedJob:
    """Runs one job. Only the units' steps, failures and starts take time, and the paths between units and syncer (`Hardware.path`)."""

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
        """Simulate one unit for each `hardware`. They begin at random moments of the first step.

        Args:
            clock: the coordinator's; None for its default.
            sizes: None if messages have no size.
            syncer_bandwidth: of each direction of the syncer's link, bits a second.
            driver: of a job that has begun; None for one without arrays.
            tokens: of a slice in a step.
        """
        self.timeline = Timeline()
        self.merged_of: defaultdict[str, float] = defaultdict(float)
        """Tokens in merges, by unit. Each token counts 1 / P in the merge of each fragment."""
        self.merged_tokens = 0.0
        """Tokens in merges, of all units."""
        self._training = training
        self._random = random
        self._tokens = tokens
        self._driver = driver if driver is not None else _without_arrays(training, clock)
        self._coordinator = self._driver.coordinator
        self.slices: Slices | None = None
        """Places units that are added from now on; None if units keep the slices of their `Hardware`."""
        self._network = Network(self.timeline, sizes or Sizes(), random, training.overlap_steps, syncer_bandwidth)
        self._given: dict[int, dict[str, int]] = {}
        """Tokens of the contributions to each open exchange, by unit."""
        self._listening: dict[str, None] = {}
        """Units that have asked for the parameters, and get broadcasts."""
        self._merged = self._contributions = self._skipped = 0
        self._contributed: dict[str, int] = {}
        """The outer step of each unit's last contribution."""
        self._stale = self._steps_between = 0
        self._up_since: float | None = None
        self._up_seconds = 0.0
        self.units: dict[str, SimulatedUnit] = {}
        self.add(hardware)

    def add(self, hardware: Iterable[Hardware]) -> None:
        """Add a unit for each `hardware`. They begin at random moments of the next step."""
        for kind in hardware:
            self.add_unit(f"u{len(self.units)}", kind)

    def add_unit(self, name: str, hardware: Hardware) -> None:
        """Add one unit with this name. It begins at a random moment of the next step."""
        (own,) = self._random.spawn(1)
        unit = SimulatedUnit(name, hardware, self._training.fragments, self.timeline, self, own, self._tokens, slices=self.slices)
        self.units[name] = unit
        unit.begin(self.timeline.now + own.random() * hardware.step_seconds)

    def run(self, seconds: float = math.inf, tokens: float = math.inf) -> Outcome:
        """Simulate until virtual time `seconds`, until `tokens` tokens are in merges, or until the job ends. May be called again to go
        on."""
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
        if self.merged_tokens >= tokens or self._coordinator.done:
            seconds = timeline.now
        timeline.move_to(seconds)
        self._note_uptime()
        return self._outcome(seconds)

    # --- what units say -----------------------------------------------------------------------------------------------

    def connected(self, unit: SimulatedUnit) -> None:
        """The unit's process has begun: connect it, and send it the parameters."""
        network = self._network

        def asked() -> None:
            self._listening[unit.name] = None
            versions = list(self._coordinator.versions)
            network.copy(unit.name, versions, lambda: unit.received(versions))

        network.connect(unit.name, unit.hardware.path)
        network.tell_syncer(unit.name, asked)

    def joined(self, unit: SimulatedUnit) -> None:
        """The unit has the parameters and trains: tell the coordinator."""
        self._network.tell_syncer(unit.name, lambda: self._take(Joined(self.timeline.now, unit.name)))

    def left(self, unit: SimulatedUnit) -> None:
        """The unit's process has ended: tell the coordinator. What is under way from and to it is lost."""

        def gone() -> None:
            self._listening.pop(unit.name, None)
            self._take(Left(self.timeline.now, unit.name))

        self._network.left(unit.name, gone)

    def adopted(self, unit: SimulatedUnit, fragment: int, version: int) -> None:
        """Does nothing, as there are no arrays."""

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        """The unit takes no steps until `until`: tell the coordinator."""
        self._network.tell_syncer(unit.name, lambda: self._take(Paused(self.timeline.now, unit.name, until)))

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        """The unit has taken a step: report it."""
        self._network.tell_syncer(unit.name, lambda: self._take(Reported(self.timeline.now, unit.name, metadata)))

    def answered(self, unit: SimulatedUnit, pull: Pull, base: int, steps: int, tokens: int) -> None:
        """Send the unit's answer to a pull. `steps`, `tokens`: since it adopted version `base` of the fragment."""
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
        """The arithmetic of an answer, which takes no time. An accepted answer has no effects."""
        return self._driver.take(Usable(self.timeline.now, effect.unit, effect.offer, _NORM))

    def _close(self, effect: Close) -> Sequence[Effect]:
        """The arithmetic of a merge, which takes no time. Returns the effects."""
        return self._driver.take(Computed(self.timeline.now, effect.t, finite=True))

    def _book(self, merged: Merged) -> None:
        self._merged += 1
        self._contributions += len(merged.units)
        given = self._given.pop(merged.t)
        for name in merged.units:
            self.merged_of[name] += given[name] / self._training.fragments
            self.merged_tokens += given[name] / self._training.fragments
            gap = merged.t - self._contributed.get(name, merged.t)
            self._stale += gap * (gap - 1) // 2  # meanwhile its last contribution was 0, 1, ... gap - 1 outer steps old
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
    """The driver of a job that has begun and has no parameters."""
    driver = Driver(Coordinator(training, Guard([1] * training.fragments), clock=clock), NoArrays())
    driver.take(Seeded(0.0, (_NORM,) * training.fragments))
    return driver
