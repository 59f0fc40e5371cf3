"""Takes part in the leader election: reads and writes the Lease as `kube.lease` decides, and opens the fence while this replica leads.

See docs/decisions/0090-lease-and-clocks.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj
from diloco_operator.kube.fence import Fence, boot_clock
from diloco_operator.kube.lease import LEASES, Election, ElectionAction, LeaderElectionConfig, Lease, deployment_of, read_lease, write_lease
from diloco_operator.timeouts import LAST_RENEWALS, STANDBY_RETRY

log = logging.getLogger(__name__)


class FormerLease:
    """The Lease with which replicas of an earlier version of the same Deployment elect their leader, if it had another name then.

    This replica only reads that Lease, which may be another Deployment's. While a replica of the same Deployment holds it, or may take
    it at any moment, this one does not lead. `clock` is the election's.
    """

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


class LeaseLost(Exception):
    """This replica led and does not lead any more. Its knowledge may be outdated from now on."""


class Elector:
    """One replica's part in the election for a Lease. It runs in the event loop of the writes: if that stands still, nothing renews the
    lease, and another replica takes over.

    Args:
        client: for the election alone, without a fence, so that no write delays it.
        rng: draws jitter from [0, 1).
        clock: the fence's clock.
        now: the wall clock, timezone-aware.
    """

    def __init__(
        self,
        client: Client,
        fence: Fence,
        config: LeaderElectionConfig,
        *,
        rng: Callable[[], float],
        clock: Callable[[], float] = boot_clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._fence = fence
        self._namespace = config.namespace
        self._name = config.name
        self._identity = config.identity
        self._timeouts = config.timeouts
        self._rng = rng
        self._clock = clock
        self._now = now
        self._election = Election(config.identity, config.timeouts)
        self._former = FormerLease(client, config, clock) if config.former_name else None
        self._version = ""
        """resourceVersion of the Lease as it was seen last, "" if it must be read first."""
        self._waits_for = ""
        """Why this replica does not lead, as it was logged last; "" while it leads."""

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        until = self._election.leads_until
        return until is not None and self._clock() < until

    async def acquire(self) -> None:
        """Return when this replica leads, with the fence open. Call `hold` at once."""
        log.info("waiting for the lease %s as %s", self._what, self._identity)
        while True:
            self._version = ""  # a replica that does not lead reads the Lease before it writes it
            try:
                if await self._try(self._timeouts.attempt):
                    self._waits_for = ""
                    log.info("leading: %s holds the lease %s", self._identity, self._what)
                    return
            except (ApiError, OSError, TimeoutError) as error:
                log.warning("lease %s: %s", self._what, _text(error))
            # A little jitter keeps replicas from trying at the same moment.
            wait = self._election.recheck_in(self._clock())
            await asyncio.sleep(max(wait, STANDBY_RETRY) * (1 + 0.1 * self._rng()))

    async def hold(self) -> None:
        """Renew until cancelled. Raises `LeaseLost`, with the fence shut, if that fails for too long or another replica has the lease."""
        try:
            while True:
                left = self._left()
                # Shorter pauses near the end. Otherwise the last attempt would come exactly when it is too late.
                await asyncio.sleep(min(self._timeouts.retry_period, max(left / 2, LAST_RENEWALS), max(left, 0.0)))
                await self._renew()
        except LeaseLost:
            self._fence.shut()
            raise

    async def _renew(self) -> None:
        """Try once to renew the lease. A failed attempt is an error only after the deadline. A process that was stopped, or whose event
        loop stood still, notices the deadline here."""
        left = self._left()
        if left <= 0:
            raise LeaseLost(f"the lease {self._what} was not renewed within {self._timeouts.renew_deadline:g} s")
        try:
            won = await self._try(min(left, self._timeouts.attempt))
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("the lease %s was not renewed; this replica writes for another %.1f s at most: %s", self._what, left, _text(error))
            self._version = ""
            return
        if not won:
            raise LeaseLost(f"{self._waits_for or self._held} now")

    async def release(self) -> None:
        """Release the lease, so that another replica need not wait for its expiry. Shuts the fence first. Best effort."""
        self._fence.shut()
        if not self.leads:
            return
        try:
            async with asyncio.timeout(self._timeouts.attempt):
                await self._read()  # the last renewal may have been cancelled, and it is unknown whether it succeeded
                seen = self._election.seen
                if seen is None or seen.holder != self._identity:
                    return
                await self._client.update(LEASES, self._object(self._election.released(self._now()), self._version))
            log.info("the lease %s is released", self._what)
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("the lease %s was not released and will expire: %s", self._what, _text(error))

    async def _try(self, limit: float) -> bool:
        """Make one attempt, of `limit` seconds at most, to get or to keep the lease. Return whether this replica leads."""
        async with asyncio.timeout(limit):
            if self._former is not None and (why := await self._former.reason_held()):
                self._stand_by(why)
                return False
            if not self._version:
                await self._read()
            action = self._election.next_action(self._clock())
            if action is ElectionAction.WAIT:
                self._stand_by(self._held)
                return False
            claim = self._election.claim(self._now())
            sent = self._clock()
            try:
                if action is ElectionAction.CREATE:
                    answer = await self._client.create(LEASES, self._object(claim, ""))
                else:
                    answer = await self._client.update(LEASES, self._object(claim, self._version))
            except (AlreadyExists, Conflict, NotFound):  # another replica was faster, or the Lease was deleted: read it again
                self._version = ""
                await self._read()
                seen = self._election.seen
                if seen is not None and seen.holder == self._identity:  # something else in our Lease changed, for example a label
                    raise
                self._stand_by(self._held)
                return False
            self._version = answer["metadata"]["resourceVersion"]
            self._election.won(read_lease(answer), sent, self._clock())
        until = self._election.leads_until
        assert until is not None
        self._fence.open_until(until)
        return self.leads

    async def _read(self) -> None:
        try:
            obj = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            self._election.saw(None, self._clock())
            return
        self._version = obj["metadata"]["resourceVersion"]
        self._election.saw(read_lease(obj), self._clock())

    def _stand_by(self, why: str) -> None:
        if why != self._waits_for:
            self._waits_for = why
            log.info("standing by: %s", why)

    def _object(self, lease: Lease, version: str) -> Obj:
        meta = {"namespace": self._namespace, "name": self._name, **({"resourceVersion": version} if version else {})}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": write_lease(lease)}

    def _left(self) -> float:
        until = self._election.leads_until
        return until - self._clock() if until is not None else 0.0

    @property
    def _held(self) -> str:
        seen = self._election.seen
        return f"{(seen.holder if seen is not None else '') or 'no replica'} holds the lease {self._what}"

    @property
    def _what(self) -> str:
        return f"{self._namespace}/{self._name}"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
