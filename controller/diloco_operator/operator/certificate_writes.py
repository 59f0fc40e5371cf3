"""Turns the certificates that a plan asks for (`plan.IssueCertificates`) into writes of Secrets.

See docs/decisions/0095-certificates.md.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from diloco.contract import TLS_ROOTS_FILE

from diloco_operator.api import names
from diloco_operator.api.names import AUTHORITY_CERTIFICATE, AUTHORITY_KEY
from diloco_operator.certificates.authority import Authority
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.plan import Create, IssueCertificates, Patch


def certificate_writes(issuer: Issuer, to_issue: Iterable[IssueCertificates]) -> Iterator[Create | Patch]:
    """Make the certificates of a plan and yield one write for each Secret. A certificate takes about 0.15 ms of CPU time, so a caller with
    other work does it between two writes."""
    fresh: Authority | None = None
    for wanted in to_issue:
        if wanted.create_authority:
            fresh = issuer.authority(wanted.job_uid)
            yield _create(wanted, {AUTHORITY_CERTIFICATE: fresh.root.pem, AUTHORITY_KEY: fresh.key})
            continue
        authority = wanted.authority or fresh
        assert authority is not None, "a plan creates an authority before it needs it"
        data: dict[str, str | None] = dict.fromkeys(wanted.drop)
        data |= issuer.sign_all(authority, wanted.leaves)
        data[TLS_ROOTS_FILE] = authority.root.pem + "".join(wanted.roots)
        yield _patch(wanted, data) if wanted.uid else _create(wanted, data)


def _create(wanted: IssueCertificates, data: dict[str, str | None]) -> Create:
    obj = {**wanted.obj, "type": "Opaque", "data": _encoded(data)}
    return Create(names.SECRETS, obj, wave=wanted.wave, fresh=True)


def _patch(wanted: IssueCertificates, data: dict[str, str | None]) -> Patch:
    meta = wanted.obj["metadata"]
    body = {"metadata": {"uid": wanted.uid, "resourceVersion": wanted.version}, "data": _encoded(data)}
    return Patch(names.SECRETS, meta["namespace"], meta["name"], body, wave=wanted.wave)


def _encoded(data: dict[str, str | None]) -> dict[str, str | None]:
    return {key: None if text is None else base64.b64encode(text.encode()).decode() for key, text in data.items()}
