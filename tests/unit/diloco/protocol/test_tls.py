"""What a certificate is good for, seen from its files: one's own check, and a syncer's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest
from builders.certificates import JobCertificates
from builders.exchange import job_file
from builders.ports import held_port
from diloco.contract import learner_identity, syncer_host_name
from diloco.protocol.tls import TlsError, TlsFiles, WrongIdentity, peer_identity, server_credentials
from diloco_operator.certificates.authority import BACKDATE, Leaf

JOB = job_file()
UNIT = learner_identity(JOB.uid, "u", 1)
HOST_NAME = syncer_host_name(JOB.name, JOB.namespace)


@pytest.fixture
def certificates(tmp_path: Path) -> JobCertificates:
    return JobCertificates(tmp_path, JOB)


class Echo(grpc.GenericRpcHandler):
    """Answers with the caller's identity."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            # The stubs of the synchronous server say bytes; it gives lists, as the asynchronous one.
            return peer_identity(cast("Mapping[str, Iterable[bytes]]", context.auth_context())).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def serving(files: TlsFiles) -> Iterator[str]:
    """A server over TLS; gives its address."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", server_credentials(files))
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def call(channel: grpc.Channel) -> bytes:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/any/thing")
    return method(b"", timeout=180)


def ask(certificates: JobCertificates, address: str, files: TlsFiles) -> str:
    with certificates.channel(address, files) as channel:
        return call(channel).decode()


# --- one's own files ----------------------------------------------------------------------------------------------------
def test_a_good_certificate_passes(certificates: JobCertificates) -> None:
    certificates.learner("u").examine(UNIT)


@pytest.mark.parametrize(
    "other",
    [learner_identity(JOB.uid, "v", 1), learner_identity(JOB.uid, "u", 2), learner_identity("other", "u", 1), "diloco://x/operator"],
)
def test_a_certificate_of_another_identity_is_distinguished_from_an_invalid_one(certificates: JobCertificates, other: str) -> None:
    files = certificates.write("wrong", Leaf("", other))
    with pytest.raises(WrongIdentity, match=f"belongs to {other}, but this process is {UNIT}"):
        files.examine(UNIT)


def test_an_expired_certificate_says_what_to_check(tmp_path: Path) -> None:
    # Made long enough ago to have ended, whatever it is backdated by.
    old = JobCertificates(tmp_path, JOB, lifetime=1.0, now=lambda: time.time() - 60)
    with pytest.raises(TlsError, match=r"certificate has expired\. The operator renews it .* this node's clock"):
        old.learner("u").examine(UNIT)


def test_a_clock_that_is_some_minutes_behind_takes_a_new_certificate(tmp_path: Path) -> None:
    ahead = JobCertificates(tmp_path, JOB, now=lambda: time.time() + BACKDATE - 60)
    ahead.learner("u").examine(UNIT)
    far = JobCertificates(tmp_path, JOB, now=lambda: time.time() + BACKDATE + 60)
    with pytest.raises(TlsError, match="not yet valid"):
        far.learner("u").examine(UNIT)


def test_a_certificate_of_an_authority_that_is_not_trusted_does_not_pass(certificates: JobCertificates, tmp_path: Path) -> None:
    stranger = JobCertificates(tmp_path / "stranger", JOB)
    files = certificates.write("mixed", Leaf("", UNIT), roots=stranger.authority.root.pem)
    with pytest.raises(TlsError, match=r"unable to get local issuer certificate|signature failure"):
        files.examine(UNIT)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files: files.identity.unlink(), r"cannot read .*identity\.pem: No such file or directory.* Secret of the job"),
        (lambda files: files.roots.unlink(), r"cannot read .*ca\.crt: No such file"),
        (lambda files: files.identity.write_text("junk"), r"identity\.pem holds no private key with its certificate"),
        (lambda files: files.identity.write_text(files.roots.read_text()), r"identity\.pem holds no private key"),
        (lambda files: files.roots.write_text("junk"), r"ca\.crt holds no certificates"),
    ],
)
def test_files_that_cannot_be_used_are_named(certificates: JobCertificates, spoil: Callable[[TlsFiles], object], message: str) -> None:
    files = certificates.learner("u")
    spoil(files)
    with pytest.raises(TlsError, match=message):
        files.read()


# --- against a server ---------------------------------------------------------------------------------------------------
def test_a_server_learns_who_calls(certificates: JobCertificates) -> None:
    with serving(certificates.syncer()) as address:
        assert ask(certificates, address, certificates.learner("u", 3)) == learner_identity(JOB.uid, "u", 3)
        assert certificates.learner("u").why_refused(address, UNIT, HOST_NAME) == ""


def test_a_server_accepts_no_client_without_a_certificate(certificates: JobCertificates) -> None:
    with serving(certificates.syncer()) as address:
        credentials = grpc.ssl_channel_credentials(certificates.authority.root.pem.encode())
        options = [("grpc.ssl_target_name_override", HOST_NAME)]
        with (
            grpc.secure_channel(address, credentials, options=options) as channel,
            pytest.raises(grpc.RpcError, match="UNAVAILABLE"),
        ):
            call(channel)
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            call(channel)


def test_a_learner_with_another_jobs_certificate_is_refused(certificates: JobCertificates, tmp_path: Path) -> None:
    stranger = JobCertificates(tmp_path / "stranger", JOB)
    both = certificates.authority.root.pem + stranger.authority.root.pem
    # It trusts this job's syncer, and says the right thing of itself; but this job's authority did not sign it.
    files = stranger.write("u", Leaf("", UNIT), roots=both)
    with serving(certificates.syncer()) as address:
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            ask(certificates, address, files)
        assert "refuses this unit's certificate" in files.why_refused(address, UNIT, HOST_NAME)


def test_a_learner_does_not_connect_to_another_jobs_syncer(certificates: JobCertificates, tmp_path: Path) -> None:
    stranger = JobCertificates(tmp_path / "stranger", JOB)
    with serving(stranger.syncer()) as address:
        with pytest.raises(grpc.RpcError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(certificates, address, certificates.learner("u"))
        assert "It belongs to another job" in certificates.learner("u").why_refused(address, UNIT, HOST_NAME)


def test_a_learner_cannot_pass_for_the_syncer(certificates: JobCertificates) -> None:
    with serving(certificates.learner("u")) as address, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        ask(certificates, address, certificates.learner("v"))


def test_the_syncers_certificate_is_no_learners(certificates: JobCertificates) -> None:
    with serving(certificates.syncer()) as address, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        ask(certificates, address, certificates.syncer())


def test_without_a_server_certificates_are_not_to_blame(certificates: JobCertificates) -> None:
    port = held_port()
    assert certificates.learner("u").why_refused(f"127.0.0.1:{port}", UNIT, HOST_NAME) == ""


def test_a_renewed_certificate_serves_without_a_restart(certificates: JobCertificates, tmp_path: Path) -> None:
    # The first ran out before it is used at all: what answers is the renewed one.
    clock = [time.time() - 60]
    certificates = JobCertificates(tmp_path / "renewed", JOB, lifetime=1.0, now=lambda: clock[0])
    certificates.authority = JobCertificates(tmp_path, JOB).authority
    with serving(certificates.syncer()) as address:
        clock[0] = time.time() + 60
        client = certificates.learner("u")
        with pytest.raises(grpc.RpcError, match="certificate has expired"):
            ask(certificates, address, client)
        certificates.syncer()
        assert ask(certificates, address, client) == UNIT


def test_a_changed_authority_is_trusted_without_a_restart(certificates: JobCertificates, tmp_path: Path) -> None:
    successor = JobCertificates(tmp_path / "successor", JOB)
    both = certificates.authority.root.pem + successor.authority.root.pem
    files = certificates.syncer()
    client = successor.write("u", Leaf("", UNIT), roots=both)
    with serving(files) as address:
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            ask(certificates, address, client)
        files.roots.write_text(both)
        assert ask(certificates, address, client) == UNIT


def test_a_server_goes_on_with_what_it_has_while_its_files_are_gone(
    certificates: JobCertificates, caplog: pytest.LogCaptureFixture
) -> None:
    files = certificates.syncer()
    with serving(files) as address:
        files.identity.unlink()
        for _ in range(2):
            assert ask(certificates, address, certificates.learner("u")) == UNIT
        assert [record.message for record in caplog.records if "going on with the certificate from before" in record.message] == [
            record.message for record in caplog.records
        ]
        assert len(caplog.records) == 1
