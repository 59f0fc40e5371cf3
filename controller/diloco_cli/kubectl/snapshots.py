"""`kubectl diloco snapshots`: which snapshots a job in a cluster has, read through a pod that mounts its claim.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import click
from diloco.export.listing import SnapshotEntry, list_snapshots
from diloco.export.listing_stream import ListingReader
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.commands.export import errors_of_export
from diloco_cli.commands.snapshots import show, snapshots_options
from diloco_cli.kubectl.export_claim import ClaimRequest, claim_options, claim_pod
from diloco_cli.kubectl.export_pod import PodRequest, running_pod
from diloco_cli.kubectl.export_program import run_export


@click.command(short_help="List the snapshots of a job.")
@claim_options
@snapshots_options
@target_options
def snapshots(target: Target, request: ClaimRequest, output: str, *, check: bool) -> None:
    """List the snapshots of JOB, the newest first: outer step, committed tokens, size, age, and whether it is whole.

    A pod mounts the claim of the job's syncer read-only, as for kubectl diloco export, which takes any of them (--snapshot NAME). If the
    claim is gone and the job has a spec.training.checkpoint.uri, this machine reads from there. What units have stored of their optimizers
    (spec.training.checkpoint.learners) is there too: diloco snapshots URI.

    \b
    Exit status:
      0  all are complete, or whole
      1  there are none, or one is damaged or unfinished
    """

    async def work(client: RestClient, namespace: str) -> list[SnapshotEntry] | str:
        """List what the claim has. Without a claim, return the URI of the copies of its snapshots."""
        reader = await claim_pod(client, namespace, request)
        return reader if isinstance(reader, str) else await list_claim(client, reader, check=check)

    with errors_of_export():
        answer = on_cluster(target, work)
        entries = list(list_snapshots(answer, check=check)) if isinstance(answer, str) else answer
    show(entries, None, output)


async def list_claim(client: RestClient, request: PodRequest, *, check: bool) -> list[SnapshotEntry]:
    """List the snapshots on the claim. Raises CommandError, ExportError, ApiError."""
    reader = ListingReader()
    async with running_pod(client, request, lambda text: click.echo(text, err=True)) as pod:
        await run_export(client, request, pod, ["--list", *(["--check"] if check else [])], reader)
    return reader.found
