"""What is on record of hosts on which attempts of the job failed: `status.hosts[]`. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp


class HostFailure(NamedTuple):
    """One attempt that failed on a host. Fields as in `api.status.HostFailure`."""

    unit: str
    attempt: int
    at: float
    """Seconds since the epoch."""
    reason: str


class HostRecord(NamedTuple):
    """Fields as in `api.status.HostStatus`."""

    node: str
    uid: str
    failures: tuple[HostFailure, ...] = ()
    """The oldest first."""
    message: str = ""
    avoided_until: float | None = None
    avoidances: int = 0

    @property
    def last_failure(self) -> float:
        """Seconds since the epoch."""
        return max(failure.at for failure in self.failures)

    def avoided(self, now: float) -> bool:
        """Return whether no attempt may start there now."""
        return self.avoided_until is not None and now < self.avoided_until


def read_hosts(status: Mapping[str, Any]) -> dict[str, HostRecord]:
    """Read the hosts by node."""
    return {raw["node"]: _read(raw) for raw in status.get("hosts") or ()}


def _read(raw: Mapping[str, Any]) -> HostRecord:
    until = raw.get("avoidedUntil")
    return HostRecord(
        raw["node"],
        raw.get("uid", ""),
        tuple(
            HostFailure(each["unit"], each["attempt"], parse_timestamp(each["at"]), each.get("reason", ""))
            for each in raw.get("failures") or ()
        ),
        raw.get("message", ""),
        parse_timestamp(until) if until else None,
        raw.get("avoidances", 0),
    )


def write_host(record: HostRecord) -> dict[str, Any]:
    """Return every field, also those at their defaults, so that what the API server gives back equals what was written."""
    found: dict[str, Any] = {
        "node": record.node,
        "uid": record.uid,
        "failures": [
            {"unit": each.unit, "attempt": each.attempt, "at": format_timestamp(each.at), "reason": each.reason} for each in record.failures
        ],
        "message": record.message,
        "avoidances": record.avoidances,
    }
    if record.avoided_until is not None:
        found["avoidedUntil"] = format_timestamp(record.avoided_until)
    return found


class JobHosts(NamedTuple):
    """What one job makes of the hosts on which its attempts failed."""

    records: Mapping[str, HostRecord] = MappingProxyType({})
    """By node."""
    avoided: Mapping[str, float] = MappingProxyType({})
    """Node -> until when no attempt may start there, seconds since the epoch."""
    program: str = ""
    """Why the program is to blame and no host is avoided, although attempts failed on several; "" where that is not so."""
    deadlines: tuple[float, ...] = ()
    """When the passing of time alone changes any of this."""


NO_HOSTS = JobHosts()
