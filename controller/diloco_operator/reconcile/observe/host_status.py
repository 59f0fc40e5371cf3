"""What is on record of hosts on which attempts of the job failed: `status.hosts[]`. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from diloco_operator.api.status import HostStatus


def read_hosts(status: Mapping[str, Any]) -> dict[str, HostStatus]:
    """Read the hosts by node."""
    return {raw["node"]: HostStatus.model_validate(raw) for raw in status.get("hosts") or ()}


class JobHosts(NamedTuple):
    """What one job makes of the hosts on which its attempts failed."""

    records: Mapping[str, HostStatus] = MappingProxyType({})
    """By node."""
    avoided: Mapping[str, float] = MappingProxyType({})
    """Node -> until when no attempt may start there, seconds since the epoch."""
    program: str = ""
    """Why the program is to blame and no host is avoided, although attempts failed on several; "" where that is not so."""
    deadlines: tuple[float, ...] = ()
    """When the passing of time alone changes any of this."""


NO_HOSTS = JobHosts()
