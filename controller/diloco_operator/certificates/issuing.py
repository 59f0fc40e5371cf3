"""Makes keys and certificates. This is the only part of a reconcile that draws randomness.

See docs/decisions/0095-certificates.md.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from diloco_operator.certificates.authority import AUTHORITY_LIFETIME, BACKDATE, Authority, Leaf
from diloco_operator.certificates.view import root_of

type NewKey = Callable[[], ec.EllipticCurvePrivateKey]

_LONGEST_NAME = 64
"""Characters of a common name, by RFC 5280."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh key on P-256, from the operating system's randomness."""
    return ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Issues certificates for all jobs. `now`: the wall clock in seconds since the epoch. `lifetime`: seconds for which a pod's certificate
    is valid."""

    def __init__(self, now: Callable[[], float], lifetime: float, new_key: NewKey = new_key) -> None:
        self._now = now
        self._lifetime = lifetime
        self._new_key = new_key

    def authority(self, job_uid: str) -> Authority:
        key = self._new_key()
        name = _name(f"diloco job {job_uid}")
        certificate = (
            _of(self._issued_by(name, AUTHORITY_LIFETIME), name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        root = root_of(certificate.public_bytes(Encoding.PEM).decode())
        assert root is not None, "a new certificate can be read"
        return Authority(root, _pem(key))

    def sign(self, authority: Authority, leaf: Leaf) -> str:
        """Make one private key with its certificate, PEM."""
        return self.sign_all(authority, (leaf,))[leaf.key]

    def sign_all(self, authority: Authority, leaves: tuple[Leaf, ...]) -> dict[str, str]:
        """Make a private key and a certificate, PEM, for each leaf. They are returned by the leaf's key in the Secret."""
        if not leaves:
            return {}
        signer = load_pem_private_key(authority.key.encode(), password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey), "our authorities use P-256"
        issuer = x509.load_pem_x509_certificate(authority.root.pem.encode())
        template = (
            self._issued_by(issuer.subject, self._lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        return {leaf.key: self._leaf(template, signer, leaf) for leaf in leaves}

    def _leaf(self, template: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey, leaf: Leaf) -> str:
        """Issue a leaf. `template` has what all certificates of one signer share: to set that for each of them would take half as long
        again."""
        key = self._new_key()
        # Any holder may be a server: the leader of a unit is one for its ranks, which check the identity in place of a host name.
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH]
        if leaf.connects:
            purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        uri = x509.UniformResourceIdentifier(leaf.identity)
        certificate = (
            _of(template, _name(leaf.identity), key)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([uri, *map(_host, leaf.host_names)]), critical=False)
            .sign(signer, hashes.SHA256())
        )
        return _pem(key) + certificate.public_bytes(Encoding.PEM).decode()

    def _issued_by(self, issuer: x509.Name, lifetime: float) -> x509.CertificateBuilder:
        now = self._now()
        builder = x509.CertificateBuilder().issuer_name(issuer)
        return builder.not_valid_before(_moment(now - BACKDATE)).not_valid_after(_moment(now + lifetime))


def _of(builder: x509.CertificateBuilder, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return builder.subject_name(subject).public_key(key.public_key()).serial_number(x509.random_serial_number())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    # The end of an identity has the unit and the attempt. The name is for people only: peers check the URI.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[-_LONGEST_NAME:])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
