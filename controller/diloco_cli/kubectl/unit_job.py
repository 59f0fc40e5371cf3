"""The job that a unit belongs to where it runs: the job itself, or its part in another cluster, which a context of the user's kubeconfig
reaches.

See docs/decisions/0286-commands-for-units-elsewhere.md.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
from diloco_operator.api.names import DILOCO_JOBS
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj
from diloco_operator.kube.fields import MalformedField, an_object, fields, needed_string, string
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import CommandError, Target, connected, on_cluster, target_options
from diloco_cli.jobs import cluster_of, find_job
from diloco_cli.view_model import JobView

_MOST_JOBS = 10_000
"""Most jobs of a namespace among which a part is looked for."""


@dataclass(frozen=True, slots=True)
class UnitTarget:
    """Where a command for a unit acts. `part_context` is "" if it was not given."""

    home: Target
    part_context: str


@dataclass(frozen=True, slots=True)
class UnitJob:
    """The DiLoCoJob of a unit, in the cluster where the unit runs."""

    client: RestClient
    namespace: str
    name: str
    context: str = ""
    """See `JobView`."""


def unit_target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `target_options` and --part-context. The command gets them as `target`, a `UnitTarget`."""

    @click.option(
        "--part-context",
        metavar="NAME",
        default="",
        help="Context of the unit's cluster, if that is not the job's own. Default: the one with the cluster's name.",
    )
    @target_options
    @functools.wraps(command)
    def wrapped(target: Target, part_context: str, **rest: Any) -> Any:
        return command(target=UnitTarget(target, part_context), **rest)

    return wrapped


def on_unit_cluster[T](target: UnitTarget, job: str, unit: str, work: Callable[[UnitJob], Awaitable[T]]) -> T:
    """Like `on_cluster`, but in the cluster where the unit runs, with its job there. A unit that no pool elsewhere has is taken as one of
    the job's own cluster."""

    async def at_home(client: RestClient, namespace: str) -> T:
        home = await find_job(client, namespace, job)
        cluster = cluster_of(home, unit)
        if not cluster:
            return await work(UnitJob(client, namespace, job))
        context = target.part_context or cluster
        async with contextlib.AsyncExitStack() as stack:
            try:
                there, its_namespace = await stack.enter_async_context(connected(Target(target.home.kubeconfig, context)))
                part = await _find_part(there, home, cluster, its_namespace)
            except CommandError as error:
                where = f'unit {unit} of job "{job}" runs in cluster {cluster} (context {context}; --part-context names another)'
                raise CommandError(f"{where}: {error.message}") from error
            click.echo(f"unit {unit} runs in cluster {cluster}: job {part.name} in namespace {part.namespace} there", err=True)
            return await work(UnitJob(there, *part, context))

    return on_cluster(target.home, at_home)


class _Part(NamedTuple):
    namespace: str
    name: str


async def _find_part(client: Client, home: Obj, cluster: str, namespace: str) -> _Part:
    """Return the DiLoCoJob of the part that a job has in a cluster. It is looked for in the context's namespace, and then in the one that
    the job has at home, unless the job's status says where its operator makes the part.

    Args:
        home: the job at home
        namespace: of the context
    """
    uid, own = home["metadata"]["uid"], home["metadata"]["namespace"]
    made = next((part.namespace for part in JobView.of(home).status.parts or () if part.name == cluster), "")
    looked = []
    for place in (made,) if made else dict.fromkeys((namespace, own)):
        try:
            jobs = await list_all(client, DILOCO_JOBS, place, most=_MOST_JOBS)
        except NotFound as error:
            raise CommandError(f"it has no {DILOCO_JOBS.plural}.{DILOCO_JOBS.group}") from error
        except Forbidden as error:
            looked.append(f"{place} ({error.message})")
            continue
        names = [name for obj in jobs if (name := _name_of_part(obj, uid, cluster))]
        if len(names) > 1:
            raise CommandError(f"{' and '.join(names)} in namespace {place} there are both this part; delete one")
        if names:
            return _Part(place, names[0])
        looked.append(place)
    raise CommandError(f"no DiLoCoJob there has status.home with uid {uid} and part {cluster}, in namespace {' or '.join(looked)}")


def _name_of_part(obj: Obj, uid: str, cluster: str) -> str:
    """Return the name of the job if it is this part, else "". A job that does not fit is no part: it must not hide the one that is."""
    try:
        home = fields(fields(an_object(obj, "items[]"), "status"), "home", "status")
        is_part = (string(home, "uid"), string(home, "part")) == (uid, cluster)
        return needed_string(fields(obj, "metadata"), "name", "metadata") if is_part else ""
    except MalformedField:
        return ""
