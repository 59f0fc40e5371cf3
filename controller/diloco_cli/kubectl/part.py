"""`kubectl diloco part`: a part of a job for another cluster, as a manifest and a Secret.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import click
from diloco import contract
from diloco_operator.api import names
from diloco_operator.api.job import load
from diloco_operator.api.spec import Part, Spec
from diloco_operator.certificates.view import certificate_of
from diloco_operator.kube.client import ApiError, Client, Obj
from diloco_operator.kube.fields import contents
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.children.part_manifest import secret_data

from diloco_cli.cluster import CommandError, Target, on_cluster, target_options
from diloco_cli.jobs import change_job, find_job, reference
from diloco_cli.kubectl.join_files import PRIVATE, PUBLIC, awaited, decoded, job_file_of, syncer_address, timeout_option, write_files
from diloco_cli.kubectl.part_file import check_part, manifest_of, read_pools, updated
from diloco_cli.manifests import ManifestError, load_manifests
from diloco_cli.pool_option import PoolRequest
from diloco_cli.yaml_text import yaml_text

_SECRET, _MANIFEST = "certificates.yaml", "job.yaml"
"""Their names are in the order in which kubectl applies them: a job without its Secret would say that it lacks it."""
_BY_HOME = "spec.training, spec.syncer.at, the list of pools and each learners.max"
"""What `part_file.updated` changes, in words."""


@click.command(short_help="Write the part of a job that another cluster runs.")
@click.argument("job")
@click.option("--cluster", required=True, metavar="NAME", help="Name of the other cluster: the part's name in spec.parts.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="KIND=UNITS",
    help="A pool of the part, as for diloco submit. Without it only the Secret is written.",
)
@click.option(
    "--template", default="", metavar="POOL", help="Pool of the job whose pod template to take. Default: one of the same hardware."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Folder to write. Default: ./JOB-NAME."
)
@click.option(
    "--address",
    default="",
    metavar="HOST[:PORT]",
    help="Address at which the other cluster finds the syncer. Default: the one that the job says.",
)
@timeout_option
@target_options
def part(
    target: Target, job: str, cluster: str, pools: tuple[str, ...], template: str, output: Path | None, address: str, timeout: float
) -> None:
    """Write what the cluster NAME needs to run a part of JOB: a DiLoCoJob whose syncer is here, and a Secret with its certificates. There
    `kubectl apply --server-side -f FOLDER` starts it. With --pool the part is added to spec.parts of JOB, or gets these pools. What they
    leave open, such as a TPU's topology, the pools of JOB decide. Of a job.yaml that is there, only what JOB decides changes.

    The Secret holds private keys, for the next attempts of each unit. Run the command again, without --pool, before they are used up or
    their certificates end, and apply the Secret.
    """
    folder = output or Path(f"{job}-{cluster}")

    async def work(client: RestClient, namespace: str) -> None:
        await write_part(client, namespace, job, cluster, pools, template=template, folder=folder, address=address, seconds=timeout)

    on_cluster(target, work)


async def write_part(
    client: Client,
    namespace: str,
    job: str,
    cluster: str,
    pools: Sequence[str],
    *,
    template: str,
    folder: Path,
    address: str,
    seconds: float,
) -> None:
    """Write the part's Secret, and with `pools` (the values of --pool) also its manifest, after the job at home has the part. Raises
    `CommandError`."""
    home = await find_job(client, namespace, job)
    wanted = read_pools(pools, home, cluster)
    before = await asyncio.to_thread(_read_manifest, folder / _MANIFEST, job, wanted) if wanted else None
    if wanted:
        await declare_part(client, namespace, job, cluster, wanted)
    secret, good_until = await read_secret(client, namespace, job, cluster, seconds=seconds)
    files, kept = {_SECRET: (yaml_text([secret]).encode(), PRIVATE)}, ""
    if wanted:
        at = {"address": str(await syncer_address(client, home, address, seconds)), "secretName": secret["metadata"]["name"]}
        fresh = manifest_of(home, _training(secret), wanted, at, template)
        manifest = fresh if before is None else updated(before, fresh)
        if manifest != before:
            files[_MANIFEST] = (yaml_text([manifest]).encode(), PUBLIC)
        if before is not None:
            now = "nothing that home decides has changed" if manifest == before else f"only {_BY_HOME} are now as home has them"
            kept = f"{folder / _MANIFEST} was kept: {now}"
    await asyncio.to_thread(write_files, folder, files)
    click.echo(f"{folder}: part {cluster} of {job}; its certificates are good until {format_timestamp(good_until)}")
    if kept:
        click.echo(kept)
    click.echo(f"in the cluster {cluster}: kubectl apply --server-side -f {folder}")


async def declare_part(client: Client, namespace: str, name: str, cluster: str, pools: Sequence[PoolRequest]) -> None:
    """Add the part to spec.parts, or give it these pools. Raises `CommandError` if the API server refuses it."""
    wanted: Obj = {"name": cluster, "pools": [{"name": pool.name, "units": pool.units} for pool in pools]}

    def change(job: Obj) -> Obj | None:
        parts: list[Obj] = list(job["spec"].get("parts") or [])
        if wanted in parts:
            return None
        changed = [wanted if each["name"] == cluster else each for each in parts]
        return {"spec": {"parts": changed if wanted in changed else [*changed, wanted]}}

    try:
        before = await change_job(client, namespace, name, change)
    except ApiError as error:
        raise CommandError(f"{reference(name)} cannot get the part {cluster}: {error}") from error
    if change(before) is None:
        return
    units = ", ".join(f"{pool.units} of pool {pool.name}" for pool in pools)
    click.echo(f"{reference(name)}: part {cluster} may have {units}")


async def read_secret(client: Client, namespace: str, name: str, cluster: str, *, seconds: float) -> tuple[Obj, float]:
    """Return the Secret for the other cluster, and when its certificates end (seconds since the epoch). Waits until the operator has signed
    for every unit of the part. Raises `CommandError`."""
    job = await find_job(client, namespace, name)
    declared = _part(load(job).spec, cluster)
    if declared is None:
        raise CommandError(f'job "{name}" has no part "{cluster}" in spec.parts; give its pools by --pool KIND=UNITS')
    job_file = await job_file_of(client, job, seconds)

    def complete(secret: Obj) -> bool:
        signed = {names.attempt_of_key(key)[0] for key in contents(secret, "data")}
        return names.PART_IDENTITY in contents(secret, "data") and signed.issuperset(declared.units)

    at_home = await awaited(client, job, names.SECRETS, names.part_secret_name(name, cluster), seconds, complete)
    certificate = certificate_of(decoded(at_home, names.PART_IDENTITY).decode(errors="replace"))
    if certificate is None:
        raise CommandError(f"Secret {names.part_secret_name(name, cluster)} holds no certificate for the part; see the operator's log")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.home_secret_name(name), "labels": {names.LABEL_JOB: name}},
        "data": secret_data(contents(at_home, "data"), job_file),
    }
    return secret, certificate.expires


def _part(spec: Spec, cluster: str) -> Part | None:
    return next((each for each in spec.parts if each.name == cluster), None)


def _training(secret: Obj) -> Obj:
    training: Obj = json.loads(decoded(secret, contract.JOB_FILE_KEY))["training"]
    return training


def _read_manifest(path: Path, job: str, pools: Sequence[PoolRequest]) -> Obj | None:
    """Return the part in the file, None if there is no file. Raises `CommandError` if it is no part of this job with such pools."""
    if not path.exists():
        return None
    try:
        manifests = load_manifests([path])
        if len(manifests) > 1:
            raise ValueError(f"it has {len(manifests)} DiLoCoJobs")
        check_part(manifests[0].obj, job, pools)
    except (ManifestError, ValueError) as error:
        problem = str(error.problems[0]) if isinstance(error, ManifestError) else f"{path}: {error}"
        raise CommandError(f"{problem}. This file would be changed, not replaced: mend it, or give another folder by --output") from error
    return manifests[0].obj
