"""A job whose pools are in three clusters, applied in one of them: its operator makes the parts in the others, and ends them with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.exchange import until
from builders.load_balancer import check_tokens
from builders.local import WAIT_SECONDS
from builders.several_clusters import HOME, LINK, all_contribute, seen, several_clusters, units_of
from diloco_operator.report import Report

type Obj = dict[str, Any]

pytestmark = [pytest.mark.timeout(1500), pytest.mark.xdist_group("many-learners")]

LEARNERS = "-l=diloco.dev/component=learner"


def lacks_secret(plane: ControlPlane, name: str) -> bool:
    return f"secret/{name}" not in plane.kubectl("get", "secrets", "-o", "name").stdout.split()


def parts_train(job: Obj | None) -> bool:
    return [part.get("state") for part in (job or {}).get("status", {}).get("parts", ())] == ["Training", "Training"]


def is_suspended(job: Obj | None) -> bool:
    return bool((job or {}).get("status", {}).get("state") == "Suspended")


@pytest.mark.core
async def test_one_manifest_trains_in_three_clusters_and_goes_from_all(tmp_path: Path) -> None:
    """A unit elsewhere is drained, and the job is suspended and resumed, ends with exact tokens, and is deleted, all at home."""
    async with several_clusters(tmp_path, {HOME: 1, "tokyo": 1, "osaka": 1}) as scene:
        found = await scene.home.job("quad", parts_train)
        assert found["status"]["learners"]["placed"] == 3
        pods = [(await cluster.kubectl("get", "pods", LEARNERS, "-o", "name")).split() for cluster in scene.clusters.values()]
        units = [pod.rpartition("-a1-0")[0].rpartition("quad-")[2] for [pod] in pods]
        assert [unit.endswith(end) for unit, end in zip(units, ("v5p-0", "at-tokyo-0", "at-osaka-0"), strict=True)] == [True] * 3

        said = (await scene.diloco("drain", "quad", "at-tokyo-0")).splitlines()
        assert said[0] == f"{pods[1][0]} evicted"
        assert said[-1].startswith("unit at-tokyo-0 contributes again after ")
        [now] = (await scene.clusters["tokyo"].kubectl("get", "pods", LEARNERS, "-o", "name")).split()
        assert now != pods[1][0]
        begins = (await scene.clusters["tokyo"].kubectl("logs", now)).splitlines()[0]
        assert (await scene.diloco("logs", "quad", "at-tokyo-0")).splitlines()[0] == begins

        await scene.home.change("quad", {"suspend": True})
        for cluster in scene.clusters.values():
            await cluster.job("quad", is_suspended)
        await scene.home.change("quad", {"suspend": False})
        await scene.home.job("quad", all_contribute(3))

        ended = await scene.finish()
        check_tokens(scene.planes[HOME], ended, ["v5p-0", "at-tokyo-0", "at-osaka-0"], "finisher")
        await scene.home.kubectl("delete", "dlj", "quad", "--timeout=120s")
        for name in ("tokyo", "osaka"):
            assert scene.planes[name].kubectl("get", "dlj", "-o", "name").stdout.split() == []
            await seen(functools.partial(lacks_secret, scene.planes[name], "quad-home"), "the end of the part's Secret")


async def test_no_cut_and_no_two_cuts_at_once_stop_the_units_that_reach_the_syncer(tmp_path: Path) -> None:
    """API servers, operators and the link to the syncer, each alone and all pairs. Units train on, in the attempts in which they were: none
    starts a second time anywhere. At the end every token is of one of them."""
    async with several_clusters(tmp_path, {HOME: 1, "tokyo": 2}) as scene, scene.syncer("tokyo") as report:
        cuts = scene.cuts("tokyo")
        before = units_of(report())
        assert before == {"v5p-0": 1, "at-tokyo-0": 1, "at-tokyo-1": 1}
        for names in (*((name,) for name in cuts), *itertools.combinations(cuts, 2)):
            survivors = {"v5p-0": 1} if LINK in names else before
            for name in names:
                await asyncio.to_thread(cuts[name][0])
            await seen(trains_on(report, 20, survivors), f"20 outer steps of the units beside {' and '.join(names)}")
            for name in names:
                await asyncio.to_thread(cuts[name][1])
            await seen(trains_on(report, 1, before), f"all units after the cut of {' and '.join(names)}")
        ended = await scene.finish()
        check_tokens(scene.planes[HOME], ended, list(before), "finisher")


async def test_home_goes_on_from_a_backup_of_its_etcd_and_its_syncers_volume_while_a_part_trains(tmp_path: Path) -> None:
    """The whole cluster at home is lost, and comes back as it was before units began their second attempts. The part goes on meanwhile."""
    async with several_clusters(tmp_path, {HOME: 1, "tokyo": 1}) as scene:
        plane, nodes = scene.planes[HOME], scene.home.nodes
        before = await scene.home.job("quad", has_snapshot(0))
        [volume] = (nodes.folder / "state" / "volumes" / "default").iterdir()
        await asyncio.to_thread(back_up, plane, volume, tmp_path)
        for cluster, unit in ((scene.home, "v5p-0"), (scene.clusters["tokyo"], "at-tokyo-0")):
            await cluster.kubectl("delete", "pods", f"-l=diloco.dev/unit={unit}", "--wait=false")
            await cluster.unit("quad", unit, in_attempt(2))
        lost = await scene.home.job("quad", has_snapshot(before["status"]["model"]["step"] + 20))

        scene.kill_operator(HOME)
        nodes.lose()
        await asyncio.to_thread(restore, plane, volume, tmp_path)
        nodes.begin_again()
        scene.start_operator(HOME)

        found = await scene.home.job("quad", lambda job: all_contribute(2)(job) and has_snapshot(lost["status"]["model"]["step"])(job))
        assert found["metadata"]["uid"] == before["metadata"]["uid"]
        async with scene.syncer("tokyo") as report:
            attempts = units_of(report())
            assert attempts == {"v5p-0": 2, "at-tokyo-0": 2}, "home named its attempt again, and tokyo's learner went on"
        ended = await scene.finish()
        check_tokens(plane, ended, ["v5p-0", "at-tokyo-0"], "finisher")


def back_up(plane: ControlPlane, volume: Path, folder: Path) -> None:
    plane.back_up_etcd(folder / "etcd")
    copy_volume(volume, folder / "volume")


def restore(plane: ControlPlane, volume: Path, folder: Path) -> None:
    shutil.rmtree(volume)
    shutil.copytree(folder / "volume", volume)
    plane.restore_etcd(folder / "etcd")


def copy_volume(volume: Path, to: Path) -> None:
    """Copy it between two of the syncer's writes, as a snapshot of the volume does."""

    def copied() -> bool:
        shutil.rmtree(to, ignore_errors=True)
        files = stamps(volume)
        with contextlib.suppress(shutil.Error):  # a file went meanwhile
            shutil.copytree(volume, to)
        return stamps(volume) == files

    until(copied, "a copy of the volume", WAIT_SECONDS)


def stamps(volume: Path) -> dict[Path, int]:
    """Each file, and when it was written last."""
    files = {}
    for path in volume.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            files[path] = path.stat().st_mtime_ns
    return files


def has_snapshot(after: int) -> Callable[[Obj | None], bool]:
    """Whether the newest durable snapshot is of a later outer step than `after`."""
    return lambda job: ((job or {}).get("status", {}).get("model") or {}).get("step", 0) > after


def in_attempt(attempt: int) -> Callable[[Obj], bool]:
    return lambda unit: (unit["attempt"], unit["state"]) == (attempt, "Training")


def trains_on(report: Callable[[], Report], steps: int, units: Mapping[str, int]) -> Callable[[], bool]:
    """Whether so many outer steps are done since this call, and these units contribute in these attempts."""
    goal = report().t + steps
    return lambda: report().t >= goal and units_of(report()).items() >= units.items()
