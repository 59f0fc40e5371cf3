"""Certificates that are written into Secrets and read from them again."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from diloco_operator.certificates.authority import AUTHORITY_LIFETIME, BACKDATE, Leaf
from diloco_operator.certificates.issuing import Issuer
from diloco_operator.certificates.view import CertificateSecret, project_certificates
from diloco_operator.kube.client import Obj
from diloco_operator.operator.certificate_writes import certificate_writes
from diloco_operator.plan import Create, IssueCertificates, Patch

NOW = 1_800_000_000.0
DAY = 86400.0
META = {"name": "lm-ca", "namespace": "ns", "ownerReferences": [{"uid": "uid-lm", "controller": True}]}
FOUND = IssueCertificates({"metadata": META}, "uid-lm", create_authority=True, wave=0)
LEARNER = Leaf("v5p-0-a1.pem", "diloco://uid-lm/learner/v5p-0/1")
SYNCER = Leaf("identity.pem", "diloco://uid-lm/syncer", ("lm-syncer.lm.ns.svc",), connects=False)


def issuer(lifetime: float = DAY, now: float = NOW) -> Issuer:
    return Issuer(lambda: now, lifetime)


def created(certify: IssueCertificates, by: Issuer | None = None) -> Obj:
    [write] = certificate_writes(by or issuer(), [certify])
    assert isinstance(write, Create)
    return write.obj


def read(obj: Obj) -> CertificateSecret:
    return project_certificates(obj)


def loaded(obj: Obj, key: str) -> x509.Certificate:
    pem = base64.b64decode(obj["data"][key])
    return x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])


def test_an_authority_can_be_read_back_and_sign() -> None:
    found = read(created(FOUND))
    assert found.owner == "uid-lm"
    assert found.authority is not None
    assert found.authority.root.made == NOW
    assert found.authority.root.expires == NOW + AUTHORITY_LIFETIME
    assert "PRIVATE KEY" not in repr(found)
    certificate = x509.load_pem_x509_certificate(found.authority.root.pem.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    issuer().sign(found.authority, LEARNER)


def test_a_certificate_says_who_it_is_for_and_no_more() -> None:
    authority = issuer().authority("uid-lm")
    obj = created(
        IssueCertificates({"metadata": {**META, "name": "x"}}, "uid-lm", authority=authority, leaves=(LEARNER, SYNCER)), issuer(DAY)
    )
    found = read(obj)
    learner, syncer = found.certificates["v5p-0-a1.pem"], found.certificates["identity.pem"]
    assert (learner.identity, learner.host_names, learner.expires) == ("diloco://uid-lm/learner/v5p-0/1", (), NOW + DAY)
    assert (syncer.identity, syncer.host_names) == ("diloco://uid-lm/syncer", ("lm-syncer.lm.ns.svc",))
    assert learner.authority == syncer.authority == authority.root.id == found.roots[0].id
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    for key, purposes in (("v5p-0-a1.pem", [server, client]), ("identity.pem", [server])):
        certificate = loaded(obj, key)
        assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert certificate.not_valid_before_utc.timestamp() == NOW - BACKDATE
        public = certificate.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert public.curve.name == "secp256r1"
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.root.pem.encode()))


def test_every_key_is_another() -> None:
    obj = created(IssueCertificates({"metadata": META}, "uid-lm", authority=issuer().authority("u"), leaves=(LEARNER, SYNCER)))
    assert loaded(obj, LEARNER.key).public_key() != loaded(obj, SYNCER.key).public_key()
    assert loaded(obj, LEARNER.key).serial_number != loaded(obj, SYNCER.key).serial_number


def test_names_longer_than_a_subject_may_be_are_kept_whole_in_the_identity() -> None:
    long = Leaf("x.pem", f"diloco://{'1' * 36}/learner/{'p' * 15}-999/123", (f"{'j' * 32}-syncer.{'j' * 32}.{'n' * 63}.svc",))
    obj = created(IssueCertificates({"metadata": META}, "1" * 36, authority=issuer().authority("1" * 36), leaves=(long,)))
    assert (read(obj).certificates["x.pem"].identity, read(obj).certificates["x.pem"].host_names) == (long.identity, long.host_names)


def test_the_authority_of_a_plan_signs_the_rest_of_it() -> None:
    first, second = certificate_writes(issuer(), [FOUND, IssueCertificates({"metadata": META}, "uid-lm", leaves=(LEARNER,))])
    assert isinstance(first, Create)
    assert isinstance(second, Create)
    authority = read(first.obj).authority
    assert authority is not None
    assert read(second.obj).certificates[LEARNER.key].authority == authority.root.id
    assert (first.wave, second.wave, first.fresh, second.fresh) == (0, 1, True, True)


def test_an_existing_secret_is_patched_only_at_the_version_that_was_seen() -> None:
    old, new = issuer().authority("u"), issuer().authority("u")
    wanted = IssueCertificates(
        {"metadata": META}, "u", uid="uid-s", version="42", authority=new, leaves=(LEARNER,), drop=("gone.pem",), roots=(old.root.pem,)
    )
    [write] = certificate_writes(issuer(), [wanted])
    assert isinstance(write, Patch)
    assert write.body["metadata"] == {"uid": "uid-s", "resourceVersion": "42"}
    assert write.body["data"]["gone.pem"] is None
    assert set(write.body["data"]) == {"gone.pem", LEARNER.key, "ca.crt"}
    assert [root.id for root in read({"metadata": META, "data": {"ca.crt": write.body["data"]["ca.crt"]}}).roots] == [
        new.root.id,
        old.root.id,
    ]
    assert "PRIVATE" not in repr(write)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data, other: data.pop("ca.key"),
        lambda data, other: data.pop("ca.crt"),
        lambda data, other: data.update({"ca.key": "junk"}),
        lambda data, other: data.update({"ca.crt": "anVuaw=="}),
        lambda data, other: data.update({"ca.key": other["ca.key"]}),
        lambda data, other: data.update({"ca.crt": data["ca.key"]}),
    ],
)
def test_an_authority_that_cannot_sign_is_none(spoil: Any) -> None:
    obj, other = created(FOUND), created(FOUND)
    spoil(obj["data"], other["data"])
    assert read(obj).authority is None


@pytest.mark.parametrize("text", ["", "junk", "-----BEGIN CERTIFICATE-----\nanVuaw==\n-----END CERTIFICATE-----\n"])
def test_an_unreadable_certificate_counts_as_missing(text: str) -> None:
    encoded = base64.b64encode(f"-----BEGIN PRIVATE KEY-----\n{text}".encode()).decode()
    assert not read({"metadata": META, "data": {"v5p-0-a1.pem": encoded, "w.pem": "not base64!", "ca.crt": encoded}}).certificates


def test_a_certificate_without_its_key_counts_as_missing() -> None:
    obj = created(IssueCertificates({"metadata": META}, "u", authority=issuer().authority("u"), leaves=(LEARNER,)))
    pem = base64.b64decode(obj["data"][LEARNER.key]).decode()
    obj["data"][LEARNER.key] = base64.b64encode(pem[pem.index("-----BEGIN CERTIFICATE") :].encode()).decode()
    assert not read(obj).certificates


# --- what a tenant may write ------------------------------------------------------------------------------------------
def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_block_that_never_ends_is_searched_no_further_than_the_next_dash() -> None:
    """Else a file of such blocks costs the square of its size, on the event loop of all jobs."""
    root = issuer().authority("u").root
    text = "-----BEGIN CERTIFICATE-----" * 3 + root.pem
    assert [found.id for found in read({"metadata": META, "data": {"ca.crt": base64_of(text)}}).roots] == [root.id]


@pytest.mark.parametrize(("file", "most"), [("ca.crt", 16384), ("ca.key", 512), (LEARNER.key, 16384)])
def test_a_file_that_is_larger_than_any_of_ours_is_not_loaded(file: str, most: int) -> None:
    """An RSA key of 8192 bits takes seconds to load."""

    def with_size(size: int) -> CertificateSecret:
        authority = issuer().authority("u")
        files = {"ca.crt": authority.root.pem, "ca.key": authority.key, LEARNER.key: issuer().sign(authority, LEARNER)}
        files[file] = files[file].rjust(size)
        return read({"metadata": META, "data": {key: base64_of(text) for key, text in files.items()}})

    fits, too_large = with_size(most), with_size(most + 1)
    assert (bool(fits.roots), fits.authority is not None, bool(fits.certificates)) == (True, True, True)
    # The authority needs its certificate, too.
    loaded_still = {"ca.crt": (False, False, True), "ca.key": (True, False, True), LEARNER.key: (True, True, False)}[file]
    assert (bool(too_large.roots), too_large.authority is not None, bool(too_large.certificates)) == loaded_still
