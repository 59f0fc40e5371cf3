"""What an operator left in the cluster, taken over by the next one: nothing restarts, until the user changes something."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import Obj, with_field
from builders.left_objects import NAMESPACE, make, restore, states
from builders.operator_run import an_operator, running
from builders.virtual_time import run_virtual
from diloco_local.memory import MemoryApi
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api import names
from diloco_operator.reconcile import OperatorConfig

MIXED = {"v5p-0": "Training", "v5p-1": "Training", "h100-0": "Training", "h100-1": "BackingOff", "cpu-0": "Training", "cpu-1": "Failed"}


class Watched:
    """The API server. Notes what the operator writes besides Events, as `verb kind[/subresource] name`."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._api, name)
        if name not in ("create", "update", "patch", "delete"):
            return attribute

        async def noted(resource: Any, *args: Any, **options: Any) -> Any:
            if resource != names.EVENTS:
                what = args[0]["metadata"]["name"] if name in ("create", "update") else args[1]
                sub = f"/{options['subresource']}" if options.get("subresource") else ""
                self.writes.append(f"{name} {resource.kind}{sub} {what}")
            return await attribute(resource, *args, **options)

        return noted


class TakenOver:
    """A cluster in which one operator has just followed another."""

    def __init__(self, api: MemoryApi, client: Watched, cluster: FakeCluster) -> None:
        self.api = api
        self.client = client
        self.cluster = cluster

    async def objects(self) -> dict[str, tuple[str, bool, Obj]]:
        """`kind name` -> (uid, whether its deletion was asked for, spec and data) of all objects of the jobs."""
        found = {}
        for resource in (names.PODS, names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.VOLUME_CLAIMS):
            for obj in (await self.api.list(resource, NAMESPACE)).items:
                meta = obj["metadata"]
                content = {field: obj.get(field) for field in ("spec", "data")}
                found[f"{resource.kind} {meta['name']}"] = (meta["uid"], "deletionTimestamp" in meta, content)
        return found

    async def job(self, name: str) -> Obj:
        return await self.api.get(names.DILOCO_JOBS, NAMESPACE, name)

    async def change(self, job: str, path: str, value: object) -> None:
        """The user edits one field of a job."""
        old = await self.job(job)
        spec = with_field(old, path, value)["spec"]
        await self.api.patch(names.DILOCO_JOBS, NAMESPACE, job, {"spec": spec}, field_manager="user")

    async def until(self, what: str, condition: Callable[[], Awaitable[object]]) -> None:
        for _ in range(4000):
            if await condition():
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"it never came to: {what}")


left = functools.cache(make)
"""Made once for all tests of a process."""


def take_over(scenario: Callable[[TakenOver], Awaitable[None]], state: Obj | None = None, **options: Any) -> None:
    """Play `scenario` on what an operator left, or on `state`, with the next one at work; `options` go to it."""
    state = state or left()

    def wall_clock() -> float:
        return float(state["takenAt"]) + asyncio.get_running_loop().time()

    async def run() -> None:
        api = await restore(state, wall_clock)
        watched: Any = Watched(api)
        async with (
            FakeCluster(api, wall_clock) as cluster,
            running(an_operator(watched, FakeTelemetry(cluster), now=wall_clock, **options)),
        ):
            await scenario(TakenOver(api, watched, cluster))

    run_virtual(run())


@pytest.mark.slow
def test_a_takeover_restarts_and_rewrites_nothing() -> None:
    async def scenario(world: TakenOver) -> None:
        before = await world.objects()
        units = {name: (await world.job(name))["status"].get("units") for name in ("mixed", "own-syncer", "paused", "done")}
        assert len(before) > 30
        await asyncio.sleep(300)  # h100-1 backs off for longer
        assert await world.objects() == before
        assert {name: (await world.job(name))["status"].get("units") for name in units} == units
        assert [write for write in world.client.writes if not write.startswith("update DiLoCoJob/status ")] == []

    take_over(scenario)


async def runs_on(world: TakenOver) -> None:
    """Nothing of what there is changes for five minutes; h100-1 backs off for longer."""
    before = await world.objects()
    await asyncio.sleep(300)
    assert await world.objects() == before
    assert [write for write in world.client.writes if not write.startswith("update DiLoCoJob/status ")] == []


@pytest.mark.slow
def test_an_operator_with_other_settings_restarts_nothing() -> None:
    config = OperatorConfig(
        syncer_image="diloco-syncer:next",
        syncer_command=("syncer",),
        syncer_cpu="1",
        syncer_memory="2Gi",
        learner_grace=31,
        syncer_grace=61,
    )
    take_over(runs_on, config=config)


@pytest.fixture
def larger_hosts() -> Iterator[None]:
    """A catalogue in which hosts with 16 H100 exist: a pool that does not say how many it wants of each now means 16."""
    left()  # with the catalogue as it is; the value is kept for all tests of this process
    row = CATALOGUE["nvidia-h100-80gb"]
    before = row.host_sizes
    object.__setattr__(row, "host_sizes", (*before, 16))
    yield
    object.__setattr__(row, "host_sizes", before)


@pytest.mark.slow
@pytest.mark.usefixtures("larger_hosts")
def test_an_operator_with_another_catalogue_restarts_nothing() -> None:
    take_over(runs_on)


def without_field(field: str) -> Obj:
    """What an operator would have left if spec.training had not had `field` yet."""
    state = copy.deepcopy(left())
    for obj in state["objects"]:
        if obj["kind"] == "DiLoCoJob":
            del obj["spec"]["training"][field]
        elif obj["kind"] == "ConfigMap" and "job.json" in obj["data"]:
            file = json.loads(obj["data"]["job.json"])
            del file["training"][field]
            obj["data"] = {"job.json": json.dumps(file, separators=(",", ":"))}
    return state


@pytest.mark.slow
def test_an_operator_that_knows_a_new_field_restarts_nothing() -> None:
    state = without_field("compression")  # own-syncer sets it; its default stands in mixed
    keep = [obj for obj in state["objects"] if not in_job(obj, "own-syncer")]
    take_over(runs_on, {**state, "objects": keep})


def in_job(obj: Obj, job: str) -> bool:
    meta = obj["metadata"]
    return bool((obj["kind"] == "DiLoCoJob" and meta["name"] == job) or meta.get("labels", {}).get(names.LABEL_JOB) == job)


@pytest.mark.slow
def test_what_was_under_way_goes_on_after_a_takeover() -> None:
    async def scenario(world: TakenOver) -> None:
        before = await world.objects()
        await world.change("paused", "spec.suspend", False)

        async def resumed() -> bool:
            return await states(world.api, "paused") == {"cpu-0": "Training"}

        async def backed_off() -> bool:
            return await states(world.api, "mixed") == MIXED | {"h100-1": "Training"}

        await world.until("the suspended job trains", resumed)
        await world.until("the unit that backed off trains", backed_off)
        after = await world.objects()
        gone = {name for name in before if name not in after}
        assert gone <= {"Pod mixed-h100-1-a1-0", "Pod mixed-h100-1-a1-1"}
        assert all(after[name] == before[name] for name in before if name.startswith("Pod ") and name not in gone)

    take_over(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "unit"),
    [
        ("spec.pools[0].template.spec.containers[0].image", "registry.example/train:2", "v5p-0"),
        ("spec.pools[1].acceleratorsPerHost", 4, "h100-0"),
        ("spec.pools[1].processesPerHost", 8, "h100-0"),
        ("spec.pools[2].template.metadata", {"labels": {"team": "b"}}, "cpu-0"),
    ],
)
def test_a_change_of_the_template_replaces_units_that_were_taken_over(path: str, value: object, unit: str) -> None:
    async def scenario(world: TakenOver) -> None:
        syncer = (await world.objects())["Pod mixed-syncer"]
        await world.change("mixed", path, value)

        async def replaced() -> bool:
            status = (await world.job("mixed"))["status"]
            [found] = [each for each in status["units"] if each["name"] == unit]
            return (found["state"], found["attempt"], found["restarts"]) == ("Training", 2, 0)

        await world.until(f"{unit} trains from the new template", replaced)
        assert (await world.objects())["Pod mixed-syncer"] == syncer
        pool = unit.rpartition("-")[0]
        attempts = {each["name"]: each["attempt"] for each in (await world.job("mixed"))["status"]["units"]}
        others = {name: attempt for name, attempt in attempts.items() if not name.startswith(f"{pool}-")}
        # of the units that did not change, only the one that backs off may have begun a new attempt
        assert all(attempt == 1 or name == "h100-1" or name == "cpu-1" for name, attempt in others.items())

    take_over(scenario)


def test_the_same_template_in_another_order_keeps_units_that_were_taken_over() -> None:
    async def scenario(world: TakenOver) -> None:
        before = (await world.objects())["Pod own-syncer-v6e-0-a1-0"]
        old = (await world.job("own-syncer"))["spec"]["pools"][0]["template"]["spec"]["containers"][0]
        turned = dict(reversed(list(old.items())))  # another order of the same fields is the same template
        await world.change("own-syncer", "spec.pools[0].template.spec.containers[0]", turned)
        await asyncio.sleep(120)
        assert (await world.objects())["Pod own-syncer-v6e-0-a1-0"] == before

    take_over(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "path", "value"),
    [
        ("mixed", "spec.training.steps", 4800),
        ("own-syncer", "spec.syncer.template.spec.containers[0].resources.requests.cpu", 4),
    ],
)
def test_a_change_of_what_the_syncer_reads_replaces_a_syncer_that_was_taken_over(job: str, path: str, value: object) -> None:
    async def scenario(world: TakenOver) -> None:
        name = f"Pod {job}-syncer"
        before = await world.objects()
        await world.change(job, path, value)

        async def replaced() -> bool:
            found = (await world.objects()).get(name)
            return found is not None and found[0] != before[name][0] and not found[1]

        await world.until("another syncer", replaced)
        learners = {pod: held for pod, held in before.items() if pod.startswith("Pod ") and pod != name}
        after = await world.objects()
        assert all(after[pod] == held for pod, held in learners.items())

    take_over(scenario)
