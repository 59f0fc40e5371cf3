"""Leader election with one Lease object: which of several replicas may write. Pure: clocks are arguments.

It behaves as Kubernetes' own controllers do, so `kubectl get lease` means the same. Another replica's lease has expired when
*this* replica has seen it unchanged for its whole duration, on this replica's own clock. The times in the Lease are only human-readable
information, so clocks that differ between replicas do no harm.

The leader counts from before its last successful renewal was *sent*. The API server carried that renewal out later, and another replica saw
it later still. So the leader stops writing, `renew_deadline` after sending, well before another replica can take the lease,
`lease_duration` after seeing. A write that is on its way has the difference of the two to arrive.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from diloco_operator.kube.client import Obj, Resource
from diloco_operator.timeouts import LeaseTimeouts

LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """Which Lease this replica takes part in, and its identity."""

    namespace: str
    name: str
    identity: str
    """Unique for this process: no other one has it, not even an earlier process of the same pod."""
    timeouts: LeaseTimeouts = field(default_factory=LeaseTimeouts)
    former_name: str = ""
    """The Lease's name in an earlier version of the same Deployment; "" if it had the same name."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The fields of a Lease object that the election uses."""

    holder: str
    """Identity of the replica that has the lease, "" if it was released."""
    duration: float
    """Seconds."""
    acquired: str
    renewed: str
    transitions: int
    """How often the holder changed."""


class ElectionAction(enum.Enum):
    CREATE = "create"
    """No Lease exists: create one with this replica as holder."""
    UPDATE = "update"
    """Renew or take over the Lease."""
    WAIT = "wait"
    """Another replica holds the Lease."""


class Election:
    """One replica's view of the election. `now` is always this replica's monotonic clock, in seconds.

    The caller reads the Lease (`saw`), asks what to do (`next_action`, `claim`), writes the Lease, and reports the result (`won`, or `saw`
    again).
    """

    def __init__(self, identity: str, timeouts: LeaseTimeouts) -> None:
        if not identity:
            raise ValueError("a replica needs an identity: an empty holder means that no replica holds the lease")
        self._identity = identity
        self._timeouts = timeouts
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._renewed: float | None = None
        """When the last successful renewal was sent."""

    @property
    def seen(self) -> Lease | None:
        """The Lease as this replica saw it last."""
        return self._seen

    def saw(self, lease: Lease | None, now: float) -> None:
        """Note that the API server has this Lease, or none. Only a changed Lease starts its duration anew."""
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if lease is None or lease.holder != self._identity:
            self._renewed = None

    def next_action(self, now: float) -> ElectionAction:
        """Return what to do with the Lease as it was seen last."""
        if self._seen is None:
            return ElectionAction.CREATE
        if self._seen.holder in ("", self._identity) or now >= self._expires_at(self._seen):
            return ElectionAction.UPDATE
        return ElectionAction.WAIT

    def recheck_in(self, now: float) -> float:
        """Return seconds until the Lease must be checked again: the retry period, or less if another replica's lease expires sooner."""
        if self._seen is None or self._seen.holder in ("", self._identity):
            return self._timeouts.retry_period
        return max(0.0, min(self._timeouts.retry_period, self._expires_at(self._seen) - now))

    def claim(self, wall: datetime) -> Lease:
        """Return the Lease to write for `CREATE` and `UPDATE`. `wall`: the wall-clock time, which is written into it as information."""
        moment = format_micro_time(wall)
        seen = self._seen
        if seen is not None and seen.holder == self._identity:
            return replace(seen, duration=self._timeouts.lease_duration, renewed=moment)
        transitions = seen.transitions + 1 if seen is not None else 0
        return Lease(self._identity, self._timeouts.lease_duration, acquired=moment, renewed=moment, transitions=transitions)

    def released(self, wall: datetime) -> Lease:
        """Return the Lease to write when this replica releases it: another replica may take it at once."""
        moment = format_micro_time(wall)
        transitions = self._seen.transitions if self._seen is not None else 0
        return Lease("", 1.0, acquired=moment, renewed=moment, transitions=transitions)  # the duration that client-go writes, too

    def won(self, lease: Lease, sent: float, now: float) -> None:
        """Note that the claim sent at `sent` succeeded. `lease`: the Lease that the API server has."""
        self.saw(lease, now)
        self._renewed = sent

    @property
    def leads_until(self) -> float | None:
        """When this replica must stop writing, on the clock of `now`. None if it does not lead."""
        return self._renewed + self._timeouts.renew_deadline if self._renewed is not None else None

    def _expires_at(self, lease: Lease) -> float:
        return self._seen_at + lease.duration


def deployment_of(identity: str) -> str:
    """Return the Deployment whose replica has this identity: `<Deployment>-<hash>-<pod>_<uuid>`."""
    return identity.partition("_")[0].rsplit("-", 2)[0]


def read_lease(obj: Obj) -> Lease:
    """Read the API's object. Missing fields count as never set."""
    spec: dict[str, Any] = obj.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def write_lease(lease: Lease) -> dict[str, Any]:
    """Return `spec` of the API's object."""
    return {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": int(lease.duration),
        "acquireTime": lease.acquired,
        "renewTime": lease.renewed,
        "leaseTransitions": lease.transitions,
    }


def format_micro_time(moment: datetime) -> str:
    """Return Kubernetes' MicroTime: RFC 3339 in UTC with six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
