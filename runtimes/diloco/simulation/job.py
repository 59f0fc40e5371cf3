"""A job on virtual time: the coordinator that runs in syncers, and simulated units.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.events import Close, Merged, Metadata, Offer, Order, Pull, Rest, Skipped
from diloco.algorithm.guards import Guard
from diloco.contract import Training
from diloco.simulation.goodput import Accounts
from diloco.simulation.timeline import Timeline
from diloco.simulation.unit import Hardware, SimulatedUnit

_NORM = 1.0
"""Of every outer gradient: the guards see a healthy run."""


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
    accounts: Accounts


class SimulatedJob:
    """Runs one job. Learner, link and syncer cost no time here, but for the steps, failures and starts of the units."""

    def __init__(self, training: Training, hardware: Sequence[Hardware], random: Generator) -> None:
        """One unit for each `hardware`. They join at random moments of the first step."""
        self.timeline = Timeline()
        self._training = training
        guard = Guard([1] * training.fragments)
        guard.begin([_NORM] * training.fragments)
        self._coordinator = Coordinator(training, guard)
        self._coordinator.begin()
        self._tokens: dict[int, int] = {}
        """Per open exchange, tokens of its contributions."""
        self._merged_tokens = 0
        self._merged = self._contributions = self._skipped = 0
        self._up_since: float | None = None
        self._up_seconds = 0.0
        self.units: dict[str, SimulatedUnit] = {}
        for index, (one, own) in enumerate(zip(hardware, random.spawn(len(hardware)), strict=True)):
            unit = SimulatedUnit(f"u{index}", one, training.fragments, self.timeline, self, own)
            self.units[unit.name] = unit
            unit.begin(own.random() * one.step_seconds)

    def run(self, seconds: float) -> Outcome:
        """Simulate so long."""
        timeline, coordinator = self.timeline, self._coordinator
        self._advance()
        while True:
            wake = coordinator.wake_at(timeline.now)
            at = timeline.next_at if wake is None else min(wake, timeline.next_at)
            if at > seconds or math.isinf(at):
                break
            if timeline.next_at <= at:
                timeline.step()
            else:
                timeline.move_to(at)
            self._note_uptime()
            self._advance()
        timeline.move_to(seconds)
        self._note_uptime()
        return self._outcome(seconds)

    # --- what units say -----------------------------------------------------------------------------------------------

    def joined(self, unit: SimulatedUnit) -> None:
        self._coordinator.join(unit.name, self.timeline.now)

    def left(self, unit: SimulatedUnit) -> None:
        self._coordinator.leave(unit.name, self.timeline.now)

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        self._coordinator.paused(unit.name, until, self.timeline.now)

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        self._coordinator.progress(unit.name, metadata, self.timeline.now)

    def answered(self, unit: SimulatedUnit, pull: Pull, steps: int, tokens: int) -> None:
        coordinator, now = self._coordinator, self.timeline.now
        version = coordinator.versions[pull.fragment]
        offer = Offer(pull.fragment, pull.t, coordinator.coding, version, steps, tokens)
        if coordinator.admit(unit.name, offer, now) is None and coordinator.contributed(unit.name, offer, _NORM, now) is None:
            self._tokens[pull.t] = self._tokens.get(pull.t, 0) + tokens

    # --- what the coordinator wants -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        while orders := self._coordinator.advance(self.timeline.now):
            for order in orders:
                self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Pull():
                for name in order.units:
                    self.units[name].pulled(order)
            case Close():
                merged = self._coordinator.applied(order.t, self.timeline.now, finite=True)
                assert isinstance(merged, Merged), "the update of a simulated merge is finite"
                self._merged += 1
                self._contributions += len(merged.units)
                self._merged_tokens += self._tokens.pop(order.t)
                for unit in self.units.values():
                    unit.merged(order.fragment)
            case Skipped():
                self._skipped += 1
            case Rest():
                self.units[order.unit].resting = order.rests

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
            accounts.include(unit.accounts)
        trained = sum(unit.tokens for unit in self.units.values()) * self._training.fragments
        return Outcome(
            seconds,
            self._coordinator.t,
            accounts.goodput,
            self._up_seconds / seconds,
            self._contributions / self._merged if self._merged else 0.0,
            self._merged,
            self._skipped,
            self._merged_tokens / trained if trained else 0.0,
            accounts,
        )
