"""`kubectl diloco export`: the model of a job in a cluster, from its claim through a pod, or from the URI of its snapshots.

See docs/decisions/0140-export.md.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from diloco import contract
from diloco.export.model_file import DType
from diloco.export.stream import RECEIVED, Announcement, StreamReader
from diloco.export.target_file import TargetFile
from diloco_operator.api import names
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.rest.pod_exec import Channel
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import CommandError
from diloco_cli.export import progress_of, summary, target_path
from diloco_cli.kubectl.export_pod import MODULE, PodRequest, has_ended, mounts, no_export, no_syncer_image, running_pod, syncer_container
from diloco_cli.kubectl.jobs import find_job

_STDERR = 4096
"""So much of what the program in the pod says is kept."""


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


async def export_job(client: RestClient, namespace: str, wanted: Wanted) -> str:
    """Write the file from the claim, and say so. If there is no claim: the URI of the copies of its snapshots, from which the caller can
    export. Raises CommandError, ExportError, ApiError."""
    job = await find_job(client, namespace, wanted.job) if wanted.job else None
    claim = wanted.claim or names.volume_claim_name(wanted.job)
    try:
        found = await client.get(names.VOLUME_CLAIMS, namespace, claim)
    except NotFound as error:
        uri = _copies(job) if job is not None and not wanted.claim else ""
        if not uri:
            raise CommandError(
                f'there is no claim "{claim}" in namespace "{namespace}": there are no snapshots yet, or they were deleted with it'
            ) from error
        click.echo(f"there is no claim {claim}: this machine reads the copies of its snapshots", err=True)
        return uri
    job = job or await _job_of(client, namespace, found)
    pods = [pod for pod in (await client.list(names.PODS, namespace)).items if mounts(pod, claim) and not has_ended(pod)]
    node = _node_of(found, pods)
    request = PodRequest(
        name=f"{claim[:50].rstrip('-.')}-export-{secrets.token_hex(3)}",
        namespace=namespace,
        claim=claim,
        image=wanted.image or await _image(client, namespace, job, found),
        python=_python(_template(job)),
        node=node,
        template=_template(job),
        seconds=wanted.seconds,
    )
    where = f", on node {node}, where the claim is mounted" if node else ""
    click.echo(f"reading claim {claim} through pod {request.name} (image {request.image}){where}", err=True)
    async with running_pod(client, request, lambda text: click.echo(text, err=True)) as pod:
        target, about = await _receive(client, request, pod, wanted)
    click.echo(summary(target, about, wanted.dtype))
    return ""


# --- where from -------------------------------------------------------------------------------------------------------
def _copies(job: Obj) -> str:
    """Return the folder of this job below training.checkpoint.uri; "": it has none."""
    training = job["spec"].get("training") or {}
    uri = str((training.get("checkpoint") or {}).get("uri") or "")
    metadata = job["metadata"]
    return contract.remote_snapshots(uri, metadata["namespace"], metadata["name"], metadata["uid"]) if uri else ""


def _node_of(claim: Obj, pods: list[Obj]) -> str:
    """Return the node on which the claim is in use; "": it is not, or other nodes may mount it too. Raises CommandError if no second pod
    may."""
    modes = (claim.get("spec") or {}).get("accessModes") or ()
    users = [pod for pod in pods if pod["spec"].get("nodeName")]
    if not users or "ReadWriteMany" in modes:
        return ""
    if "ReadWriteOncePod" in modes:
        pod, name = users[0]["metadata"]["name"], claim["metadata"]["name"]
        raise CommandError(
            f"claim {name} is ReadWriteOncePod and pod {pod} uses it, so no other pod may: suspend the job (kubectl diloco suspend), or "
            "wait for its end"
        )
    return str(users[0]["spec"]["nodeName"])


def _template(job: Obj | None) -> Mapping[str, Any]:
    """Return the spec of the syncer's pod template; empty: there is none."""
    syncer = (job or {}).get("spec", {}).get("syncer") or {}
    found: Mapping[str, Any] = (syncer.get("template") or {}).get("spec") or {}
    return found


def _python(template: Mapping[str, Any]) -> str:
    """Return the interpreter with which the template starts the syncer."""
    command = [str(word) for word in syncer_container(template).get("command") or []]
    return command[0] if command[1:3] == ["-m", "diloco.syncer"] else "python"


async def _job_of(client: Client, namespace: str, claim: Obj) -> Obj | None:
    """Return the job whose claim it is; None: it is gone, or the user may not read it."""
    metadata = claim["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_JOB)
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or ()}
    owners.add((metadata.get("annotations") or {}).get(names.ANNOTATION_JOB_UID))
    if not name:
        return None
    try:
        job = await client.get(names.DILOCO_JOBS, namespace, name)
    except (NotFound, Forbidden):
        return None
    return job if job["metadata"]["uid"] in owners else None  # a later job may have the name


async def _image(client: Client, namespace: str, job: Obj | None, claim: Obj) -> str:
    """Return what the job's syncer runs, ran, or would run: of its pod, its template, the claim, or the operator's configuration. Raises
    CommandError where none of them says it."""
    if job is not None:
        with contextlib.suppress(NotFound):
            pod = await client.get(names.PODS, namespace, names.syncer_pod_name(job["metadata"]["name"]))
            if image := syncer_container(pod["spec"]).get("image"):
                return str(image)
        if image := syncer_container(_template(job)).get("image"):
            return str(image)
    metadata = claim["metadata"]
    image = (metadata.get("annotations") or {}).get(names.ANNOTATION_SYNCER_IMAGE) or await _configured_image(client)
    if not image:
        raise CommandError(
            f"no image is known that reads claim {metadata['name']}: no syncer's pod runs, neither job nor claim names one, and the "
            "ConfigMap of the operator is not there or may not be read. Name the syncer's image with --image"
        )
    return str(image)


async def _configured_image(client: Client) -> str:
    """Read the image from the ConfigMap of the operator's chart; "": there is none, or the user may not read it."""
    try:
        found = await client.list(names.CONFIG_MAPS, label_selector="app.kubernetes.io/name=diloco-operator")
    except Forbidden:
        return ""
    images = set()
    for config_map in found.items:
        with contextlib.suppress(yaml.YAMLError, AttributeError):
            images.add(str(yaml.safe_load((config_map.get("data") or {}).get("config.yaml") or "{}").get("syncerImage") or ""))
    return images.pop() if len(images) == 1 else ""


# --- the stream -------------------------------------------------------------------------------------------------------
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
    command = [request.python, *MODULE, contract.MOUNT_STATE, "--dtype", wanted.dtype, *step]
    with TargetFile(target_path(wanted.output)) as target:
        with contextlib.ExitStack() as shown:
            receiver = _Receiver(target, shown)
            try:
                program = await _run(client, request, pod, command, receiver.reader)
            except Forbidden as error:
                raise CommandError(
                    f"not allowed: running the export in pod {pod} needs get and create on pods/exec in namespace {request.namespace}"
                ) from error
        if program:
            raise CommandError(no_syncer_image(request.image) if no_export(program) else program)
        receiver.reader.end()
        target.commit()
        assert receiver.announced is not None, "a complete stream begins with it"
        return target, receiver.announced


async def _run(client: RestClient, request: PodRequest, pod: str, command: Sequence[str], reader: StreamReader) -> str:
    """Feed the program's output to the reader. What it said if it failed; "" if all came, or the connection broke."""
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
