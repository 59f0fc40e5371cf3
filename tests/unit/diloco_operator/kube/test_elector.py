"""Replicas that elect a leader with an API server, and the writes that the fence allows, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api.names import CONFIG_MAPS
from diloco_operator.kube.client import Client, Resource, Unavailable
from diloco_operator.kube.elector import Elector, LeaseLost
from diloco_operator.kube.fence import Fence, NotLeading
from diloco_operator.kube.lease import LEASES, LeaderElectionConfig, read_lease

NS = "default"
OLD, NEW = "diloco-operator", "team-diloco-operator"
"""Names of a release's Lease: in 0.1.0, and since."""


class Replica:
    """The election part of one operator process. `offset` advances its clock while nothing of it runs."""

    def __init__(self, world: World, identity: str, lease: str, former: str) -> None:
        loop = asyncio.get_running_loop()
        self.offset = 0.0
        self.cut_off = False
        self.fence = Fence(self.clock)
        self.client = cast("Client", _Cable(world.api, self))
        self.elector = Elector(
            self.client,
            self.fence,
            LeaderElectionConfig(NS, lease, identity, former_name=former),
            rng=world.random.random,
            clock=self.clock,
        )
        self.led_at: float | None = None
        self.lost: LeaseLost | None = None
        self.task = loop.create_task(self._run())

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    async def _run(self) -> None:
        await self.elector.acquire()
        self.led_at = asyncio.get_running_loop().time()
        try:
            await self.elector.hold()
        except LeaseLost as error:
            self.lost = error

    async def write(self, name: str) -> None:
        async with self.fence.write():
            await self.client.create(CONFIG_MAPS, {"metadata": {"namespace": NS, "name": name}})

    @property
    def may_write(self) -> bool:
        try:
            self.fence.check()
        except NotLeading:
            return False
        return True

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class _Cable:
    """The connection of one replica to the API server; each request takes a little."""

    def __init__(self, api: MemoryApi, replica: Replica) -> None:
        self._api = api
        self._replica = replica

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def request(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.01)
            if self._replica.cut_off:
                await asyncio.Event().wait()
            return await getattr(self._api, verb)(*args, **kwargs)

        return request


class World:
    def __init__(self) -> None:
        self.api = MemoryApi(random=random.Random(1))
        self.random = random.Random(2)
        self.named: dict[str, Replica] = {}

    def start(self, identity: str, *, lease: str = OLD, former: str = "") -> Replica:
        replica = Replica(self, identity, lease, former)
        self.named[identity] = replica
        return replica

    async def holder(self) -> str:
        return read_lease(await self.api.get(LEASES, NS, "diloco-operator")).holder


def elected(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Play the test on virtual time; afterwards its replicas end."""

    async def play() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            for replica in world.named.values():
                await replica.stop()

    def run() -> None:
        run_virtual(play())

    run.__name__, run.__doc__ = scenario.__name__, scenario.__doc__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


async def a_leader_and_a_standby(world: World) -> tuple[Replica, Replica]:
    first = world.start("first")
    await until(lambda: first.led_at is not None)
    second = world.start("second")
    await asyncio.sleep(30)
    assert second.led_at is None
    assert first.lost is None
    return first, second


@pytest.mark.slow
@elected
async def test_of_several_replicas_one_leads_and_goes_on_leading(world: World) -> None:
    replicas = [world.start(f"replica-{i}") for i in range(5)]
    await until(lambda: any(replica.led_at is not None for replica in replicas))
    await asyncio.sleep(600)
    assert [replica.led_at is not None for replica in replicas].count(True) == 1
    assert all(replica.lost is None for replica in replicas)
    assert read_lease(await world.api.get(LEASES, NS, "diloco-operator")).transitions == 0


@elected
async def test_a_leader_that_was_killed_is_followed_within_20_seconds(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    await first.stop()
    killed = now()
    await until(lambda: second.led_at is not None)
    assert second.led_at is not None
    # It was renewed at most 2 s before the end, and seen by the standby at most 2.2 s (with jitter) after that; then it lasts 15 s.
    assert second.led_at - killed < 15 + 2.2 + 0.1


@elected
async def test_a_leader_that_releases_the_lease_is_followed_at_the_next_check(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    await first.stop()
    await first.elector.release()
    assert await world.holder() == ""
    with pytest.raises(NotLeading):
        await first.write("late")
    released = now()
    await until(lambda: second.led_at is not None)
    assert second.led_at is not None
    assert second.led_at - released < 2.3  # the retry period, with jitter


@elected
async def test_a_partitioned_leader_stops_writing_before_another_leads(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    first.cut_off = True
    writing = asyncio.create_task(first.write("under-way"))
    await until(lambda: first.lost is not None)
    stopped = now()
    assert second.led_at is None
    with pytest.raises(NotLeading, match="during the write"):
        await writing
    with pytest.raises(NotLeading, match="does not hold"):
        await first.write("late")
    first.cut_off = False
    await until(lambda: second.led_at is not None)
    assert second.led_at is not None
    assert second.led_at - stopped >= 5  # lease duration - renew deadline
    assert await world.holder() == "second"


@elected
async def test_a_hiccup_shorter_than_the_deadline_costs_nothing(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    away = True

    def refuse(verb: str, resource: Resource, namespace: str, name: str) -> None:
        if away and resource == LEASES:
            raise Unavailable(503, "ServiceUnavailable", "starting")

    world.api.before = refuse
    await asyncio.sleep(7)
    away = False
    await asyncio.sleep(60)
    assert first.lost is None
    assert second.led_at is None
    await first.write("still-allowed")


@elected
async def test_a_process_that_was_suspended_writes_nothing_when_it_continues(world: World) -> None:
    first, _ = await a_leader_and_a_standby(world)
    await first.write("before")
    first.offset += 60  # its clock advanced while nothing of it ran: no timer fired, no renewal was sent
    with pytest.raises(NotLeading):
        await first.write("after")
    await until(lambda: first.lost is not None)
    assert "not renewed within 10 s" in str(first.lost)


@elected
async def test_a_fence_that_was_shut_stays_shut_whatever_a_late_renewal_says(world: World) -> None:
    fence = Fence(now)
    fence.open_until(now() + 60)
    fence.shut()
    fence.open_until(now() + 60)
    with pytest.raises(NotLeading):
        fence.check()


@elected
async def test_a_renewal_that_was_answered_too_late_does_not_count(world: World) -> None:
    first, _ = await a_leader_and_a_standby(world)
    original = world.api.update

    async def slow(*args: Any, **kwargs: Any) -> Any:
        answer = await original(*args, **kwargs)
        first.offset += 60  # suspended between the request and its answer
        return answer

    world.api.update = slow  # type: ignore[method-assign]
    await until(lambda: first.lost is not None)
    world.api.update = original  # type: ignore[method-assign]
    with pytest.raises(NotLeading):
        await first.write("after")


@elected
async def test_a_lease_with_a_foreign_label_change_is_still_renewed(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    for value in range(20):
        lease = await world.api.get(LEASES, NS, "diloco-operator")
        lease["metadata"]["labels"] = {"touched": str(value)}
        await world.api.update(LEASES, lease)
        await asyncio.sleep(1.7)
    assert first.lost is None
    assert second.led_at is None


@elected
async def test_a_deleted_lease_is_created_again(world: World) -> None:
    first, second = await a_leader_and_a_standby(world)
    await world.api.delete(LEASES, NS, "diloco-operator")
    await until(lambda: first.lost is not None or second.led_at is not None)
    await asyncio.sleep(60)
    assert await world.holder() in ("first", "second")
    assert not (first.lost is None and second.led_at is not None)  # never two leaders


def leaders(world: World) -> list[str]:
    """Those whose fence lets writes through."""
    return [name for name, replica in world.named.items() if replica.may_write]


async def at_most_one_leads(world: World, seconds: float) -> None:
    """Look ten times a second."""
    for _ in range(int(seconds * 10)):
        assert len(leaders(world)) <= 1, leaders(world)
        await asyncio.sleep(0.1)


def of_new(world: World, name: str) -> Replica:
    return world.start(f"{NEW}-7d4b-{name}_1", lease=NEW, former=OLD)


def of_old(world: World, name: str) -> Replica:
    return world.start(f"{NEW}-5f6c-{name}_1")


@elected
async def test_an_upgrade_that_renames_the_lease_never_has_two_leaders(world: World) -> None:
    """A rolling update: new replicas are there before the old ones go, one by one; each old one that goes is followed by an old one."""
    first, second = of_old(world, "a"), of_old(world, "b")
    await until(lambda: bool(leaders(world)))
    new = [of_new(world, "c"), of_new(world, "d")]
    await at_most_one_leads(world, 60)
    for old in (first, second) if first.may_write else (second, first):
        assert not any(each.may_write for each in new)
        await old.stop()
        await old.elector.release()
        await at_most_one_leads(world, 4)
    await at_most_one_leads(world, 60)
    assert [each.may_write for each in new].count(True) == 1


@elected
async def test_a_new_replica_waits_for_the_lease_of_an_old_one_that_was_killed(world: World) -> None:
    old = of_old(world, "a")
    await until(lambda: old.led_at is not None)
    new = of_new(world, "b")
    await asyncio.sleep(10)
    await old.stop()
    killed = now()
    await until(lambda: new.led_at is not None)
    assert new.led_at is not None
    # An old standby would have it 15 s after it saw the last renewal.
    assert 15 < new.led_at - killed < 15 + 2 * 2 + 2 * 2.2 + 0.1


@elected
async def test_a_new_replica_leads_at_once_where_no_former_lease_is_and_soon_beside_another_release(world: World) -> None:
    fresh = of_new(world, "a")
    await until(lambda: fresh.led_at is not None)
    assert now() < 1
    await fresh.stop()
    await fresh.elector.release()
    other = world.start("diloco-operator-5f6c-x_1")
    await until(lambda: other.led_at is not None)
    beside, begun = of_new(world, "b"), now()
    await until(lambda: beside.led_at is not None)
    assert now() - begun < 2 * 2.2 + 0.1  # it sees the other release renew once
    await asyncio.sleep(60)
    assert (other.lost, beside.lost) == (None, None)


@elected
async def test_a_replica_that_returns_to_the_old_version_ends_the_new_ones_lead(world: World) -> None:
    new = of_new(world, "a")
    await until(lambda: new.led_at is not None)
    of_old(world, "b")
    await until(lambda: new.lost is not None)
    assert f"{NEW}-5f6c-b_1 holds the lease default/diloco-operator of an earlier version" in str(new.lost)
    with pytest.raises(NotLeading):
        await new.write("late")


@elected
async def test_running_writes_may_last_as_long_as_the_lease_is_renewed(world: World) -> None:
    first, _ = await a_leader_and_a_standby(world)

    async def slow() -> None:
        async with first.fence.write():
            await asyncio.sleep(25)  # more than one renew deadline

    await slow()


@elected
async def test_expired_writes_do_not_disturb_the_end_of_the_lease(world: World) -> None:
    fence = Fence(now)
    fence.open_until(5)

    async def write() -> None:
        async with fence.write():
            await asyncio.sleep(60)

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    writes = [asyncio.create_task(write()) for _ in range(3)]
    asyncio.get_running_loop().call_at(5 + 1e-10, fence.shut)  # in the same turn of the loop as the time-outs, after them
    ends = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(end) for end in ends] == [NotLeading] * 3
    assert now() == pytest.approx(5)
    assert problems == []


@elected
async def test_a_time_out_within_a_write_is_not_taken_for_the_leases(world: World) -> None:
    first, _ = await a_leader_and_a_standby(world)
    with pytest.raises(TimeoutError):
        async with first.fence.write():
            raise TimeoutError
