"""`kubectl diloco top`: jobs and their speed on the terminal, live."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import click
from diloco_operator.api.names import DILOCO_JOBS
from diloco_operator.kube.client import Client, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.rest import RestClient
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.job_tables import jobs_table
from diloco_cli.jobs import find_job, list_jobs
from diloco_cli.screen import STATE_STYLES, header, live_elsewhere, live_table, live_units
from diloco_cli.view_model import JobView

_REFRESH_PER_SECOND = 1


@click.command(short_help="Show jobs and their speed, live.")
@click.argument("job", default="")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of every namespace.")
@target_options
def top(target: Target, job: str, all_namespaces: bool) -> None:
    """Show the jobs of the namespace as they change, the fastest first; with JOB its units. Ctrl-C ends it.

    Where standard output is no terminal, it shows them once.
    """
    if job and all_namespaces:
        raise click.UsageError("give a JOB or --all-namespaces, not both")

    async def work(client: RestClient, namespace: str) -> None:
        await show(client, "" if all_namespaces else namespace, job, Console(highlight=False))

    on_cluster(target, work)


async def show(client: Client, namespace: str, job: str, console: Console) -> None:
    """Show the jobs of a namespace ("" for all), or one job with its units, until cancelled. Show them once if `console` is no terminal."""
    if job:
        await find_job(client, namespace, job)
    first = [JobView.of(obj) for obj in await list_jobs(client, namespace)]
    if not console.is_terminal:
        console.print(screen(_chosen(first, job), job, time.time(), console.width))
        return
    jobs = Reflector(client, WatchedResource(DILOCO_JOBS, _view, namespace=namespace), rng=random.random)

    def now() -> RenderableType:
        views = [cached.value for cached in jobs.cache] if jobs.synced else first
        return screen(_chosen(views, job), job, time.time(), console.width)

    with Live(console=console, get_renderable=now, refresh_per_second=_REFRESH_PER_SECOND, screen=True):
        following = asyncio.create_task(jobs.run())
        try:
            await following
        finally:
            following.cancel()


def _view(obj: Obj, _previous: JobView | None) -> JobView:
    return JobView.of(obj)


def _chosen(views: Sequence[JobView], job: str) -> list[JobView]:
    return [view for view in views if job in ("", view.name)]


def screen(views: Sequence[JobView], job: str, now: float, width: int) -> RenderableType:
    """Render the jobs, the fastest first. With `job` render only that one, with its units and parts. Pure."""
    if not views:
        return Text(f'job "{job}" was deleted' if job else "there are no jobs")
    if job:
        elsewhere = (part for table in live_elsewhere(views[0], now) for part in (Text(), table))
        return Group(header(views[0], now), live_units(views[0].status.units, now, width), *elsewhere)
    fastest = sorted(views, key=lambda view: (view.over, -view.status.progress.tokens_per_second, view.namespace, view.name))
    styles = [STATE_STYLES[view.state] if view.state is not None else "" for view in fastest]
    return live_table(jobs_table(fastest, now), now, styles, cut=True)
