"""`kubectl diloco explain`: why a job does not have more, and what would help, on one page.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping

import click
from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.job import InvalidJob, load
from diloco_operator.api.names import DILOCO_JOBS, EVENTS, KIND, NODES, PRIORITY_CLASSES
from diloco_operator.fleet import Inventory
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.kube.client import Client, Forbidden, Obj, Resource
from diloco_operator.kube.listing import list_all
from diloco_operator.reconcile import OperatorConfig

from diloco_cli.checks.nodes import inventory_of
from diloco_cli.explanation import Explanation, PoolFacts, explanation
from diloco_cli.gpu_slices import gpu_slices
from diloco_cli.jobs import find_job, unit_of
from diloco_cli.kubectl.explanation_text import explanation_text
from diloco_cli.kubectl.unit_job import UnitJob, UnitTarget, on_unit_cluster, unit_target_options
from diloco_cli.view_model import JobView
from diloco_cli.waiting_line import Place, places, short_here

_MOST_EVENTS = 2000
"""Most events of a job that are read. By default the API server keeps an event for an hour."""


@click.command(short_help="Explain why a job does not have more units, or what one unit does.")
@click.argument("job")
@click.argument("unit", default="")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the output.")
@unit_target_options
def explain(target: UnitTarget, job: str, unit: str, output: str) -> None:
    """Explain why JOB does not train with more units: the cause that counts most, the next step and what comes by itself; then each pool
    with what it lacks and what would help, and each unit that does not train with its last failure. With UNIT: only that unit and its pool.

    It reads the job, its events and, where you may, the nodes and the other jobs that wait. It changes nothing.
    """

    async def work(at: UnitJob) -> None:
        page = await explained(at.client, at.namespace, at.name, time.time, unit=unit, context=at.context)
        if output == "json":
            click.echo(json.dumps(dataclasses.asdict(page), indent=2))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            click.echo(explanation_text(page, time.time(), width))

    on_unit_cluster(target, job, unit, work)


async def explained(
    client: Client, namespace: str, name: str, now: Callable[[], float], *, unit: str = "", context: str = ""
) -> Explanation:
    """Explain the job from what the user may read; the explanation's notes name the rest. Raises `CommandError` if there is no such job or
    unit.

    Args:
        unit: the one that is explained, "" for all
        context: see `JobView`
    """
    obj = await find_job(client, namespace, name)
    view = JobView.of(obj, context)
    chosen = unit_of(view, unit) if unit else None
    notes: list[str] = []
    uid = obj["metadata"]["uid"]
    selector = f"involvedObject.kind={KIND},involvedObject.name={name},involvedObject.uid={uid}"
    events = await _readable(client, EVENTS, namespace, notes, "events of the namespace", selector=selector, most=_MOST_EVENTS)
    facts: dict[str, PoolFacts] = {}
    line: Mapping[str, Place] = {}
    short = short_here(view.status)
    if short:
        nodes = await _readable(client, NODES, "", notes, "nodes of the cluster")
        if nodes is not None:
            inventory = inventory_of(nodes, OperatorConfig().disruption_signals, now(), await gpu_slices(client, notes.append))
            facts = pool_facts(obj, short, inventory, notes.append)
        line = await _line(client, obj, notes)
    return explanation(view, obj["spec"], events or (), facts, line, notes, chosen)


async def _line(client: Client, job: Obj, notes: list[str]) -> Mapping[str, Place]:
    """Places of the job's pools among all jobs that wait. Empty if the user may not read other jobs or priorities."""
    jobs = await _readable(client, DILOCO_JOBS, "", notes, "jobs of other namespaces")
    priorities = await _readable(client, PRIORITY_CLASSES, "", notes, "priority classes") if jobs is not None else None
    return places(job, jobs, priorities) if jobs is not None and priorities is not None else {}


async def _readable(
    client: Client, resource: Resource, namespace: str, notes: list[str], what: str, *, selector: str = "", most: int = 0
) -> list[Obj] | None:
    """List all objects, or only the first `most`. If the user may not list them, add a note and return None."""
    try:
        return await list_all(client, resource, namespace, fields=selector, most=most)
    except Forbidden:
        notes.append(f"you may not list the {what}, so that what they tell is not shown")
        return None


def pool_facts(job: Obj, names: Collection[str], inventory: Inventory, note: Callable[[str], None]) -> dict[str, PoolFacts]:
    """What the nodes tell about the pools of these names. `note` gets a sentence for each pool without facts whose accelerator is not built
    in. A job or pool that cannot be read has no facts either; the operator's own messages name it."""
    try:
        pools = load(job).spec.pools
    except InvalidJob:
        return {}
    facts = {}
    for pool in pools:
        if pool.name not in names:
            continue
        if pool.accelerator not in CATALOGUE:
            note(
                f"what the nodes have for pool {pool.name} is not shown: {pool.accelerator} is not built in, and the operator's catalogue "
                "file is not read here; kubectl diloco doctor reads it"
            )
            continue
        try:
            shape = shape_of(pool)
        except ValueError:
            continue
        counts = inventory.counts(shape.slice_shape)
        facts[pool.name] = PoolFacts(str(shape), counts.total, counts.hosts, counts.unusable_count, counts.unusable)
    return facts
