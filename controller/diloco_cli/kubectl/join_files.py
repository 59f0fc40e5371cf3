"""What learners in other clusters and on machines of none need of a job: read from the job's cluster, and written as files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from diloco import contract
from diloco_operator.api import names
from diloco_operator.api.addresses import Address, parse_address
from diloco_operator.api.job import load
from diloco_operator.kube.client import Client, NotFound, Obj
from diloco_operator.kube.fields import contents, controller_uid
from diloco_operator.program.duration import Duration
from diloco_operator.reconcile.children.outside import external_address
from diloco_operator.reconcile.observe.children import ingress_of

from diloco_cli.cluster import CommandError

PRIVATE: Final = 0o600
"""Mode of a file with a private key."""
PUBLIC: Final = 0o644
_POLL_SECONDS = 1.0


timeout_option = click.option(
    "--timeout",
    type=Duration(above_zero=True),
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for certificates and address.",
)


async def job_file_of(client: Client, job: Obj, seconds: float) -> str:
    name = names.config_map_name(job["metadata"]["name"])
    config = await awaited(client, job, names.CONFIG_MAPS, name, seconds, lambda obj: bool(contents(obj, "data")))
    return str(config["data"][contract.JOB_FILE_KEY])


async def syncer_address(client: Client, job: Obj, given: str, seconds: float) -> Address:
    name, spec = job["metadata"]["name"], load(job).spec
    try:
        if given or spec.syncer.external_address:
            return parse_address(given or spec.syncer.external_address)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if spec.syncer.load_balancer is None:
        raise CommandError(
            f'job "{name}" says no address at which learners outside its cluster find its syncer: set spec.syncer.externalAddress or '
            "spec.syncer.loadBalancer, or give --address"
        )
    service = await awaited(client, job, names.SERVICES, names.external_service_name(name), seconds, lambda obj: bool(ingress_of(obj)))
    address = external_address("", ingress_of(service))
    assert address is not None, "it was awaited"
    return address


async def awaited(client: Client, job: Obj, resource: Any, name: str, seconds: float, holds: Callable[[Obj], bool]) -> Obj:
    """Return this object of the job once `holds` is true of it. Raises `CommandError` if it is not after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            obj = await client.get(resource, job["metadata"]["namespace"], name)
            # What an earlier job of this name left stays for a while.
            if controller_uid(obj["metadata"]) != job["metadata"]["uid"]:
                lacks = "belongs to another object"
            elif holds(obj):
                return obj
            else:
                lacks = "lacks what the operator or the cluster has to add"
        except NotFound:
            lacks = "does not exist"
        if asyncio.get_running_loop().time() > deadline:
            raise CommandError(f"{resource.kind} {name} {lacks} after {seconds:.0f} s; kubectl diloco doctor says what keeps the job")
        await asyncio.sleep(_POLL_SECONDS)


def decoded(secret: Obj, key: str) -> bytes:
    try:
        return base64.b64decode(contents(secret, "data").get(key, ""), validate=True)
    except (binascii.Error, TypeError) as error:
        raise CommandError(f"Secret {secret['metadata']['name']} has no readable {key}") from error


def write_files(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write or replace the files, each as a whole, since a learner may read them at any time. The authorities come before the certificate.
    Raises `CommandError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, (content, mode) in files.items():
            fresh = folder / f".{name}.new"
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
            fresh.replace(folder / name)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}") from error
