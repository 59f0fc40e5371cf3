"""`kubectl diloco top`: what it shows of jobs, and of the units of one."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from builders.cluster_scenes import NOW, begin, on_a_cluster, unit
from builders.dashboards import a_view
from builders.fake_cluster import FakeCluster
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.top import screen, show
from diloco_cli.view_model import JobView
from rich.console import Console, RenderableType


def lines(rendered: RenderableType) -> list[str]:
    console = Console(width=140, file=io.StringIO(), highlight=False)
    console.print(rendered)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def at(speed: float, name: str, **status: object) -> JobView:
    learners = {"desired": 4, "placed": 4, "contributing": 3, "min": 1, "max": 4}
    progress = {"step": 30, "steps": 100, "tokensPerSecond": speed, "loss": 2.5}
    return replace(a_view(progress=progress, learners=learners, **status), name=name)


def test_the_fastest_job_comes_first_and_those_that_are_over_last() -> None:
    over = {"state": "Complete", "conditions": [{"type": "Complete", "status": "True", "reason": "Done", "lastTransitionTime": NOW}]}
    said = lines(screen([at(10.0, "slow"), at(1e6, "over", **over), at(41_600.0, "fast")], "", NOW, 140))
    assert [line.split()[1] for line in said] == ["JOB", "fast", "slow", "over"]
    assert said[1].startswith("team fast Training 41.6k 3/4 30/100 2.500 - -")


def test_one_job_is_shown_with_its_units() -> None:
    said = lines(screen([replace(a_view(units=[unit(slice="np-0"), unit("v5p-1", "Joining")]), name="lm")], "lm", NOW, 140))
    assert [line.split()[:2] for line in said if line.startswith("v5p-")] == [["v5p-0", "Training"], ["v5p-1", "Joining"]]


def test_one_job_is_shown_with_its_parts_and_their_units() -> None:
    far = {"name": "far-0", "state": "Contributing", "attempt": 1, "tokens": 64}
    view = replace(a_view(units=[unit()], parts=[{"name": "tokyo", "state": "Training", "contributing": 1, "units": [far]}]), name="lm")
    said = lines(screen([view], "lm", NOW, 140))
    assert [line for line in said if line.startswith(("tokyo", "far-0"))] == [
        "tokyo Training 1/1 0 0% - 0 -",
        "far-0 tokyo Contributing - 1 64",
    ]


def test_a_hostile_message_is_shown_as_it_is() -> None:
    refused = {"type": "Degraded", "status": "True", "reason": "Odd", "message": "[bold]x[/nothing]", "lastTransitionTime": NOW}
    said = lines(screen([at(1.0, "lm", state="Degraded", reason="Odd", conditions=[refused])], "", NOW, 140))
    assert said[1].endswith("[bold]x[/nothing]")


@on_a_cluster
async def test_without_a_terminal_the_jobs_are_shown_once(cluster: FakeCluster) -> None:
    await begin(cluster, unit(), Training="True")
    console = Console(width=140, file=io.StringIO(), highlight=False)
    await show(cluster.api, "team", "", console)
    assert isinstance(console.file, io.StringIO)
    assert "team bytes-lm" in " ".join(console.file.getvalue().split())
    with pytest.raises(CommandError, match='no DiLoCoJob "bites-lm"'):
        await show(cluster.api, "team", "bites-lm", console)
