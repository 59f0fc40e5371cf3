"""`diloco init`: write a commented starter job for the hardware that a cluster has.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from diloco_operator.api.names import NODES
from diloco_operator.fleet.nearby import oddity
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_kinds import kind_of
from diloco_operator.kube.client import Forbidden
from diloco_operator.kube.listing import list_all
from diloco_operator.kube.rest import RestClient

from diloco_cli.checks.nodes import views
from diloco_cli.cluster import CommandError, Target, note_on_stderr, on_cluster, target_options
from diloco_cli.commands.validate import catalogue_option, refuse
from diloco_cli.diloco.starter import starter_job
from diloco_cli.fleet_file import BadFleet, load_fleet
from diloco_cli.gpu_slices import gpu_slices
from diloco_cli.manifests import ManifestError, check_text
from diloco_cli.pool_option import of_slices, slices_of


@click.command(short_help="Write a commented starter job for the hardware of a cluster.")
@catalogue_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("job.yaml"), show_default=True, metavar="FILE",
    help="The file to write.",
)  # fmt: skip
@click.option("--name", default="my-training", show_default=True, metavar="NAME", help="Name of the job.")
@click.option("--image", default="", metavar="IMAGE", help="Image of the learners. Default: a place to fill in.")
@click.option("--fleet", metavar="FILE", help="Take the hardware from a file with Kubernetes Node manifests. Default: from the cluster.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@target_options
def init(target: Target, output: Path, name: str, image: str, fleet: str | None, force: bool) -> None:
    """Ask the cluster which kinds of accelerators it has, and write a job with a pool for each, with comments, to start from.

    It needs the right to list nodes.
    """
    if output.exists() and not force:
        raise CommandError(f"{output} is there already; give -o for another file, or --force to replace it")
    if fleet is not None:
        try:
            _write(output, name, image, list(views(load_fleet(fleet))))
        except BadFleet as error:
            raise CommandError(str(error)) from error
        return

    async def work(client: RestClient, _namespace: str) -> None:
        try:
            nodes = await list_all(client, NODES)
        except Forbidden as error:
            raise CommandError(f"you may not list nodes: {error.message}; ask who may for a job.yaml, or give --fleet") from error
        _write(output, name, image, list(views(nodes, await gpu_slices(client, note_on_stderr))))

    on_cluster(target, work)


def _write(output: Path, name: str, image: str, nodes: Sequence[NodeView]) -> None:
    pools = of_slices(slices_of(nodes))
    remarks = remarks_of(nodes)
    if not pools:
        none = f"; {'; '.join(remarks)}" if remarks else ""
        raise CommandError(f"there are no nodes that a pool can name{none}. Where an autoscaler brings them see examples/flex-start.yaml")
    text = starter_job(name, image, pools, remarks)
    try:
        check_text(text, str(output))
        output.write_text(text, encoding="utf-8")
    except ManifestError as error:
        refuse(*map(str, error.problems), f"{output} was not written")
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from error
    what = ", ".join(f"{pool.units} of {pool.kind.name} {pool.topology}".rstrip() for pool in pools)
    click.echo(f"{output}: a job for {what}. Fill in what is marked TODO; diloco validate {output} checks it")


def remarks_of(nodes: Sequence[NodeView]) -> list[str]:
    """Sentences about hardware that no pool gets by naming a kind, in the words of the doctor."""
    oddities = [why for node in nodes if (why := oddity(node, kind_of(node))) is not None]
    return [f"nodes not asked for: {oddities.count(why)} with {why.what}" for why in dict.fromkeys(oddities)]
