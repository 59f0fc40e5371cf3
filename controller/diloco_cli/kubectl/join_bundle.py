"""`kubectl diloco join-bundle`: what a learner outside the job's cluster needs, as a folder.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from diloco import contract
from diloco_operator.api import names
from diloco_operator.api.addresses import Address
from diloco_operator.api.job import load
from diloco_operator.certificates.view import certificate_of
from diloco_operator.kube.client import Client
from diloco_operator.kube.fields import contents
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.timestamps import format_timestamp

from diloco_cli.cluster import CommandError, Target, on_cluster, target_options
from diloco_cli.jobs import find_job
from diloco_cli.kubectl.join_files import PRIVATE, PUBLIC, awaited, decoded, job_file_of, syncer_address, timeout_option, write_files


@click.command(name="join-bundle", short_help="Write what a learner outside the cluster needs to join a job.")
@click.argument("job")
@click.argument("learner")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Folder to write. Default: ./JOB-LEARNER."
)
@click.option(
    "--address",
    default="",
    metavar="HOST[:PORT]",
    help="Address at which this learner finds the syncer. Default: the one that the job says.",
)
@timeout_option
@target_options
def join_bundle(target: Target, job: str, learner: str, output: Path | None, address: str, timeout: float) -> None:
    """Write a folder with all that LEARNER, one of spec.learners.outside of JOB, needs to join from another cluster or machine: its
    certificate, the job file, and the syncer's address. `diloco-launch --bundle FOLDER PROGRAM` starts a program with it.

    The folder holds a private key. Run the command again before the certificate ends: a learner that runs reads the new files.
    """
    folder = output or Path(f"{job}-{learner}")

    async def work(client: RestClient, namespace: str) -> None:
        files, address_of, good_until = await read_bundle(client, namespace, job, learner, address, seconds=timeout)
        await asyncio.to_thread(write_files, folder, files)
        click.echo(f"{folder}: joins {job} at {address_of}; its certificate is good until {format_timestamp(good_until)}")
        click.echo(f"on the machine of the learner: diloco-launch --bundle {folder.name} train.py")

    on_cluster(target, work)


async def read_bundle(
    client: Client, namespace: str, name: str, learner: str, given: str, *, seconds: float
) -> tuple[dict[str, tuple[bytes, int]], Address, float]:
    """Return content and mode of each file, the syncer's address, and when the certificate ends (seconds since the epoch). Waits for what
    the operator or the cluster still has to make. Raises `CommandError`."""
    job = await find_job(client, namespace, name)
    outside = load(job).spec.learners.outside
    if learner not in outside:
        known = f"it has: {', '.join(outside)}" if outside else "it has none"
        raise CommandError(f'job "{name}" has no learner "{learner}" in spec.learners.outside; {known}. Add it there first')
    key = names.outside_key(learner)
    job_file = await job_file_of(client, job, seconds)
    secret = await awaited(client, job, names.SECRETS, names.outside_secret_name(name), seconds, lambda obj: key in contents(obj, "data"))
    address = await syncer_address(client, job, given, seconds)
    identity = decoded(secret, key)
    certificate = certificate_of(identity.decode(errors="replace"))
    if certificate is None:
        raise CommandError(f"Secret {names.outside_secret_name(name)} holds no certificate for {learner}; see the operator's log")
    bundle = contract.Bundle(unit=learner, attempt=names.OUTSIDE_ATTEMPT, syncer=str(address))
    files = {
        contract.JOB_FILE_KEY: (job_file.encode(), PUBLIC),
        contract.TLS_ROOTS_FILE: (decoded(secret, contract.TLS_ROOTS_FILE), PUBLIC),
        contract.TLS_IDENTITY_FILE: (identity, PRIVATE),
        contract.BUNDLE_FILE: (bundle.model_dump_json(by_alias=True, indent=2).encode(), PUBLIC),
    }
    return files, address, certificate.expires
