"""The life of a job as its user reads it: the states one after the other, and the Events as a story."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders import cluster_scenes
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import Obj, tpu_pool, with_field
from builders.operators_api import OperatorsApi
from diloco.contract import Exit
from diloco_operator.api import names

JOB = (NS, "lm")
POOL = tpu_pool("v6e", "tpu-v6e", "2x2", max=2)
REFUSED = with_field(POOL, "template.spec.containers[0].env", [{"name": "DILOCO_UNIT", "value": "mine"}])
"""The pool with a variable that only the operator may set."""


class Told(OperatorsApi):
    """Notes each state that the operator writes, with its reason, and each Event."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster.api)
        self.states: list[tuple[str, str]] = []
        self.story: list[tuple[str, str, str]] = []

    async def update(self, resource: Any, body: Any, **options: Any) -> Obj:
        done: Obj = await self._api.update(resource, body, **options)
        if resource == names.DILOCO_JOBS and options.get("subresource") == "status":
            said = (body["status"]["state"], body["status"]["reason"])
            if not self.states or self.states[-1] != said:
                self.states.append(said)
        return done

    async def create(self, resource: Any, obj: Obj, **options: Any) -> Obj:
        if resource == names.EVENTS:
            self.story.append((obj["type"], obj["reason"], obj["message"]))
        return await super().create(resource, obj, **options)

    def warnings(self) -> list[tuple[str, str, str]]:
        return [event for event in self.story if event[0] != "Normal"]


async def is_in(cluster: FakeCluster, state: str, reason: str = "") -> Obj:
    """Wait for the state, and for the reason unless it is ""."""

    def there(status: Obj) -> bool:
        return status.get("state") == state and reason in ("", status["reason"])

    return await cluster.when("lm", there, what=f"{state} {reason}")


async def condition(cluster: FakeCluster, kind: str) -> tuple[str, str]:
    """Status and reason."""
    found = next(each for each in (await cluster.status())["conditions"] if each["type"] == kind)
    return found["status"], found["reason"]


type Life = Callable[[FakeCluster, Told], Coroutine[Any, Any, None]]


def lives(slices: int = 2, *, begun: bool = True) -> Callable[[Life], Callable[[], None]]:
    """Play a life on virtual time, on a cluster that begins with so many slices. `begun`: the job trains."""

    def of(life: Life) -> Callable[[], None]:
        async def play(cluster: FakeCluster) -> None:
            cluster.client = told = Told(cluster)
            async with cluster.operating():
                if begun:
                    await cluster.apply("lm", POOL, min=2)
                    await is_in(cluster, "Training")
                await life(cluster, told)
                await asyncio.sleep(1)  # the last Events are written

        def run() -> None:
            cluster_scenes.play(play, slices=[f"np-{index}" for index in range(slices)])

        run.__name__, run.__doc__ = life.__name__, life.__doc__
        return run

    return of


@pytest.mark.slow
@lives()
async def test_healthy_life_is_told_without_a_warning(cluster: FakeCluster, told: Told) -> None:
    await asyncio.sleep(60)
    await cluster.complete(JOB)
    await is_in(cluster, "Complete", "StepsReached")
    await asyncio.sleep(60)
    states = [state for state, _ in itertools.groupby(told.states, key=lambda noted: noted[0])]
    assert states == ["Starting", "Training", "Complete"]  # and never back
    assert told.warnings() == []
    end = told.story[-1]
    assert told.story[:-1] == [
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
    assert await condition(cluster, "Training") == ("False", "JobComplete")
    assert await condition(cluster, "Degraded") == ("False", "JobComplete")


@pytest.mark.slow
@lives(slices=0, begun=False)
async def test_job_without_hardware_is_queued_says_so_once_and_alarms_nobody(cluster: FakeCluster, told: Told) -> None:
    await cluster.apply("lm", POOL, min=2)
    await is_in(cluster, "Queued", "WaitingForHardware")
    await asyncio.sleep(120)
    assert (await cluster.status())["state"] == "Queued"
    assert await condition(cluster, "Training") == ("False", "WaitingForHardware")
    assert await condition(cluster, "Degraded") == ("Unknown", "Queued")  # nothing contributes yet
    said = {reason: message for kind, reason, message in told.story if kind == "Normal"}
    assert (len(told.story), set(said)) == (2, {"InsufficientCapacity", "PoolChanged"})
    assert said["InsufficientCapacity"].startswith("Placed=False: 0 of 2 units have hardware, learners.min is 2; pool v6e")
    await cluster.add_slices("np-0", "np-1")
    await is_in(cluster, "Training")
    assert next(state for state, _ in told.states if state != "Queued") == "Starting"
    assert told.warnings() == []


@pytest.mark.slow
@lives()
async def test_job_that_lost_all_its_hardware_is_degraded_and_not_queued(cluster: FakeCluster, told: Told) -> None:
    for node in cluster.nodes_of("lm"):
        await cluster.lose_node(node)
    await is_in(cluster, "Degraded", "LearnersUnplaced")
    assert await condition(cluster, "Training") == ("False", "WaitingForHardware")
    await asyncio.sleep(300)
    assert "Queued" not in [state for state, _ in told.states]


@pytest.mark.slow
@lives()
async def test_suspended_and_resumed_job_says_so_and_starts_again(cluster: FakeCluster, told: Told) -> None:
    before = len(told.story)
    told.states.clear()
    await cluster.edit(suspend=True)
    await is_in(cluster, "Suspended", "Suspended")
    assert await condition(cluster, "Training") == ("False", "Suspended")
    await cluster.edit(suspend=False)
    await is_in(cluster, "Training")
    await asyncio.sleep(120)  # a repetition is counted later
    states = [state for state, _ in told.states]
    assert list(dict.fromkeys(states)) == ["Suspended", "Starting", "Training"]
    assert told.states[0] == ("Suspended", "Suspending")
    assert told.warnings() == []
    of_the_job = [message for _, _, message in told.story[before:] if "=" in message]
    assert of_the_job == [
        "Training=False: the job is suspended; set spec.suspend to false to resume where it stopped",
        "Suspended=True: nothing runs, the state is kept",
        "Suspended=False",
    ]
    again = {event["reason"]: event["count"] for event in (await cluster.api.list(names.EVENTS)).items if event["count"] > 1}
    assert again == {"AllPlaced": 2, "QuorumContributing": 2, "EnoughLearners": 2}


@pytest.mark.slow
@lives()
async def test_crashed_learner_degrades_the_job_and_its_events_tell_each_thing_once(cluster: FakeCluster, told: Told) -> None:
    before = len(told.story)
    await cluster.crash("lm-v6e-1-a1-0")
    await is_in(cluster, "Degraded")
    assert (await condition(cluster, "Training"))[0] == "True"  # the quorum goes on
    await is_in(cluster, "Training")
    await asyncio.sleep(1)
    story = told.story[before:]
    assert ("Normal", "UnitStarted", "v6e-1: attempt 2 starts on np-1-0") in story  # without what the pause said
    [back] = [message for _, reason, message in story if reason == "UnitContributes"]
    assert back.startswith("v6e-1: attempt 2 contributes, ")
    assert back.endswith(" s after it was lost")
    assert [event[1] for event in story if event[0] == "Warning"] == ["UnitCrashed", "LearnersMissing"]
    await cluster.crash("lm-syncer")  # the unit connects again, but it was not lost
    await is_in(cluster, "Degraded")
    await is_in(cluster, "Training")
    await asyncio.sleep(1)
    assert [message for _, reason, message in told.story if "after it was lost" in message] == [back]
    assert [message for _, _, message in told.story if message.rstrip().endswith(":")] == []


@pytest.mark.slow
@lives()
async def test_job_that_cannot_go_on_is_failed_and_its_end_is_told_once(cluster: FakeCluster, told: Told) -> None:
    for index in range(2):
        await cluster.crash(f"lm-v6e-{index}-a1-0", exit_code=Exit.REFUSED_LAYOUT)
    status = await is_in(cluster, "Failed", "LayoutRefused")
    await asyncio.sleep(60)
    reasons = {each["type"]: each["reason"] for each in status["conditions"]}
    assert [reasons[kind] for kind in ("Placed", "Training", "Degraded")] == ["JobFailed"] * 3
    assert [event[:2] for event in told.story if "Failed=True" in event[2] or "JobFailed" in event[1]] == [("Warning", "LayoutRefused")]


@pytest.mark.slow
@lives()
async def test_spec_that_the_operator_refuses_degrades_a_job_that_trains(cluster: FakeCluster, told: Told) -> None:
    await cluster.edit(pools=[REFUSED])
    await is_in(cluster, "Degraded", "SpecInvalid")
    assert (await condition(cluster, "Training"))[0] == "True"
    await cluster.edit(pools=[POOL])
    await is_in(cluster, "Training", "QuorumContributing")


@lives(begun=False)
async def test_job_whose_spec_is_refused_from_the_beginning_is_not_accepted_until_it_is_mended(cluster: FakeCluster, told: Told) -> None:
    await cluster.apply("lm", REFUSED, min=2)
    await is_in(cluster, "NotAccepted", "SpecInvalid")
    await cluster.edit(pools=[POOL])
    await is_in(cluster, "Training", "QuorumContributing")
    assert "Degraded" not in [state for state, _ in told.states]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["Queued", "Failed"])
def test_state_that_a_stranger_wrote_decides_nothing(state: str) -> None:
    @lives()
    async def test(cluster: FakeCluster, told: Told) -> None:
        await cluster.write_status(names.DILOCO_JOBS, "lm", {"state": state, "reason": "ByHand"})
        await is_in(cluster, "Training", "QuorumContributing")

    test()
