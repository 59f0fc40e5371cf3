"""The command `kubectl diloco export`. `diloco_cli.kubectl.export_cluster` does its work.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

from pathlib import Path

import click
from diloco.export.model_file import DType
from diloco_operator.kube.rest import RestClient
from diloco_operator.program.duration import Duration
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.commands.export import errors_of_export, export_from, export_options, one_choice
from diloco_cli.kubectl.export_cluster import Wanted, export_job


@click.command(short_help="Write the model of a job as one safetensors file.")
@click.argument("job", default="")
@click.option("--claim", metavar="NAME", default="", help="Read this claim, for instance one that was kept after its job.")
@click.option("--image", metavar="IMAGE", default="", help="Image of the pod. Default: that of the job's syncer.")
@export_options
@click.option(
    "--timeout", type=Duration(), default=f"{EXPORT.whole / 3600:.0f}h", show_default=True, metavar="DURATION",
    help="How long the export may take.",
)  # fmt: skip
@target_options
def export(
    target: Target, job: str, claim: str, image: str, output: Path, step: int | None, snapshot: str, dtype: DType, timeout: float
) -> None:
    """Write the parameters in the newest snapshot of JOB as one safetensors file, for torch, transformers and JAX.

    A pod mounts the claim of the job's syncer read-only and streams the file; it is deleted afterwards. The job may train, be suspended or
    have ended. If the claim is gone and the job has a spec.training.checkpoint.uri, this machine reads from there.

    You need get on dilocojobs and persistentvolumeclaims; get, list, create and delete on pods; get and create on pods/exec.
    """
    if not job and not claim:
        raise click.UsageError("give a JOB, or --claim NAME")
    one_choice(step, snapshot)
    wanted = Wanted(job, claim, output, step, dtype, image, timeout, snapshot)
    copies = ""

    async def work(client: RestClient, namespace: str) -> None:
        nonlocal copies
        copies = await export_job(client, namespace, wanted)

    with errors_of_export():
        on_cluster(target, work)
        if copies:
            export_from(copies, "", output, step, snapshot, dtype)
