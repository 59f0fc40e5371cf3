"""Reads the certificates in Secrets. Pure: text in, data out. A certificate that cannot be read counts as missing and is issued again."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from diloco.contract import TLS_ROOTS_FILE

from diloco_operator.api.names import AUTHORITY_CERTIFICATE, AUTHORITY_KEY
from diloco_operator.certificates.authority import BACKDATE, Authority, Root
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import Fields, controller_uid, fields, needed_string, string

# Base64 has no dash. With `.*?` each BEGIN without an END would be searched to the end of the file.
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\n?")
_LARGEST_FILE, _LARGEST_KEY = 16 << 10, 512
"""Characters of a file of certificates, and of an authority's key. Ours have at most 7 KiB, that of a syncer with eight addresses, and 241.
Larger ones count as missing unread: to load an RSA key of 8192 bits, for example, takes seconds of the event loop."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of one pod or one unit: the fields that decide whether it must be renewed."""

    identity: str
    """Its URI."""
    host_names: tuple[str, ...]
    authority: str
    """`Root.id` of its issuer."""
    expires: float


@dataclass(frozen=True, slots=True)
class CertificateSecret:
    """A Secret of a job that contains certificates."""

    name: str
    uid: str
    owner: str
    """uid of the job that owns it."""
    deleting: bool
    version: str
    """resourceVersion."""
    roots: tuple[Root, ...] = ()
    """The certificates that its pods trust, in the order of the file."""
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    """By key of the Secret's data."""
    authority: Authority | None = field(default=None, repr=False)
    """The authority, if this Secret contains it; None if it cannot sign."""


def project_foreign(obj: Obj) -> CertificateSecret:
    """Project a Secret that is not the job's: its name, which is taken, and nothing of its content. Raises `MalformedField`."""
    meta = fields(obj, "metadata")
    return CertificateSecret(
        name=needed_string(meta, "name", "metadata"),
        uid=string(meta, "uid", "metadata"),
        owner=controller_uid(meta),
        deleting=bool(meta.get("deletionTimestamp")),
        version=string(meta, "resourceVersion", "metadata"),
    )


def project_certificates(obj: Obj) -> CertificateSecret:
    """Project a Secret of the job. Raises `MalformedField`."""
    data = data_of(fields(obj, "data"))
    certificates = {key: loaded for key, text in data.items() if key.endswith(".pem") and (loaded := certificate_of(text)) is not None}
    return replace(
        project_foreign(obj),
        roots=roots_of(data),
        certificates=certificates,
        authority=_authority(data),
    )


def data_of(raw: Fields) -> dict[str, str]:
    """Return the values of a Secret's data as text; "" for those that are none. Raises `MalformedField`."""
    return {key: _decoded(string(raw, key, "data", limit=_LARGEST)) for key in raw}


def roots_of(data: Mapping[str, str]) -> tuple[Root, ...]:
    """Return the authorities that a Secret's data says to trust, in the order of the file."""
    text = data.get(TLS_ROOTS_FILE, "")
    blocks = _BLOCK.findall(text) if len(text) <= _LARGEST_FILE else ()
    return tuple(root for block in blocks if (root := root_of(block)) is not None)


_LARGEST = 4 << 20
"""Characters of one value. An API server accepts 1 MiB in a whole Secret, before base64."""
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for certificates and keys that it cannot use, whatever a stranger has put into a Secret."""


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _load(text: str) -> x509.Certificate | None:
    block = _BLOCK.search(text) if len(text) <= _LARGEST_FILE else None
    try:
        return x509.load_pem_x509_certificate(block[0].encode()) if block else None
    except _UNREADABLE:
        return None


def certificate_of(text: str) -> Certificate | None:
    """Return the certificate in a file that also has its private key. None if it cannot be read."""
    loaded = _load(text)
    if loaded is None or "PRIVATE KEY-----" not in text:
        return None
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        issuer = loaded.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        return Certificate(
            identity=uris[0] if len(uris) == 1 else "",
            host_names=tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)),
            authority=(issuer or b"").hex(),
            expires=loaded.not_valid_after_utc.timestamp(),
        )
    except _UNREADABLE:
        return None


def root_of(text: str) -> Root | None:
    """Return an authority's certificate, or None if it cannot be read."""
    loaded = _load(text)
    if loaded is None:
        return None
    try:
        identifier = loaded.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.key_identifier
        made, expires = loaded.not_valid_before_utc.timestamp() + BACKDATE, loaded.not_valid_after_utc.timestamp()
    except _UNREADABLE:
        return None
    return Root(identifier.hex(), text, made, expires)


def _authority(data: Mapping[str, str]) -> Authority | None:
    if len(data.get(AUTHORITY_KEY, "")) not in range(1, _LARGEST_KEY + 1):
        return None
    root, loaded = root_of(data.get(AUTHORITY_CERTIFICATE, "")), _load(data.get(AUTHORITY_CERTIFICATE, ""))
    if root is None or loaded is None:
        return None
    try:
        key = load_pem_private_key(data[AUTHORITY_KEY].encode(), password=None)
        signs = isinstance(key, EllipticCurvePrivateKey) and key.public_key() == loaded.public_key()
    except _UNREADABLE:
        return None
    return Authority(root, data[AUTHORITY_KEY]) if signs else None
