"""`kubectl diloco export`: the model of a job in a cluster, from its claim through a pod, or from the URI of its snapshots.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from diloco.export.model_file import DType
from diloco.export.stream import Announcement, StreamReader
from diloco.export.target_file import TargetFile
from diloco_operator.kube.rest import RestClient
from diloco_operator.timeouts import EXPORT

from diloco_cli.commands.export import progress_of, summary, target_path
from diloco_cli.kubectl.export_claim import ClaimRequest, claim_pod
from diloco_cli.kubectl.export_pod import PodRequest, running_pod
from diloco_cli.kubectl.export_program import run_export


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for."""

    job: str
    """"": only a claim was given."""
    claim: str
    """"": that of the job."""
    output: Path
    step: int | None
    dtype: DType
    image: str
    """"": that of the job's syncer."""
    seconds: float = EXPORT.whole
    snapshot: str = ""
    """"": the newest."""


async def export_job(client: RestClient, namespace: str, wanted: Wanted) -> str:
    """Write the file from the claim, and say so. If there is no claim: the URI of the copies of its snapshots, from which the caller can
    export. Raises CommandError, ExportError, ApiError."""
    written = await fetch_model(client, namespace, wanted)
    if isinstance(written, str):
        return written
    click.echo(summary(*written, wanted.dtype))
    return ""


async def fetch_model(client: RestClient, namespace: str, wanted: Wanted) -> tuple[TargetFile, Announcement] | str:
    """Return the written file, and what it holds; or the URI, as `export_job` does."""
    request = await claim_pod(client, namespace, ClaimRequest(wanted.job, wanted.claim, wanted.image, wanted.seconds))
    if isinstance(request, str):
        return request
    async with running_pod(client, request, lambda text: click.echo(text, err=True)) as pod:
        return await _receive(client, request, pod, wanted)


class _Receiver:
    """Writes what comes out of the pod to the file, behind a bar."""

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


async def _receive(client: RestClient, request: PodRequest, pod: str, wanted: Wanted) -> tuple[TargetFile, Announcement]:
    """Return the written file, and what the pod said of it. Raises CommandError, ExportError, ApiError; then there is no file."""
    step = [] if wanted.step is None else ["--step", str(wanted.step)]
    snapshot = ["--snapshot", wanted.snapshot] if wanted.snapshot else []
    with TargetFile(target_path(wanted.output)) as target:
        with contextlib.ExitStack() as shown:
            receiver = _Receiver(target, shown)
            await run_export(client, request, pod, ["--dtype", wanted.dtype, *step, *snapshot], receiver.reader)
        target.commit()
        assert receiver.announced is not None, "a complete stream begins with it"
        return target, receiver.announced
