"""`kubectl diloco`: commands for DiLoCoJobs that kubectl does not have. kubectl finds the program kubectl-diloco on PATH."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from typing import Any

import click
from diloco_operator.kube.rest import RestClient
from diloco_operator.program.duration import Duration

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.curve import Paper
from diloco_cli.jobs import find_job, list_jobs
from diloco_cli.kubectl.drain import DrainedUnit
from diloco_cli.kubectl.drain import drain as drain_unit
from diloco_cli.kubectl.logs import SYNCER, logs_of, show_logs
from diloco_cli.kubectl.retry import retry_job, wait_retried
from diloco_cli.kubectl.suspension import set_suspend, wait_suspended, wait_training
from diloco_cli.kubectl.unit_job import UnitJob, UnitTarget, on_unit_cluster, unit_target_options
from diloco_cli.program import Program
from diloco_cli.status_text import as_json, status_text, units_text
from diloco_cli.view_model import JobView

_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the output."
)
_TIMEOUT = click.option(
    "--timeout",
    type=Duration(above_zero=True),
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait before giving up.",
)


_IMPORTED_WHEN_NEEDED = {
    "dashboard": "diloco_cli.kubectl.dashboard",
    "explain": "diloco_cli.kubectl.explain",
    "doctor": "diloco_cli.commands.doctor",
    "plan": "diloco_cli.commands.plan",
    "report": "diloco_cli.kubectl.report",
    "export": "diloco_cli.kubectl.export",
    "join-bundle": "diloco_cli.kubectl.join_bundle",
    "part": "diloco_cli.kubectl.part",
    "snapshots": "diloco_cli.kubectl.snapshots",
    "top": "diloco_cli.kubectl.top",
    "validate": "diloco_cli.commands.validate",
    "crd": "diloco_cli.commands.crd",
}
"""Modules of commands that are only imported when they run, so that the others start fast. `doctor`, `plan`, `validate` and `crd` are
commands of `diloco`, too."""


class _Group(Program):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_IMPORTED_WHEN_NEEDED]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _IMPORTED_WHEN_NEEDED:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(_IMPORTED_WHEN_NEEDED[cmd_name]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("prog_name", "kubectl diloco")
        return super().main(*args, **kwargs)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="diloco-operator", message="%(prog)s %(version)s")
@target_options
def main(target: Target) -> None:
    """Inspect DiLoCoJobs in a cluster, drain units, suspend, resume and retry jobs."""
    click.get_current_context().obj = target


@main.command(short_help="Show whether jobs train, and why not.")
@click.argument("job", default="")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of every namespace.")
@_OUTPUT
@target_options
def status(target: Target, job: str, all_namespaces: bool, output: str) -> None:
    """Show whether JOB trains: conditions, progress, loss curve, learner units and pools, with reasons. Without JOB: every job of the
    namespace, without the curves."""
    if job and all_namespaces:
        raise click.UsageError("give a JOB or --all-namespaces, not both")

    async def work(client: RestClient, namespace: str) -> None:
        if job:
            view = JobView.of(await find_job(client, namespace, job))
            paper = Paper.of(shutil.get_terminal_size().columns, sys.stdout.encoding, os.environ)
            click.echo(json.dumps(as_json(view), indent=2) if output == "json" else status_text(view, time.time(), paper))
            return
        where = "" if all_namespaces else namespace
        views = [JobView.of(obj) for obj in await list_jobs(client, where)]
        if output == "json":
            click.echo(json.dumps({"jobs": [as_json(view) for view in views]}, indent=2))
        elif views:
            click.echo("\n\n".join(status_text(view, time.time()) for view in views))
        else:
            click.echo(f"no DiLoCoJobs in {f'namespace {namespace}' if where else 'any namespace'}", err=True)

    on_cluster(target, work)


@main.command(short_help="List the learner units of a job.")
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json"]),
    default="text",
    show_default=True,
    help="Format of the output; wide has more columns.",
)
@target_options
def units(target: Target, job: str, output: str) -> None:
    """List the learner units of JOB: state, slice, speed and weight of each, and why it does not train."""

    async def work(client: RestClient, namespace: str) -> None:
        view = JobView.of(await find_job(client, namespace, job))
        if output == "json":
            shown = as_json(view)
            click.echo(json.dumps({key: shown[key] for key in ("units", "parts", "outside") if key in shown}, indent=2))
        elif text := units_text(view.status, time.time(), wide=output == "wide"):
            click.echo(text)
        else:
            click.echo(f'job "{job}" has no units yet', err=True)

    on_cluster(target, work)


@main.command(short_help="Print the log of a unit or of the syncer.")
@click.argument("job")
@click.argument("unit")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Print only the last LINES lines. Default: all.")
@click.option(
    "-p",
    "--previous",
    is_flag=True,
    help="Print the log of the failed attempt before the newest. For the syncer: of the run before its last restart in the same pod.",
)
@click.option(
    "--host",
    type=click.IntRange(min=0),
    metavar="INDEX",
    help="Print the log of one host only.",
)
@click.option("-c", "--container", default="", metavar="NAME", help="Container. Default: the training program, or the syncer.")
@unit_target_options
def logs(target: UnitTarget, job: str, unit: str, follow: bool, tail: int | None, previous: bool, host: int | None, container: str) -> None:
    """Print the log of UNIT of JOB, also after its end. The UNIT "syncer" is the syncer.

    Pods that ended by themselves stay until the job is deleted: those of each unit's newest attempt that failed, and those that completed.
    """
    if unit == SYNCER and host is not None:
        raise click.UsageError("the syncer has no hosts: leave out --host")

    async def work(at: UnitJob) -> None:
        wanted = await logs_of(at.client, at.namespace, at.name, unit, host=host, previous=previous, container=container)
        if wanted.note:
            click.echo(wanted.note, err=True)
        await show_logs(at.client, at.namespace, wanted.sources, _write, follow=follow, tail=tail)

    on_unit_cluster(target, job, unit, work)


def _write(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@main.command(short_help="Evict a unit and wait until it contributes again.")
@click.argument("job")
@click.argument("unit")
@click.option("--cordon", is_flag=True, help="Cordon its nodes first, so that the unit starts again on other ones.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the unit contributes again.")
@_TIMEOUT
@unit_target_options
def drain(target: UnitTarget, job: str, unit: str, cordon: bool, no_wait: bool, timeout: float) -> None:
    """Evict the pods of UNIT of JOB, and wait until the unit contributes again.

    An eviction does not count against the restart budget. The operator starts the unit again, on other hardware if its nodes are cordoned.
    The other units train on meanwhile.
    """

    async def work(at: UnitJob) -> None:
        drained = DrainedUnit(at.namespace, at.name, unit, at.context)
        await drain_unit(at.client, drained, click.echo, cordon=cordon, wait=not no_wait, seconds=timeout)

    on_unit_cluster(target, job, unit, work)


@main.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until no pod runs any more and the state is saved.")
@_TIMEOUT
@target_options
def suspend(target: Target, job: str, wait: bool, timeout: float) -> None:
    """Release all hardware of JOB and keep its state."""

    async def work(client: RestClient, namespace: str) -> None:
        await set_suspend(client, namespace, job, click.echo, suspend=True)
        if wait:
            await wait_suspended(client, namespace, job, click.echo, seconds=timeout)

    on_cluster(target, work)


@main.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until the job trains again.")
@_TIMEOUT
@target_options
def resume(target: Target, job: str, wait: bool, timeout: float) -> None:
    """Resume a suspended JOB where it stopped."""

    async def work(client: RestClient, namespace: str) -> None:
        await set_suspend(client, namespace, job, click.echo, suspend=False)
        if wait:
            await wait_training(client, namespace, job, click.echo, seconds=timeout)

    on_cluster(target, work)


@main.command(short_help="Start a failed job again from its last snapshot.")
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait until the job trains again.")
@_TIMEOUT
@target_options
def retry(target: Target, job: str, wait: bool, timeout: float) -> None:
    """Start a failed JOB again from its last snapshot, or units that were given up in a JOB that trains. All get a new restart budget.

    It raises spec.retry by one. To change the spec of a failed job, raise that field yourself in the same change.
    """

    async def work(client: RestClient, namespace: str) -> None:
        asked = await retry_job(client, namespace, job, click.echo)
        if wait:
            await wait_retried(client, namespace, job, click.echo, asked, seconds=timeout)

    on_cluster(target, work)
