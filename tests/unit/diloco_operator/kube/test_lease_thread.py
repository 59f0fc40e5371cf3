"""The election in a thread of its own: renewals while the event loop that started it stands still."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from diloco_local.memory import MemoryApi
from diloco_operator.kube.client import Obj, Resource, Unavailable
from diloco_operator.kube.elector import Elector, LeaseLost
from diloco_operator.kube.fence import Fence, NotLeading
from diloco_operator.kube.lease import read_lease
from diloco_operator.kube.lease_thread import LeaseThread
from diloco_operator.timeouts import LeaseTimeouts

NS = "default"
NAME = "diloco-operator"
TIMEOUTS = LeaseTimeouts(lease_duration=60, renew_deadline=50, retry_period=0.01)
WAIT_SECONDS = 180.0
"""A limit for defects, not an expectation."""


class Election:
    """A fence, and an API server that lives in the thread and counts the renewals."""

    def __init__(self, *, turn: Callable[[], float] = lambda: 0.0) -> None:
        self.fence = Fence(turn=turn, longest_turn=TIMEOUTS.lease_duration)
        self.connections: list[str] = []
        """Which thread connected, and what ended."""
        self.holder = ""
        self._renewals = 0
        self._changed = threading.Condition()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Elector]:
        self.connections.append(threading.current_thread().name)
        api = MemoryApi(random=random.Random(1))
        original = api.update

        async def update(resource: Resource, obj: Obj, **options: Any) -> Obj:
            answer = await original(resource, obj, **options)
            with self._changed:
                self._renewals += 1
                self.holder = read_lease(answer).holder
                self._changed.notify_all()
            return answer

        api.update = update  # type: ignore[method-assign]
        yield Elector(api, self.fence, namespace=NS, name=NAME, identity="me", timeouts=TIMEOUTS, rng=lambda: 0.0)
        self.connections.append("closed")

    def stand_still_for(self, renewals: int) -> None:
        """Keep this thread, and so its event loop, until the lease was renewed so often."""
        with self._changed:
            wanted = self._renewals + renewals
            assert self._changed.wait_for(lambda: self._renewals >= wanted, WAIT_SECONDS)


async def test_the_lease_is_renewed_while_the_loop_stands_still() -> None:
    election = Election()
    async with LeaseThread.started(election.connect) as lease:
        await lease.acquire()
        election.stand_still_for(5)
        assert lease.leads
        assert not lease.lost.done()
        election.fence.check()
        assert election.connections == ["lease"]
    assert election.connections == ["lease", "closed"]


async def test_the_loss_of_the_lease_reaches_the_loop_with_the_fence_shut() -> None:
    turn = 0.0
    election = Election(turn=lambda: turn)
    async with LeaseThread.started(election.connect) as lease:
        await lease.acquire()
        turn = 60.5  # as if the loop had stood still for so long
        with pytest.raises(LeaseLost, match=r"stood still for 60\.5 s"):
            await asyncio.wait_for(lease.lost, WAIT_SECONDS)
        with pytest.raises(NotLeading):
            election.fence.check()


async def test_a_released_lease_is_not_renewed_again() -> None:
    election = Election()
    async with LeaseThread.started(election.connect) as lease:
        await lease.acquire()
        election.stand_still_for(1)
        election.fence.shut()
        await lease.release()
        assert election.holder == ""
    assert election.holder == ""


async def test_a_lease_that_this_replica_never_had_is_not_released() -> None:
    election = Election()
    async with LeaseThread.started(election.connect) as lease:
        await lease.release()
        assert not lease.leads
    assert election.holder == ""


async def test_a_thread_that_cannot_connect_says_why() -> None:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Elector]:
        raise Unavailable(503, "ServiceUnavailable", "no credentials")
        yield

    with pytest.raises(Unavailable, match="no credentials"):
        async with LeaseThread.started(connect):
            raise AssertionError("it has no connection")


async def test_an_election_that_waits_ends_with_its_context() -> None:
    election = Election(turn=lambda: 60.5)  # so it does not even try
    async with LeaseThread.started(election.connect) as lease:
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
    assert election.connections == ["lease", "closed"]
