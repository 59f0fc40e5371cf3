"""The command `kubectl diloco snapshots`: which snapshots a job in a cluster has, through a pod that mounts its claim.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import click
from diloco.export.listing import SnapshotEntry, list_snapshots
from diloco.export.listing_stream import ListingReader
from diloco_operator.kube.rest import RestClient
from diloco_operator.program.duration import Duration
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.commands.export import errors_of_export
from diloco_cli.commands.snapshots import show, snapshots_options
from diloco_cli.kubectl.export_claim import ClaimRequest, claim_pod
from diloco_cli.kubectl.export_pod import PodRequest, running_pod
from diloco_cli.kubectl.export_program import run_export


@click.command(short_help="List the snapshots of a job.")
@click.argument("job", default="")
@click.option("--claim", metavar="NAME", default="", help="Read this claim, for instance one that was kept after its job.")
@click.option("--image", metavar="IMAGE", default="", help="Image of the pod. Default: that of the job's syncer.")
@snapshots_options
@click.option(
    "--timeout", type=Duration(), default=f"{EXPORT.whole / 3600:.0f}h", show_default=True, metavar="DURATION",
    help="How long the list may take.",
)  # fmt: skip
@target_options
def snapshots(target: Target, job: str, claim: str, image: str, output: str, timeout: float, *, check: bool) -> None:
    """List the snapshots of JOB, the newest first: outer step, committed tokens, size, age, and whether it is whole.

    A pod mounts the claim of the job's syncer read-only, as for kubectl diloco export, which takes any of them (--snapshot NAME). If the
    claim is gone and the job has a spec.training.checkpoint.uri, this machine reads from there. What units have stored of their optimizers
    (spec.training.checkpoint.learners) is there too: diloco snapshots URI.

    \b
    Exit status:
      0  all are complete, or whole
      1  there are none, or one is damaged or unfinished
    """
    if not job and not claim:
        raise click.UsageError("give a JOB, or --claim NAME")
    found: list[SnapshotEntry] = []
    copies = ""

    async def work(client: RestClient, namespace: str) -> None:
        nonlocal found, copies
        request = await claim_pod(client, namespace, ClaimRequest(job, claim, image, timeout))
        if isinstance(request, str):
            copies = request
        else:
            found = await list_claim(client, request, check=check)

    with errors_of_export():
        on_cluster(target, work)
        if copies:
            found = list(list_snapshots(copies, check=check))
    show(found, None, output)


async def list_claim(client: RestClient, request: PodRequest, *, check: bool) -> list[SnapshotEntry]:
    """Return the snapshots on the claim. Raises CommandError, ExportError, ApiError."""
    reader = ListingReader()
    async with running_pod(client, request, lambda text: click.echo(text, err=True)) as pod:
        await run_export(client, request, pod, ["--list", *(["--check"] if check else [])], reader)
    return reader.found
