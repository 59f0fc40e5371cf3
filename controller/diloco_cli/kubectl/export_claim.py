"""Which claim holds the snapshots of a job in a cluster, and the pod that can read it.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from diloco import contract
from diloco_operator.api import names
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj
from diloco_operator.kube.pods import has_ended
from diloco_operator.program.duration import Duration
from diloco_operator.program.yaml_reader import BadYaml, load
from diloco_operator.timeouts import EXPORT

from diloco_cli.cluster import CommandError
from diloco_cli.jobs import find_job
from diloco_cli.kubectl.export_pod import PodRequest, mounts, syncer_container


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Which claim the user wants to read, and how."""

    job: str
    """"" if only a claim was given."""
    claim: str = ""
    """"" for the claim of the job."""
    image: str = ""
    """"" for the image of the job's syncer."""
    seconds: float = EXPORT.whole


def claim_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add JOB, --claim, --image and --timeout to a command that reads a claim through a pod. The command gets them as `request`."""

    @click.argument("job", default="")
    @click.option("--claim", metavar="NAME", default="", help="Read this claim, for instance one that was kept after its job.")
    @click.option("--image", metavar="IMAGE", default="", help="Image of the pod. Default: that of the job's syncer.")
    @click.option(
        "--timeout", type=Duration(above_zero=True), default=f"{EXPORT.whole / 3600:.0f}h", show_default=True, metavar="DURATION",
        help="How long it may take.",
    )  # fmt: skip
    @functools.wraps(command)
    def wrapped(job: str, claim: str, image: str, timeout: float, **rest: Any) -> Any:
        if not job and not claim:
            raise click.UsageError("give a JOB, or --claim NAME")
        return command(request=ClaimRequest(job, claim, image, timeout), **rest)

    return wrapped


async def claim_pod(client: Client, namespace: str, wanted: ClaimRequest) -> PodRequest | str:
    """Return the pod that reads the claim, and tell the user. Without a claim, return the URI of the copies of its snapshots, from which
    the caller can read. Raises CommandError, ApiError."""
    job = await find_job(client, namespace, wanted.job) if wanted.job else None
    claim = wanted.claim or names.volume_claim_name(wanted.job)
    try:
        volume_claim = await client.get(names.VOLUME_CLAIMS, namespace, claim)
    except NotFound as error:
        uri = _copies(job) if job is not None and not wanted.claim else ""
        if not uri:
            raise CommandError(
                f'there is no claim "{claim}" in namespace "{namespace}": there are no snapshots yet, or they were deleted with it'
            ) from error
        click.echo(f"there is no claim {claim}: this machine reads the copies of its snapshots", err=True)
        return uri
    job = job or await _job_of(client, namespace, volume_claim)
    pods = [pod for pod in (await client.list(names.PODS, namespace)).items if mounts(pod, claim) and not has_ended(pod)]
    node = _node_of(volume_claim, pods)
    request = PodRequest(
        name=f"{claim[:50].rstrip('-.')}-export-{secrets.token_hex(3)}",
        namespace=namespace,
        claim=claim,
        image=wanted.image or await _image(client, namespace, job, volume_claim),
        python=_python(_template(job)),
        node=node,
        template=_template(job),
        seconds=wanted.seconds,
    )
    where = f", on node {node}, where the claim is mounted" if node else ""
    click.echo(f"reading claim {claim} through pod {request.name} (image {request.image}){where}", err=True)
    return request


def _copies(job: Obj) -> str:
    """URI of the job's snapshots below training.checkpoint.uri, or "" if the job has none."""
    training = job["spec"].get("training") or {}
    uri = str((training.get("checkpoint") or {}).get("uri") or "")
    metadata = job["metadata"]
    return contract.remote_snapshots(uri, metadata["namespace"], metadata["name"], metadata["uid"]) if uri else ""


def _node_of(claim: Obj, pods: list[Obj]) -> str:
    """The node whose pods use the claim, if no other can mount it, else "". Raises CommandError if the claim admits no second pod."""
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
    """Spec of the syncer's pod template. Empty if there is no job or no template."""
    syncer = (job or {}).get("spec", {}).get("syncer") or {}
    template: Mapping[str, Any] = (syncer.get("template") or {}).get("spec") or {}
    return template


def _python(template: Mapping[str, Any]) -> str:
    """The interpreter with which the template starts the syncer, or `python`."""
    command = [str(word) for word in syncer_container(template).get("command") or []]
    return command[0] if command[1:3] == ["-m", "diloco.syncer"] else "python"


async def _job_of(client: Client, namespace: str, claim: Obj) -> Obj | None:
    """The job that owns the claim. None if it is gone or the user may not read it."""
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
    return job if job["metadata"]["uid"] in owners else None  # a later job may have the same name


async def _image(client: Client, namespace: str, job: Obj | None, claim: Obj) -> str:
    """The syncer's image, from its pod, its template, the claim, or the operator's configuration. Raises CommandError if none names one."""
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
    """The image in the ConfigMap of the operator's chart. "" if there is none, several differ, or the user may not read it."""
    try:
        config_maps = await client.list(names.CONFIG_MAPS, label_selector="app.kubernetes.io/name=diloco-operator")
    except Forbidden:
        return ""
    images = set()
    for config_map in config_maps.items:
        with contextlib.suppress(BadYaml, AttributeError):
            images.add(str(load((config_map.get("data") or {}).get("config.yaml") or "{}").get("syncerImage") or ""))
    return images.pop() if len(images) == 1 else ""
