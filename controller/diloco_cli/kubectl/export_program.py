"""Runs the export in a pod that mounts a claim, and reads what it prints.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from diloco import contract
from diloco.export.stream import RECEIVED
from diloco_operator.api import names
from diloco_operator.kube.client import Forbidden
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.rest.pod_exec import Channel
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.export_pod import MODULE, PodRequest, no_export, no_syncer_image

_STDERR = 4096
"""Bytes of the program's standard error that are kept."""


class Reader(Protocol):
    """Parses what the program prints, in pieces of any size."""

    @property
    def complete(self) -> bool:
        """Whether everything has come."""
        ...

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises ExportError if the export would not print this."""
        ...

    def end(self) -> None:
        """No more will come. Raises ExportError if something is missing."""
        ...


async def run_export(client: RestClient, request: PodRequest, pod: str, arguments: Sequence[str], reader: Reader) -> None:
    """Run `python -m diloco.export` with these arguments on the claim until the reader is complete. Raises CommandError, ExportError,
    ApiError."""
    command = [request.python, *MODULE, contract.MOUNT_STATE, *arguments]
    try:
        failure = await _run(client, request, pod, command, reader)
    except Forbidden as error:
        raise CommandError(
            f"not allowed: running the export in pod {pod} needs get and create on pods/exec in namespace {request.namespace}"
        ) from error
    if failure:
        raise CommandError(no_syncer_image(request.image) if no_export(failure) else failure)
    reader.end()


async def _run(client: RestClient, request: PodRequest, pod: str, command: Sequence[str], reader: Reader) -> str:
    """Feed the program's output to the reader. Returns what the program said if it failed; "" if all came or the connection broke."""
    errors = bytearray()
    async with client.pod_exec(request.namespace, pod, command, container=names.EXPORT_CONTAINER, silence=EXPORT.silence) as program:
        async for channel, piece in program.output():
            if channel is Channel.STDERR:
                errors += piece[: _STDERR - len(errors)]
                continue
            reader.feed(piece)
            if reader.complete:
                await program.write(RECEIVED)
                return ""
    if program.ended is None:
        return ""
    return errors.decode(errors="replace").strip() or f"the export in pod {pod} ended early: {program.ended.message}"
