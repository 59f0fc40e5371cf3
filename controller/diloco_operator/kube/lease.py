"""Who of several replicas may write, by one Lease object: what to do with what was seen of it. Pure: clocks are arguments.

The semantics are those of Kubernetes' own controllers, so that `kubectl get lease` means the same. A lease that somebody else holds has
run out when *this* replica has seen it unchanged for as long as it says it lasts, on this replica's own clock: the times written in it
are for people, and clocks that differ between replicas do no harm.

The holder counts the other way round, from before its last successful renewal was *sent*. The API server carried that renewal out
later than that, and another replica saw it later still; so the holder stops writing, `renew_deadline` after sending, well before
anybody else can hold the lease, `lease_duration` after seeing. The difference of both is the time that a write on its way has to end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from diloco_operator.kube.client import Obj, Resource
from diloco_operator.timeouts import LeaseTimeouts

LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease object, as much of it as the election reads and writes."""

    holder: str
    """"": nobody; it was released."""
    duration: float
    """Seconds."""
    acquired: str
    renewed: str
    transitions: int
    """How often the holder changed."""


class Move(enum.Enum):
    """What a replica does now."""

    CREATE = "create"
    """There is no Lease: make one that names this replica."""
    UPDATE = "update"
    """The Lease is ours to renew, or to take over."""
    WAIT = "wait"
    """Another replica holds it."""


class Election:
    """One replica's view of the election. `now` is always this replica's monotonic clock, in seconds.

    The caller reads the Lease (`saw`), asks what to do (`move`, `claim`), writes it, and tells the outcome (`won`, or `saw` again).
    """

    def __init__(self, identity: str, timeouts: LeaseTimeouts) -> None:
        if not identity:
            raise ValueError("a replica needs an identity: an empty holder means that nobody holds the lease")
        self._identity = identity
        self._timeouts = timeouts
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._renewed: float | None = None
        """When the last renewal that succeeded was sent."""

    @property
    def seen(self) -> Lease | None:
        """The Lease as it was seen last."""
        return self._seen

    def saw(self, lease: Lease | None, now: float) -> None:
        """The API server has this Lease; None: there is none. Only a change starts its time anew."""
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if lease is None or lease.holder != self._identity:
            self._renewed = None

    def move(self, now: float) -> Move:
        """What to do about the Lease as it was seen last."""
        if self._seen is None:
            return Move.CREATE
        if self._seen.holder in ("", self._identity) or now >= self._runs_out(self._seen):
            return Move.UPDATE
        return Move.WAIT

    def recheck_in(self, now: float) -> float:
        """Seconds until the Lease must be looked at again: the retry period, or less if another's lease runs out sooner."""
        if self._seen is None or self._seen.holder in ("", self._identity):
            return self._timeouts.retry_period
        return max(0.0, min(self._timeouts.retry_period, self._runs_out(self._seen) - now))

    def claim(self, wall: datetime) -> Lease:
        """The Lease to write for `Move.CREATE` and `Move.UPDATE`; `wall` is the time of day, for people to read."""
        moment = format_micro_time(wall)
        seen = self._seen
        if seen is not None and seen.holder == self._identity:
            return replace(seen, duration=self._timeouts.lease_duration, renewed=moment)
        transitions = seen.transitions + 1 if seen is not None else 0
        return Lease(self._identity, self._timeouts.lease_duration, acquired=moment, renewed=moment, transitions=transitions)

    def released(self, wall: datetime) -> Lease:
        """The Lease to write when this replica, which holds it, goes away: anybody may take it at once."""
        moment = format_micro_time(wall)
        transitions = self._seen.transitions if self._seen is not None else 0
        return Lease("", 1.0, acquired=moment, renewed=moment, transitions=transitions)

    def won(self, lease: Lease, sent: float, now: float) -> None:
        """The claim that was sent at `sent` was carried out: `lease` is what the API server has."""
        self.saw(lease, now)
        self._renewed = sent

    @property
    def leads_until(self) -> float | None:
        """On the clock of `now`: from then on this replica must not write. None: it does not lead at all."""
        return self._renewed + self._timeouts.renew_deadline if self._renewed is not None else None

    def _runs_out(self, lease: Lease) -> float:
        return self._seen_at + lease.duration


def read_lease(obj: Obj) -> Lease:
    """From the API's object; what it lacks counts as never set."""
    spec: dict[str, Any] = obj.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def write_lease(lease: Lease) -> dict[str, Any]:
    """`spec` of the API's object."""
    return {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": int(lease.duration),
        "acquireTime": lease.acquired,
        "renewTime": lease.renewed,
        "leaseTransitions": lease.transitions,
    }


def format_micro_time(moment: datetime) -> str:
    """Kubernetes' MicroTime: RFC 3339 in UTC with six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
