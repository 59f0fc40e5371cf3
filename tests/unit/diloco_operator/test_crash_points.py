"""The operator dies after each single write of a job's whole life, and the end is the same.

The scenario: a job is applied; its units start; one crashes; one loses its node; the job is scaled up, which a quota forbids for a while;
it is suspended, resumed, and completes. An operator that dies at write n is replaced at once by one that knows nothing. Crashes between two
writes need no test of their own, since an operator keeps no state outside the API server.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from builders.exploration import ALL
from builders.fake_cluster import FakeCluster, FakeTelemetry, wall_clock
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_operator
from builders.virtual_time import run_virtual
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Forbidden, Obj
from diloco_operator.operator import Operator

KEY = ("default", "lm")
CRD = build_crd()
WRITES = ("create", "update", "patch", "delete", "bind")
PARTS = 12
"""In which the writes are tried. With four, one took longer than a test may on a machine with ten times the work that it has cores for."""


class MortalClient:
    """An operator's connection. After `lives` writes the operator is dead: its requests are no longer sent."""

    def __init__(self, api: MemoryApi, lives: int | None, on_death: Callable[[], None], rejects: Callable[[Obj], bool]) -> None:
        self._api = api
        self._rejects = rejects
        self._lives = lives
        self._on_death = on_death
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._api, name)
        if name == "watch":
            return attribute  # an iterator instead of a request; it ends with its task
        if name not in WRITES:
            return self._guarded(attribute)
        return self._counted(name, attribute)

    def _guarded(self, request: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._alive()
            return await request(*args, **kwargs)

        return call

    def _counted(self, verb: str, request: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._alive()
            if verb == "create" and self._rejects(args[1]):
                raise Forbidden(403, "Forbidden", "exceeded quota: pods")
            if self._lives is not None:
                self._lives -= 1  # counted before the request, so that not more than these take effect
            answer = await request(*args, **kwargs)
            name = args[1]["metadata"]["name"] if verb in ("create", "update") else args[2]
            self.writes.append(f"{verb} {args[0].kind} {name}")
            if self._lives == 0:
                self._on_death()
                await self._alive()
            return answer

        return call

    async def _alive(self) -> None:
        if self._lives is not None and self._lives <= 0:
            await asyncio.Event().wait()


class Scene:
    """The API server, the cluster, and an operator that may die once."""

    def __init__(self, api: MemoryApi, cluster: FakeCluster, lives: int | None) -> None:
        self.api = api
        self.cluster = cluster
        self.deaths = 0
        self.rejected: tuple[str, ...] = ()
        """Prefixes of the names of objects that the API server rejects."""
        self._lives = lives
        self._operators: list[Operator] = []
        self.clients: list[MortalClient] = []
        self._died = asyncio.Event()

    async def keep_an_operator(self) -> None:
        """Run operators, one after the other, until cancelled."""
        lives = self._lives
        while True:
            self._died.clear()
            client: Any = MortalClient(self.api, lives, self._died.set, lambda obj: obj["metadata"]["name"].startswith(self.rejected))
            self.clients.append(client)
            operator = an_operator(client, FakeTelemetry(self.cluster), now=wall_clock)
            self._operators.append(operator)
            running = asyncio.create_task(operator.run())
            death = asyncio.create_task(self._died.wait())
            try:
                await asyncio.wait([running, death], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                running.cancel()
                death.cancel()
                await asyncio.gather(running, death, return_exceptions=True)
            self.deaths += 1
            lives = None

    @property
    def defects(self) -> int:
        return sum(operator.counters.defects for operator in self._operators)

    async def status(self) -> Obj:
        status: Obj = (await self.api.get(names.DILOCO_JOBS, *KEY)).get("status", {})
        return status

    async def patch_spec(self, **spec: Any) -> None:
        await self.api.patch(names.DILOCO_JOBS, *KEY, {"spec": spec}, field_manager="user")

    async def until(self, what: str, condition: Callable[[Obj], object]) -> None:
        """Wait until the job's status fulfils `condition`."""
        seen, status = -1, {}
        for _ in range(1000):
            if self.api.writes != seen:  # nothing changes without a write
                seen, status = self.api.writes, await self.status()
                if condition(status):
                    return
            await asyncio.sleep(0.5)
        raise AssertionError(f"the job never came to: {what}; status: {status}")


def is_true(status: Obj, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in status.get("conditions", ()))


def training(status: Obj, units: int) -> bool:
    states = [unit["state"] for unit in status.get("units", ())]
    return states.count("Training") == units and is_true(status, "Training")


async def scenario(scene: Scene) -> None:
    await scene.api.create(names.DILOCO_JOBS, the_job())
    await scene.until("three units train", lambda status: training(status, 3))

    await scene.cluster.crash("lm-v6e-0-a1-0")
    await scene.until("the crashed unit is back", lambda status: training(status, 3) and attempts(status)["v6e-0"] == 2)

    [victim] = [unit for unit in (await scene.status())["units"] if unit["name"] == "v5p-0"]
    await scene.cluster.lose_node(f"{victim['slice']}-1")
    await scene.until(
        "the unit has moved to another slice",
        lambda status: training(status, 3) and {u["name"]: u["slice"] for u in status["units"]}["v5p-0"] not in ("", victim["slice"]),
    )

    scene.rejected = ("lm-v6e-2-",)
    await scene.patch_spec(learners={"max": 4})
    await scene.until(
        "the fourth unit is refused", lambda status: {u["name"]: u["reason"] for u in status["units"]}.get("v6e-2") == "PodsRefused"
    )
    scene.rejected = ()
    await scene.until("a fourth unit trains", lambda status: training(status, 4))

    await scene.patch_spec(suspend=True)
    await scene.until("nothing runs", lambda status: is_true(status, "Suspended"))
    await scene.patch_spec(suspend=False)
    await scene.until("four units train again", lambda status: training(status, 4))

    await scene.cluster.complete(KEY)
    await scene.until("the job is complete", lambda status: is_true(status, "Complete"))
    await asyncio.sleep(120)  # cleanup that is still due


def the_job() -> Obj:
    manifest = a_manifest(
        "lm",
        min=2,
        max=3,
        pools=[tpu_pool("v5p", min=1, max=1), tpu_pool("v6e", "tpu-v6e", "2x2", max=3)],
        spec={"syncer": {}},
    )
    manifest["metadata"]["namespace"] = "default"
    return manifest


def attempts(status: Obj) -> dict[str, int]:
    return {unit["name"]: unit["attempt"] for unit in status["units"]}


def what_counts(status: Obj, pods: list[Obj], config_maps: list[Obj]) -> dict[str, Any]:
    """The end as a user sees it: without times."""
    return {
        "configMaps": sorted(each["metadata"]["name"] for each in config_maps),
        "units": {u["name"]: (u["state"], u["attempt"], u.get("restarts", 0), len(u.get("failures", ()))) for u in status["units"]},
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
        "pods": sorted((pod["metadata"]["name"], pod["status"]["phase"]) for pod in pods),
        "learners": status["learners"],
    }


def live(lives: int | None) -> tuple[dict[str, Any], Scene]:
    """The whole scenario with an operator that dies after `lives` writes."""

    async def run() -> tuple[dict[str, Any], Scene]:
        api = MemoryApi(clock=lambda: datetime.fromtimestamp(wall_clock(), tz=UTC), random=random.Random(3))
        await api.create(names.CUSTOM_RESOURCES, CRD)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0")])
            for slice_ in ("np-v5p-a", "np-v5p-b"):
                await cluster.add(a_tpu_slice(slice_, 2, topology="2x2x2"))
            for slice_ in ("np-v6e-a", "np-v6e-b", "np-v6e-c"):
                await cluster.add(a_tpu_slice(slice_, kind="tpu-v6e-slice", topology="2x2"))
            scene = Scene(api, cluster, lives)
            operating = asyncio.create_task(scene.keep_an_operator())
            try:
                playing = asyncio.create_task(scenario(scene))
                await asyncio.wait([operating, playing], return_when=asyncio.FIRST_COMPLETED)
                if operating.done():
                    operating.result()
                await playing
                return what_counts(await scene.status(), cluster.pods(KEY), (await api.list(names.CONFIG_MAPS, KEY[0])).items), scene
            finally:
                operating.cancel()
                await asyncio.gather(operating, return_exceptions=True)

    return run_virtual(run())


@pytest.fixture(scope="module")
def undisturbed() -> tuple[dict[str, Any], list[str]]:
    end, scene = live(None)
    assert scene.defects == 0
    return end, scene.clients[0].writes


@pytest.mark.slow
def test_the_scenario_ends_as_intended(undisturbed: tuple[dict[str, Any], list[str]]) -> None:
    end, _ = undisturbed
    assert end["conditions"]["Complete"] == ("True", "StepsReached")
    assert end["conditions"]["Failed"][0] == "False"
    states = {name: state for name, (state, *_) in end["units"].items()}
    assert set(states.values()) == {"Completed"}
    assert len(states) == 4
    # one crash and one lost node, each of one unit; a suspension is neither
    assert {name: restarts for name, (_, _, restarts, _) in end["units"].items()} == {"v5p-0": 1, "v6e-0": 1, "v6e-1": 0, "v6e-2": 0}
    # What ended by itself stays for its log: the crash, and all that completed. What was lost, suspended or refused is gone.
    completed = ["syncer", *(f"v5p-0-a{end['units']['v5p-0'][1]}-{host}" for host in (0, 1))]
    completed += [f"{unit}-a{end['units'][unit][1]}-0" for unit in ("v6e-0", "v6e-1", "v6e-2")]
    assert end["pods"] == sorted([*((f"lm-{pod}", "Succeeded") for pod in completed), ("lm-v6e-0-a1-0", "Failed")])
    assert end["configMaps"] == ["lm-job"]  # no list of hosts is left


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_operator_that_dies_after_any_write_is_taken_over_without_a_trace(
    undisturbed: tuple[dict[str, Any], list[str]], part: int
) -> None:
    """At every eleventh write; in `make ci-full` at each."""
    expected, writes = undisturbed
    differing = {}
    for lives in itertools.islice(range(1, len(writes) + 1, 1 if ALL else 11), part, None, PARTS):
        end, scene = live(lives)
        assert scene.deaths == 1, f"the operator did not die at write {lives}"
        assert scene.defects == 0
        if end != expected:
            differing[f"{lives}: {writes[lives - 1]}"] = {k: (end[k], expected[k]) for k in end if end[k] != expected[k]}
    assert not differing
