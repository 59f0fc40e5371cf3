"""The Secret of a part, by which it joins the job at home. Projected once for the caches. Pure.

A person brings it from the cluster of the job's home, so nothing in it is trusted before it was checked here.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diloco import contract
from pydantic import ValidationError

from diloco_operator.api import names
from diloco_operator.certificates.view import certificate_of, data_of, roots_of
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import fields, needed_string

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[-0-9A-Za-z]{1,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Home:
    """The job at home, and what it lets this part do."""

    job: contract.JobFile
    part: str
    """Name of this part."""
    roots: str
    """PEM certificates of the authorities that sign for the job."""
    identity: str = field(repr=False)
    """Key and certificate with which this cluster's operator watches the syncer, PEM."""
    signed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Unit -> its attempts that have a certificate in the Secret."""

    @property
    def host_name(self) -> str:
        """The name that the syncer's certificate must have."""
        return contract.syncer_host_name(self.job.name, self.job.namespace)


@dataclass(frozen=True, slots=True)
class PartSecret:
    name: str
    home: Home | None
    problem: str = ""
    """Why the Secret cannot be used, "" if it can."""


def project_part_secret(obj: Obj) -> PartSecret | None:
    """Project a Secret that no job owns. None if it has no job file. Raises `MalformedField`."""
    raw = fields(obj, "data")
    if contract.JOB_FILE_KEY not in raw:
        return None
    name, data = needed_string(fields(obj, "metadata"), "name", "metadata"), data_of(raw)
    try:
        return PartSecret(name, _home(data))
    except ValueError as error:
        return PartSecret(name, None, str(error))


def _home(data: Mapping[str, str]) -> Home:
    """Raises ValueError."""
    try:
        job = contract.JobFile.model_validate_json(data[contract.JOB_FILE_KEY])
    except ValidationError as error:
        raise ValueError(f"{contract.JOB_FILE_KEY} is no job file that this version reads") from error
    if not (_LABEL.fullmatch(job.name) and _LABEL.fullmatch(job.namespace) and _UID.fullmatch(job.uid)):
        raise ValueError(f"{contract.JOB_FILE_KEY} names no job: name, namespace or uid is no such name")
    roots = "".join(root.pem for root in roots_of(data))
    if not roots:
        raise ValueError(f"{contract.TLS_ROOTS_FILE} holds no certificate authority")
    identity = data.get(names.PART_IDENTITY, "")
    certificate = certificate_of(identity)
    part = contract.part_with_identity(job.uid, certificate.identity) if certificate is not None else ""
    if not _LABEL.fullmatch(part):
        raise ValueError(f"{names.PART_IDENTITY} holds no key and certificate of a part of job {job.namespace}/{job.name}")
    signed: dict[str, set[int]] = {}
    for unit, attempt in map(names.attempt_of_key, data):
        if attempt:
            signed.setdefault(unit, set()).add(attempt)
    return Home(job, part, roots, identity, {unit: frozenset(attempts) for unit, attempts in signed.items()})
