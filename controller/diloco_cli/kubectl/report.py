"""`kubectl diloco report`: the pages of a job of a cluster as one file.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from diloco_operator.api.names import EVENTS, KIND
from diloco_operator.kube.client import ApiError, Client, Obj
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import CommandError, Target, on_cluster, target_options
from diloco_cli.dashboard.document import whole
from diloco_cli.dashboard.job_document import facts_of, goodput_of, job_pages
from diloco_cli.dashboard.unit_pods import UnitPods
from diloco_cli.dashboard.unit_reader import OpenPage, read_unit
from diloco_cli.html import notes
from diloco_cli.jobs import find_job
from diloco_cli.pod_logs import PodLogs
from diloco_cli.svg import element
from diloco_cli.view_model import JobView

_AT_ONCE = 8
"""Units whose pods are read at the same time."""
_MOST_EVENTS = 5_000


@click.command(short_help="Write what there is to see of a job as one HTML file.")
@click.argument("job")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The file; an existing one is replaced. Default: JOB.html.",
)  # fmt: skip
@click.option("--logs", is_flag=True, help="Include the end of the log of each unit's first host. Read it before you pass the file on.")
@target_options
def report(target: Target, job: str, output: Path | None, logs: bool) -> None:
    """Write the pages of JOB and of its units, as the dashboard shows them, to one HTML file, which needs no cluster and no network. JOB
    may run, or have ended.

    It has what the job's status, its Events and its pods say at this time.
    """
    file = output if output is not None else Path(f"{job}.html")

    async def work(client: RestClient, namespace: str) -> None:
        text = await reported(client, client if logs else None, namespace, job, time.time)
        try:
            await asyncio.to_thread(file.write_text, text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror or error}") from error
        click.echo(f"Report: {file}")

    on_cluster(target, work)


async def reported(client: Client, logs: PodLogs | None, namespace: str, name: str, wall: Callable[[], float]) -> str:
    """The HTML file as text. Without `logs` it has no logs of pods. Raises `CommandError` if there is no such job."""
    obj = await find_job(client, namespace, name)
    view, now = JobView.of(obj), wall()
    gaps: list[str] = []
    facts = facts_of(obj, await _events(client, obj, gaps), now)
    pods = await _pods(client, logs, obj, [unit.name for unit in view.status.units])
    made = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    first, *others = job_pages(facts, pods)
    origin = [element("p", f"As the cluster had it at {made}. Times are counted from then.", class_="soft"), *notes(gaps)]
    sections = dict(first.page.sections)
    sections["head"] = [*sections["head"], *origin]
    head = first._replace(page=replace(first.page, sections=sections))
    return whole(f"{namespace}/{name} - DiLoCo", [head, goodput_of(facts), *others], now)


async def _events(client: Client, job: Obj, gaps: list[str]) -> list[Obj]:
    meta = job["metadata"]
    selector = f"involvedObject.kind={KIND},involvedObject.name={meta['name']},involvedObject.uid={meta['uid']}"
    try:
        return await list_all(client, EVENTS, meta["namespace"], fields=selector, most=_MOST_EVENTS)
    except ApiError as error:
        gaps.append(f"How earlier attempts ended is not shown: {error.message}")
        return []


async def _pods(client: Client, logs: PodLogs | None, job: Obj, units: Sequence[str]) -> dict[str, UnitPods]:
    meta, turns = job["metadata"], asyncio.Semaphore(_AT_ONCE)

    async def read(unit: str) -> UnitPods:
        async with turns:
            return await read_unit(client, logs, OpenPage(meta["namespace"], meta["name"], unit, meta["uid"], None))

    return dict(zip(units, await asyncio.gather(*map(read, units)), strict=True))
