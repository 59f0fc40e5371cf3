"""The one driver of a job: an event in, its effects out. Pure, and deterministic: the same events give the same effects and the same bytes.

The syncer's process, the tests, the benchmarks and the simulator run it. They differ in where events come from and in who carries effects
out. All of them do this:

    effects = driver.take(event)                 # something has happened
    while effects := driver.take(Tick(now)):     # what is due now
        carry out the effects, in order

and again at `wake_at`. `Decode` and `Close` ask for arithmetic, which may be done at once or in any thread. Its completion is an event.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

from typing import Protocol, assert_never

from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.effects import Broadcast, Close, ContributionRejected, Decode, Effect, Refused, Skipped
from diloco.algorithm.events import (
    Computed,
    EndsAt,
    Event,
    Joined,
    Left,
    Lives,
    Offer,
    Offered,
    Paused,
    Reported,
    Seeded,
    Tick,
    Unusable,
    Usable,
)


class Arrays(Protocol):
    """Holds the outer gradients and updates that events and effects only name."""

    def accept(self, unit: str, offer: Offer) -> None:
        """Keep the decoded answer for the order that merges it."""
        ...

    def drop(self, unit: str, offer: Offer) -> None:
        """Forget a decoded answer that is not accepted. Idempotent."""
        ...

    def discard(self, t: int, unit: str) -> None:
        """Forget the unit's accepted answer of outer step t. Idempotent."""
        ...

    def install(self, close: Close) -> memoryview | None:
        """Install the computed update, and forget the contributions that it merged. Returns the payload of the broadcast; None if the
        update is not finite."""
        ...


class NoArrays:
    """For a job without parameters, as in the simulator: every update is empty."""

    def accept(self, unit: str, offer: Offer) -> None:
        pass

    def drop(self, unit: str, offer: Offer) -> None:
        pass

    def discard(self, t: int, unit: str) -> None:
        pass

    def install(self, close: Close) -> memoryview | None:
        return memoryview(b"")


class Driver:
    """A coordinator with the arrays that it decides about. Not thread-safe."""

    def __init__(self, coordinator: Coordinator, arrays: Arrays) -> None:
        self.coordinator = coordinator
        """For reading. Only the driver changes it."""
        self._arrays = arrays
        self._ordered: dict[int, Close] = {}
        """Orders that are being computed, by outer step."""

    def take(self, event: Event) -> list[Effect]:
        """Return the immediate effects of an event. Decisions follow from the next `Tick`.

        Raises ValueError unless there is one counter for each fragment, KeyError for a merge that was not ordered. Nothing has changed
        then.
        """
        coordinator = self.coordinator
        match event:
            case Tick():
                return self._decide(event.at)
            case Reported():
                coordinator.progress(event.unit, event.metadata, event.at)
            case Offered():
                refusal = coordinator.admit(event.unit, event.offer, event.at)
                return [Decode(event.unit, event.offer) if refusal is None else Refused(event.unit, event.offer, refusal)]
            case Usable():
                return self._use(event)
            case Computed():
                return self._install(event)
            case Lives():
                coordinator.alive(event.unit, event.at)
            case Unusable():
                coordinator.rejected(event.unit, event.offer, event.at)
            case Paused():
                coordinator.paused(event.unit, event.until, event.at)
            case Joined():
                coordinator.join(event.unit, event.at)
            case Left():
                coordinator.leave(event.unit, event.at)
            case Seeded():
                coordinator.begin(event.norms)
            case EndsAt():
                coordinator.end(event.t)
            case _:
                assert_never(event)
        return []

    def wake_at(self, now: float) -> float | None:
        """When to take a `Tick` if no event comes before, later than `now`; None if only an event can change anything."""
        return self.coordinator.wake_at(now)

    def _decide(self, at: float) -> list[Effect]:
        orders = self.coordinator.advance(at)
        if not orders:
            return []
        for order in orders:
            if isinstance(order, Close):
                self._ordered[order.t] = order
            elif isinstance(order, ContributionRejected):
                for t in (order.t, *order.withdrawn):
                    self._arrays.discard(t, order.unit)
        return [*orders]

    def _use(self, event: Usable) -> list[Effect]:
        unit, offer = event.unit, event.offer
        refusal = self.coordinator.contributed(unit, offer, event.norm, event.at, event.countable_tokens)
        if refusal is not None:
            self._arrays.drop(unit, offer)
            return [Refused(unit, offer, refusal)]
        self._arrays.accept(unit, offer)
        return []

    def _install(self, event: Computed) -> list[Effect]:
        close = self._ordered.pop(event.t)
        payload = self._arrays.install(close)
        outcome = self.coordinator.applied(event.t, event.at, finite=event.finite)
        if isinstance(outcome, Skipped) or payload is None:
            return [outcome]
        return [outcome, Broadcast(close.t, close.fragment, close.base, self.coordinator.coding, payload)]
