"""TLS of /metrics: a key and a self-signed certificate of this process, so that no host of the network can read bearer tokens.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from diloco_operator.certificates.issuing import new_key

_LIFETIME = datetime.timedelta(days=3650)
"""Longer than any process lives: clients cannot check the certificate, so its end would only break them."""


def self_signed() -> ssl.SSLContext:
    """Return a server's context with a new key."""
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "diloco-operator")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + _LIFETIME)
    certificate = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("diloco-operator")]), critical=False).sign(
        key, hashes.SHA256()
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:  # the standard library reads certificates from files only
        path = Path(folder, "tls.pem")
        path.touch(mode=0o600)
        path.write_bytes(private + certificate.public_bytes(pem))
        context.load_cert_chain(path)
    return context
