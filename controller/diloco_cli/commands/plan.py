"""`diloco plan` and `kubectl diloco plan`: what would run where, and why, before anything is applied.

See docs/decisions/0214-plan.md.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import NoReturn

import click
from diloco_local.preview.changes import BadChange, ChangeOptions, changes_of
from diloco_local.preview.cluster import PreviewFailed
from diloco_local.preview.contents import Contents, NodesNotReadable, of_cluster, of_fleet
from diloco_local.preview.difference import difference, unfit
from diloco_local.preview.preview import Preview, preview
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.kube.client import ApiError, NotFound, Obj
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import CommandError, Target, no_such_resource, on_cluster, target_options
from diloco_cli.commands.plan_syncer import SyncerPlan, syncer_json, syncer_plan, syncer_text
from diloco_cli.commands.plan_text import Page, plan_text
from diloco_cli.commands.validate import catalogue_option, check, refuse
from diloco_cli.fleet_file import BadFleet, load_fleet
from diloco_cli.idle_accelerators import idle_pools
from diloco_cli.manifests import Manifest
from diloco_cli.parameters_option import Parameters

EXIT_UNFIT = 1


@click.command(short_help="Show what would run where, before anything is applied.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@catalogue_option
@click.option(
    "--fleet", metavar="FILE", help="Plan on these nodes: a file with Kubernetes Node manifests. Default: the nodes of a cluster."
)
@click.option(
    "--without", multiple=True, metavar="POOL", help="Also plan for the loss of this node pool, pool of a job or accelerator. Repeatable."
)
@click.option(
    "--add", multiple=True, metavar="POOL=COUNTxTOPOLOGY", help="Also plan for this many more slices, or hosts (POOL=COUNT). Repeatable."
)
@click.option("--drain", multiple=True, metavar="NODE", help="Also plan for this node drained. Repeatable.")
@click.option(
    "--syncer",
    type=Parameters(),
    help="Show instead what the syncer of each job in FILE needs for this many exchanged parameters, such as 1.1B: memory, volume, network "
    "and processor, beside what it asks for.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the output.")
@target_options
def plan(
    target: Target, files: tuple[str, ...], fleet: str | None, without: tuple[str, ...], add: tuple[str, ...],
    drain: tuple[str, ...], syncer: int | None, output: str,
) -> None:  # fmt: skip
    """Show what would run where, and why, if the jobs in FILE were applied: on the nodes of --fleet, or in a cluster beside the jobs that
    run there. Without FILE: what happens next in the cluster, and what stops it. Then the same after --without, --add and --drain.

    It runs the operator itself on virtual time, on a copy: nothing is written. Programs are assumed to start. A plan brings no nodes and no
    quota that are not there yet.

    \b
    Exit status:
      0  every minimum fits, and every job trains
      1  a minimum does not fit, or a job does not train for another reason; with --syncer: a syncer asks for less than it needs
      2  bad input, or there can be no plan
    """
    _check_usage(target, files, fleet, syncer)
    options = ChangeOptions(without, add, drain)
    manifests, _, problems = check(files)
    if problems:
        refuse(*map(str, problems))
    if syncer is not None:
        _show_syncers([syncer_plan(manifest, syncer) for manifest in manifests], output)
    logging.getLogger().addHandler(logging.NullHandler())  # the previewed operator logs; a plan shows its defects itself
    now = time.time()
    contents, namespace = _contents(target, fleet, now)
    jobs = [_in_namespace(manifest, namespace) for manifest in manifests]
    try:
        changes = changes_of(options, contents.nodes, [*contents.jobs, *jobs])
        outcome = preview(contents, jobs, changes, now)
    except (BadChange, PreviewFailed) as error:
        refuse(str(error))
    except ApiError as error:
        refuse(f"the API server would refuse a job: {error}", *(f"{cause.field}: {cause.message}" for cause in error.causes))
    keys = {(job["metadata"]["namespace"], job["metadata"]["name"]) for job in jobs}
    keys = keys or {job.key for job in outcome.planned if fleet or not target.namespace or job.namespace == namespace}
    page = Page(keys, options.words, (*contents.notes, *_idle([*contents.jobs, *jobs], keys)), fleet or "")
    before = outcome.now if outcome.changed is None else (*outcome.now, *outcome.planned)
    lacking = unfit(before, outcome.planned if outcome.changed is None else outcome.changed, keys)
    if output == "json":
        click.echo(json.dumps(_as_json(outcome, page, not lacking), indent=2))
    else:
        click.echo(plan_text(outcome, page, lacking, shutil.get_terminal_size().columns if sys.stdout.isatty() else 0))
    raise SystemExit(EXIT_UNFIT if lacking else 0)


def _show_syncers(plans: Sequence[SyncerPlan], output: str) -> NoReturn:
    click.echo(json.dumps(syncer_json(plans), indent=2) if output == "json" else syncer_text(plans))
    raise SystemExit(EXIT_UNFIT if any(plan.lacking for plan in plans) else 0)


def _check_usage(target: Target, files: Sequence[str], fleet: str | None, syncer: int | None) -> None:
    if syncer is not None and not files:
        raise click.UsageError("give a FILE with jobs: --syncer tells of their syncers")
    if fleet and (target.context or target.kubeconfig):
        raise click.UsageError("give --fleet, or --context and --kubeconfig, not both: a plan has the nodes of one place")
    if fleet and not files:
        raise click.UsageError("give a FILE with jobs: --fleet has nodes alone")


def _contents(target: Target, fleet: str | None, now: float) -> tuple[Contents, str]:
    """Read the cluster or the fleet file. The second value is the namespace for jobs that name none."""
    if fleet:
        try:
            return of_fleet(load_fleet(fleet), now), target.namespace or "default"
        except BadFleet as error:
            refuse(*error.sentences)

    async def work(client: RestClient, namespace: str) -> tuple[Contents, str]:
        try:
            return await of_cluster(client, namespace), namespace
        except NotFound as error:
            raise no_such_resource() from error

    try:
        return on_cluster(target, work)
    except NodesNotReadable as error:
        refuse(str(error))
    except CommandError as error:
        refuse(f"{error.message}; to plan without a cluster, give its nodes with --fleet FILE")


def _idle(jobs: Iterable[Obj], keys: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each pool that leaves accelerators idle, of the jobs in `keys`."""
    newest = {(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in jobs}
    for key, job in newest.items():
        if key not in keys:
            continue
        try:
            spec = load(job).spec
        except InvalidJob:
            continue  # the plan says that the operator refuses it
        yield from (f"pool {pool.name} of {'/'.join(key)}: {idle}" for _, pool, idle in idle_pools(spec.pools))


def _in_namespace(manifest: Manifest, namespace: str) -> Obj:
    metadata = {"namespace": namespace, **manifest.obj["metadata"]}
    return {key: value for key, value in manifest.obj.items() if key != "status"} | {"metadata": metadata}


def _as_json(outcome: Preview, page: Page, fits: bool) -> dict[str, object]:
    changed = outcome.changed
    return {
        "fits": fits,
        "settled": outcome.settled,
        "notes": list(page.notes),
        "now": [asdict(job) for job in outcome.now if job.key in page.keys],
        "planned": [asdict(job) for job in outcome.planned],
        "next": asdict(difference(outcome.now, outcome.planned)),
        "changes": list(page.changes),
        "changed": None if changed is None else [asdict(job) for job in changed],
        "sparesCost": None if outcome.spares_cost is None else asdict(outcome.spares_cost),
        "difference": None if changed is None else asdict(difference(outcome.planned, changed)),
    }
