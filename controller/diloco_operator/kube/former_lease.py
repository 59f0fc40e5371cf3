"""The Lease by which replicas of an earlier version of the same Deployment elect their leader, if it had another name then.

This replica only reads that Lease, which may be another Deployment's. While a replica of the same Deployment leads by it, or may take it at
any moment, this one does not lead.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

from collections.abc import Callable

from diloco_operator.kube.client import Client, NotFound
from diloco_operator.kube.lease import LEASES, LeaderElectionConfig, Lease, deployment_of, read_lease


class FormerLease:
    """What this replica has seen of the Lease `config.former_name`. `clock` is the election's."""

    def __init__(self, client: Client, config: LeaderElectionConfig, clock: Callable[[], float]) -> None:
        self._client = client
        self._namespace = config.namespace
        self._name = config.former_name
        self._deployment = deployment_of(config.identity)
        self._timeouts = config.timeouts
        self._clock = clock
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._free = False

    async def reason_held(self) -> str:
        """Return why a replica of this Deployment may lead by this Lease, now or soon; "" if none can. Raises what the client raises."""
        try:
            lease = read_lease(await self._client.get(LEASES, self._namespace, self._name))
        except NotFound:
            return ""
        now, first = self._clock(), self._seen is None
        renewed = lease != self._seen
        if renewed:
            self._seen, self._seen_at = lease, now
        # A standby that sees the lease free, or expired, takes it: it looks every retry period, and saw the last change one period later.
        silent = now - self._seen_at >= max(lease.duration, self._timeouts.lease_duration) + 2 * self._timeouts.retry_period
        what = f"the lease {self._namespace}/{self._name} of an earlier version"
        if lease.holder and deployment_of(lease.holder) == self._deployment:
            self._free = silent
            return "" if silent else f"{lease.holder} holds {what}"
        if not self._free:
            # A replica of another Deployment that renews it keeps all of this one from taking it. The first look proves no renewal.
            self._free = silent or (renewed and not first and bool(lease.holder))
        return "" if self._free else f"another replica may hold {what}"
