"""The life of a job as its user reads it: the states one after the other, and the Events as a story."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry, wall_clock
from builders.jobs import Obj, a_manifest, tpu_pool, with_field
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco.contract import Exit
from diloco_local.memory import MemoryApi
from diloco_operator.api import names

JOB = ("default", "lm")
POOL = tpu_pool("v6e", "tpu-v6e", "2x2", max=2)
REFUSED = with_field(POOL, "template.spec.containers[0].env", [{"name": "DILOCO_UNIT", "value": "mine"}])
"""The pool with a variable that only the operator may set."""


class Noted:
    """The API server; notes each state that the operator writes, with its reason, and each Event."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.states: list[tuple[str, str]] = []
        self.events: list[tuple[str, str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def update(self, resource: Any, body: Any, **options: Any) -> Obj:
        done = await self._api.update(resource, body, **options)
        if resource == names.DILOCO_JOBS and options.get("subresource") == "status":
            said = (body["status"]["state"], body["status"]["reason"])
            if not self.states or self.states[-1] != said:
                self.states.append(said)
        return done

    async def create(self, resource: Any, obj: Obj, **options: Any) -> Obj:
        if resource == names.EVENTS:
            self.events.append((obj["type"], obj["reason"], obj["message"]))
        return await self._api.create(resource, obj, **options)


class World:
    """One job, two slices unless the test takes them away, and an operator."""

    def __init__(self, api: MemoryApi, cluster: FakeCluster, noted: Noted) -> None:
        self.api, self.cluster, self.noted = api, cluster, noted

    async def submit(self, pool: Obj = POOL) -> None:
        await self.api.create(names.DILOCO_JOBS, a_manifest("lm", namespace="default", min=2, max=2, pools=[pool]))

    async def add_slice(self, name: str) -> None:
        await self.cluster.add(a_tpu_slice(name, kind="tpu-v6e-slice", topology="2x2"))

    async def status(self) -> Obj:
        found: Obj = (await self.api.get(names.DILOCO_JOBS, *JOB)).get("status", {})
        return found

    async def is_in(self, state: str, reason: str = "") -> Obj:
        """Wait for the state, and for the reason unless it is ""."""

        async def there() -> bool:
            status = await self.status()
            return status.get("state") == state and reason in ("", status["reason"])

        await self._until(f"{state} {reason}", there)
        return await self.status()

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(4000):
            if await condition():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"it never came to {what}: {await self.status()}")

    async def edit(self, **spec: Any) -> None:
        await self.api.patch(names.DILOCO_JOBS, *JOB, {"spec": spec}, field_manager="user")

    async def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = next(each for each in (await self.status())["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def story(self) -> list[tuple[str, str, str]]:
        """The Events so far."""
        return self.noted.events

    def warnings(self) -> list[tuple[str, str, str]]:
        return [event for event in self.noted.events if event[0] != "Normal"]


def lives(slices: int = 2, *, begun: bool = True) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Play a life on virtual time, on a cluster that begins with so many slices. `begun`: the job trains."""

    def of(life: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def play() -> None:
            api = await an_api(wall_clock)
            noted = Noted(api)
            async with FakeCluster(api, wall_clock) as cluster:
                await cluster.add([a_node("cpu-0")])
                world = World(api, cluster, noted)
                for index in range(slices):
                    await world.add_slice(f"np-{index}")
                async with running(an_operator(noted, FakeTelemetry(cluster), now=wall_clock)):
                    if begun:
                        await world.submit()
                        await world.is_in("Training")
                    await life(world)
                    await asyncio.sleep(1)  # the last Events are written

        def run() -> None:
            run_virtual(play())

        run.__name__, run.__doc__ = life.__name__, life.__doc__
        return run

    return of


@pytest.mark.slow
@lives()
async def test_healthy_life_is_told_without_a_warning(world: World) -> None:
    await asyncio.sleep(60)
    await world.cluster.complete(JOB)
    await world.is_in("Complete", "StepsReached")
    await asyncio.sleep(60)
    states = [state for state, _ in itertools.groupby(world.noted.states, key=lambda noted: noted[0])]
    assert states == ["Starting", "Training", "Complete"]  # and never back
    assert world.warnings() == []
    end = world.story()[-1]
    assert world.story()[:-1] == [
        ("Normal", "AllPlaced", "Placed=True: 2 of 2 units have hardware"),
        ("Normal", "UnitStarted", "v6e-0: attempt 1 starts on np-0-0"),
        ("Normal", "UnitStarted", "v6e-1: attempt 1 starts on np-1-0"),
        ("Normal", "UnitContributes", "v6e-0: attempt 1 contributes"),
        ("Normal", "UnitContributes", "v6e-1: attempt 1 contributes"),
        ("Normal", "QuorumContributing", "Training=True: 2 of 2 learners contribute"),
        ("Normal", "EnoughLearners", "Degraded=False: 2 contribute, learners.min is 2"),
    ]
    assert end[:2] == ("Normal", "StepsReached")
    assert end[2].startswith("Complete=True: 2400 of 2400 steps")
    assert await world.condition("Training") == ("False", "JobComplete")
    assert await world.condition("Degraded") == ("False", "JobComplete")


@pytest.mark.slow
@lives(slices=0, begun=False)
async def test_job_without_hardware_is_queued_says_so_once_and_alarms_nobody(world: World) -> None:
    await world.submit()
    await world.is_in("Queued", "WaitingForHardware")
    await asyncio.sleep(120)
    assert (await world.status())["state"] == "Queued"
    assert await world.condition("Training") == ("False", "WaitingForHardware")
    assert await world.condition("Degraded") == ("True", "Queued")  # nothing contributes
    told = {reason: message for kind, reason, message in world.story() if kind == "Normal"}
    assert (len(world.story()), set(told)) == (2, {"InsufficientCapacity", "PoolChanged"})
    assert told["InsufficientCapacity"].startswith("Placed=False: 0 of 2 units have hardware, learners.min is 2; pool v6e")
    await world.add_slice("np-0")
    await world.add_slice("np-1")
    await world.is_in("Training")
    assert next(state for state, _ in world.noted.states if state != "Queued") == "Starting"
    assert world.warnings() == []


@pytest.mark.slow
@lives()
async def test_job_that_lost_all_its_hardware_is_degraded_and_not_queued(world: World) -> None:
    for node in [node["metadata"]["name"] for node in (await world.api.list(names.NODES)).items]:
        if node != "cpu-0":
            await world.cluster.lose_node(node)
    await world.is_in("Degraded", "LearnersUnplaced")
    assert await world.condition("Training") == ("False", "WaitingForHardware")
    await asyncio.sleep(300)
    assert "Queued" not in [state for state, _ in world.noted.states]


@pytest.mark.slow
@lives()
async def test_suspended_and_resumed_job_says_so_and_starts_again(world: World) -> None:
    told = len(world.story())
    world.noted.states.clear()
    await world.edit(suspend=True)
    await world.is_in("Suspended", "Suspended")
    assert await world.condition("Training") == ("False", "Suspended")
    await world.edit(suspend=False)
    await world.is_in("Training")
    await asyncio.sleep(120)  # a repetition is counted later
    states = [state for state, _ in world.noted.states]
    assert list(dict.fromkeys(states)) == ["Suspended", "Starting", "Training"]
    assert world.noted.states[0] == ("Suspended", "Suspending")
    assert world.warnings() == []
    of_the_job = [message for _, _, message in world.story()[told:] if "=" in message]
    assert of_the_job == [
        "Training=False: the job is suspended; set spec.suspend to false to resume where it stopped",
        "Suspended=True: nothing runs, the state is kept",
        "Suspended=False",
    ]
    again = {event["reason"]: event["count"] for event in (await world.api.list(names.EVENTS)).items if event["count"] > 1}
    assert again == {"AllPlaced": 2, "QuorumContributing": 2, "EnoughLearners": 2}


@pytest.mark.slow
@lives()
async def test_crashed_learner_degrades_the_job_and_its_events_tell_each_thing_once(world: World) -> None:
    told = len(world.story())
    await world.cluster.crash("lm-v6e-1-a1-0")
    await world.is_in("Degraded")
    assert (await world.condition("Training"))[0] == "True"  # the quorum goes on
    await world.is_in("Training")
    await asyncio.sleep(1)
    story = world.story()[told:]
    assert ("Normal", "UnitStarted", "v6e-1: attempt 2 starts on np-1-0") in story  # without what the pause said
    [back] = [message for _, reason, message in story if reason == "UnitContributes"]
    assert back.startswith("v6e-1: attempt 2 contributes, ")
    assert back.endswith(" s after it was lost")
    assert [event[1] for event in story if event[0] == "Warning"] == ["UnitCrashed", "LearnersFailed"]
    await world.cluster.crash("lm-syncer")  # the unit connects again, but it was not lost
    await world.is_in("Degraded")
    await world.is_in("Training")
    await asyncio.sleep(1)
    assert [message for _, reason, message in world.story() if "after it was lost" in message] == [back]
    assert [message for _, _, message in world.story() if message.rstrip().endswith(":")] == []


@pytest.mark.slow
@lives()
async def test_job_that_cannot_go_on_is_failed_and_its_end_is_told_once(world: World) -> None:
    for index in range(2):
        await world.cluster.crash(f"lm-v6e-{index}-a1-0", exit_code=Exit.REFUSED_LAYOUT)
    status = await world.is_in("Failed", "LayoutRefused")
    await asyncio.sleep(60)
    reasons = {each["type"]: each["reason"] for each in status["conditions"]}
    assert [reasons[kind] for kind in ("Placed", "Training", "Degraded")] == ["JobFailed"] * 3
    assert [event[:2] for event in world.story() if "Failed=True" in event[2] or "JobFailed" in event[1]] == [("Warning", "LayoutRefused")]


@pytest.mark.slow
@lives()
async def test_spec_that_the_operator_refuses_degrades_a_job_that_trains(world: World) -> None:
    await world.edit(pools=[REFUSED])
    await world.is_in("Degraded", "SpecInvalid")
    assert (await world.condition("Training"))[0] == "True"
    await world.edit(pools=[POOL])
    await world.is_in("Training", "QuorumContributing")


@lives(begun=False)
async def test_job_whose_spec_the_operator_refuses_from_the_beginning_is_not_accepted_until_it_is_mended(world: World) -> None:
    await world.submit(REFUSED)
    await world.is_in("NotAccepted", "SpecInvalid")
    await world.edit(pools=[POOL])
    await world.is_in("Training", "QuorumContributing")
    assert "Degraded" not in [state for state, _ in world.noted.states]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["Queued", "Failed"])
def test_state_that_a_stranger_wrote_decides_nothing(state: str) -> None:
    @lives()
    async def test(world: World) -> None:
        body = {"status": {"state": state, "reason": "ByHand"}}
        await world.api.patch(names.DILOCO_JOBS, *JOB, body, subresource="status")
        await world.is_in("Training", "QuorumContributing")

    test()
