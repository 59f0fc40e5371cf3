"""The record of hosts on which attempts of the job failed: `status.hosts[]`. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from diloco_operator.api.status import HostStatus


def read_hosts(status: Mapping[str, Any]) -> dict[str, HostStatus]:
    """Node -> record of the host."""
    return {raw["node"]: HostStatus.model_validate(raw) for raw in status.get("hosts") or ()}


class JobHosts(NamedTuple):
    """The hosts on which attempts of a job failed, and what follows for the job."""

    records: Mapping[str, HostStatus] = MappingProxyType({})
    """By node."""
    avoided: Mapping[str, float] = MappingProxyType({})
    """Node -> until when no attempt may start there, seconds since the epoch."""
    program: str = ""
    """If attempts failed on several hosts and yet none is avoided: why the program is to blame. Else ""."""
    deadlines: tuple[float, ...] = ()
    """When time alone changes any of this."""


NO_HOSTS = JobHosts()
