"""Takes part in the leader election: reads and writes the Lease as `kube.lease` says, and opens the fence while it is held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj
from diloco_operator.kube.fence import Fence, boot_clock
from diloco_operator.kube.lease import LEASES, Election, Lease, Move, read_lease, write_lease
from diloco_operator.timeouts import LAST_RENEWALS, STANDBY_RETRY, LeaseTimeouts

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """This replica led and does not lead any more. Nothing that it believed may be trusted from here on."""


class Elector:
    """One replica's part in the election for the Lease `namespace/name`.

    `client` is its own, neither fenced nor shared with anything that could keep it waiting. `clock` is the fence's; `now` the time of day,
    aware; `rng` draws jitter from [0, 1).
    """

    def __init__(
        self,
        client: Client,
        fence: Fence,
        *,
        namespace: str,
        name: str,
        identity: str,
        timeouts: LeaseTimeouts,
        rng: Callable[[], float],
        clock: Callable[[], float] = boot_clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._fence = fence
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timeouts = timeouts
        self._rng = rng
        self._clock = clock
        self._now = now
        self._election = Election(identity, timeouts)
        self._version = ""
        """resourceVersion of the Lease as it was seen last; "": it must be read first."""
        self._told = ""

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        until = self._election.leads_until
        return until is not None and self._clock() < until

    async def acquire(self) -> None:
        """Returns when this replica leads; the fence is open then. `hold` has to follow at once."""
        log.info("waiting for the lease %s as %s", self._what, self._identity)
        while True:
            self._version = ""  # whoever does not lead looks before it writes
            try:
                if await self._try(self._timeouts.attempt):
                    log.info("leading: %s holds the lease %s", self._identity, self._what)
                    return
            except (ApiError, OSError, TimeoutError) as error:
                log.warning("lease %s: %s", self._what, _text(error))
            # A little jitter, so that replicas do not stay in step; none beyond the moment at which the lease runs out.
            wait = self._election.recheck_in(self._clock())
            await asyncio.sleep(max(wait, STANDBY_RETRY) * (1 + 0.1 * self._rng()))

    async def hold(self) -> None:
        """Renews until cancelled. Raises `LeaseLost` when that fails for too long, or another holds the lease; the fence is shut then."""
        try:
            while True:
                left = self._left()
                # Sooner when time runs out, or the last attempt would come exactly when it is too late.
                await asyncio.sleep(min(self._timeouts.retry_period, max(left / 2, LAST_RENEWALS), max(left, 0.0)))
                await self._renew()
        except LeaseLost:
            self._fence.shut()
            raise

    async def _renew(self) -> None:
        """One attempt. That it failed is an error only when the time is up; a process that was stopped finds it up right here."""
        left = self._left()
        if left <= 0:
            raise LeaseLost(f"the lease {self._what} was not renewed within {self._timeouts.renew_deadline:g} s")
        try:
            won = await self._try(min(left, self._timeouts.attempt))
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("the lease %s was not renewed, writing goes on for %.1f s at most: %s", self._what, max(0.0, left), _text(error))
            self._version = ""
            return
        if not won:
            seen = self._election.seen
            holder = seen.holder if seen is not None else "nobody"
            raise LeaseLost(f"the lease {self._what} is held by {holder or 'nobody'} now")

    async def release(self) -> None:
        """Gives the lease back, so that another replica need not wait for it to run out. Shuts the fence first; best effort."""
        self._fence.shut()
        if not self.leads:
            return
        try:
            async with asyncio.timeout(self._timeouts.attempt):
                await self._look()  # a renewal may have been cut short, and nobody knows whether it was carried out
                seen = self._election.seen
                if seen is None or seen.holder != self._identity:
                    return
                await self._client.update(LEASES, self._object(self._election.released(self._now()), self._version))
            log.info("the lease %s is released", self._what)
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("the lease %s was not released, it will run out: %s", self._what, _text(error))

    async def _try(self, limit: float) -> bool:
        """One attempt, of `limit` seconds at most, to get or to keep the lease; gives whether this replica leads."""
        async with asyncio.timeout(limit):
            if not self._version:
                await self._look()
            move = self._election.move(self._clock())
            if move is Move.WAIT:
                self._tell()
                return False
            claim = self._election.claim(self._now())
            sent = self._clock()
            try:
                if move is Move.CREATE:
                    answer = await self._client.create(LEASES, self._object(claim, ""))
                else:
                    answer = await self._client.update(LEASES, self._object(claim, self._version))
            except (AlreadyExists, Conflict, NotFound):  # another was quicker, or it was deleted: what we saw is not true any more
                self._version = ""
                await self._look()
                seen = self._election.seen
                if seen is not None and seen.holder == self._identity:  # somebody touched our lease, a label for example
                    raise
                return False
            self._version = answer["metadata"]["resourceVersion"]
            self._election.won(read_lease(answer), sent, self._clock())
        until = self._election.leads_until
        assert until is not None
        self._fence.open_until(until)
        return self.leads

    async def _look(self) -> None:
        try:
            obj = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            self._election.saw(None, self._clock())
            return
        self._version = obj["metadata"]["resourceVersion"]
        self._election.saw(read_lease(obj), self._clock())

    def _tell(self) -> None:
        seen = self._election.seen
        assert seen is not None
        if seen.holder != self._told:
            self._told = seen.holder
            log.info("standing by: %s holds the lease %s", seen.holder, self._what)

    def _object(self, lease: Lease, version: str) -> Obj:
        meta = {"namespace": self._namespace, "name": self._name, **({"resourceVersion": version} if version else {})}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": write_lease(lease)}

    def _left(self) -> float:
        until = self._election.leads_until
        return until - self._clock() if until is not None else 0.0

    @property
    def _what(self) -> str:
        return f"{self._namespace}/{self._name}"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
