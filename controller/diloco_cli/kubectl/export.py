"""`kubectl diloco export`: the model of a job in a cluster, from its claim through a pod, or from the URI of its snapshots.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import click
from diloco.export.model_file import DType
from diloco.export.stream import Announcement, StreamReader
from diloco.export.target_file import TargetFile
from diloco_operator.kube.rest import RestClient

from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.commands.export import errors_of_export, export_from, export_options, one_choice, progress_of, summary
from diloco_cli.kubectl.export_claim import ClaimRequest, claim_options, claim_pod
from diloco_cli.kubectl.export_pod import running_pod
from diloco_cli.kubectl.export_program import run_export


@click.command(short_help="Write the model of a job as one safetensors file.")
@claim_options
@export_options
@target_options
def export(target: Target, request: ClaimRequest, output: Path, step: int | None, snapshot: str, dtype: DType) -> None:
    """Write the parameters in the newest snapshot of JOB as one safetensors file, for torch, transformers and JAX.

    A pod mounts the claim of the job's syncer read-only and streams the file; it is deleted afterwards. The job may train, be suspended or
    have ended. If the claim is gone and the job has a spec.training.checkpoint.uri, this machine reads from there.

    `kubectl diloco doctor` says which rights for this you lack.
    """
    one_choice(step, snapshot)

    async def work(client: RestClient, namespace: str) -> tuple[TargetFile, Announcement] | str:
        return await fetch_model(client, namespace, request, output, step, snapshot, dtype)

    with errors_of_export():
        written = on_cluster(target, work)
        if isinstance(written, str):
            export_from(written, "", output, step, snapshot, dtype)
        else:
            click.echo(summary(*written, dtype))


async def fetch_model(
    client: RestClient, namespace: str, wanted: ClaimRequest, output: Path, step: int | None, snapshot: str, dtype: DType
) -> tuple[TargetFile, Announcement] | str:
    """Write the model from the claim, and return the file with what the pod announced. Without a claim, return the URI of the copies of its
    snapshots, from which the caller can export. Raises CommandError, ExportError, ApiError; then there is no file."""
    target = TargetFile(output)  # before the pod is made, because it may refuse the path
    request = await claim_pod(client, namespace, wanted)
    if isinstance(request, str):
        return request
    options = ["--dtype", dtype, *([] if step is None else ["--step", str(step)]), *(["--snapshot", snapshot] if snapshot else [])]
    async with running_pod(client, request, lambda text: click.echo(text, err=True)) as pod:
        with target:
            with contextlib.ExitStack() as progress:
                receiver = _Receiver(target, progress)
                await run_export(client, request, pod, options, receiver.reader)
            target.commit()
            assert receiver.announced is not None, "a complete stream begins with it"
            return target, receiver.announced


class _Receiver:
    """Writes what the pod sends to the file, and shows a progress bar."""

    def __init__(self, target: TargetFile, shown: contextlib.ExitStack) -> None:
        self.announced: Announcement | None = None
        self._target = target
        self._shown = shown
        self._advance: Callable[[int], None]
        self.reader = StreamReader(self._begin, self._write)

    def _begin(self, about: Announcement) -> None:
        self.announced = about
        self._advance = self._shown.enter_context(progress_of(about))

    def _write(self, piece: bytes) -> None:
        self._target.write(piece)
        self._advance(len(piece))
