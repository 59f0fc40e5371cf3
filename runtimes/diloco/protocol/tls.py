"""Mutual TLS: files that are renewed while they are in use, credentials for both ends, and reasons why TLS fails.

Each pod of a job has a directory with its own certificate and the job's authorities (`contract.ENV_TLS_DIR`). The kubelet replaces the
files with renewed ones. Both ends read them again for every connection, so a new certificate needs no restart. An open connection stays
open when its certificate expires, because the identity is checked only when it begins.

See docs/decisions/0095-certificates.md.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from diloco.contract import TLS_IDENTITY_FILE, TLS_ROOTS_FILE

_log = logging.getLogger(__name__)

_PROBE_TIMEOUT = 5.0
"""How long each step of a probe may take, seconds."""


class TlsError(Exception):
    """This process has no valid certificate, or the other end does not accept it. The message says what is wrong and what to do."""


class WrongIdentity(TlsError):
    """The certificate has another identity. Waiting for a renewal does not help."""


@dataclass(frozen=True, slots=True)
class Material:
    """What one end shows and trusts, PEM."""

    roots: bytes
    identity: bytes = field(repr=False)
    """Private key and certificate."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.roots, private_key=self.identity, certificate_chain=self.identity)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The directory with this process's certificate."""

    folder: Path

    @property
    def roots(self) -> Path:
        return self.folder / TLS_ROOTS_FILE

    @property
    def identity(self) -> Path:
        return self.folder / TLS_IDENTITY_FILE

    def read(self) -> Material:
        """Read the present files. Raises TlsError if one is missing or cannot be used."""
        try:
            material = Material(self.roots.read_bytes(), self.identity.read_bytes())
        except OSError as error:
            raise TlsError(
                f"cannot read {error.filename}: {error.strerror}. The operator mounts this directory from a Secret of the job; "
                "is the pod's volume there, and may this user read it?"
            ) from error
        self.context(ssl.PROTOCOL_TLS_CLIENT)
        return material

    def examine(self, identity: str) -> None:
        """Verify this process's certificate as the syncer would. Raises WrongIdentity if it has another identity than `identity`, TlsError
        if it is not valid now or comes from no authority that this job trusts."""
        server, client = self.context(ssl.PROTOCOL_TLS_SERVER), self.context(ssl.PROTOCOL_TLS_CLIENT)
        server.verify_mode = ssl.CERT_REQUIRED
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE  # this process is the other end, too
        try:
            shown = _shake_hands(server, client)
        except ssl.SSLCertVerificationError as error:
            raise TlsError(
                f"the certificate in {self.identity} is not good: {error.verify_message}. The operator renews it in the job's Secret; "
                "if this lasts, check the operator's log and this node's clock"
            ) from error
        uris = identities(shown)
        if uris != [identity]:
            raise WrongIdentity(
                f"the certificate in {self.identity} belongs to {', '.join(uris) or 'no identity'}, but this process is {identity}: it has "
                "another pod's Secret. Only the operator mounts them; do not mount one in the pod template"
            )

    def why_refused(self, address: str, identity: str, host_name: str) -> str:
        """Return why TLS fails, after a connection to the syncer at `address` has failed. Empty if TLS succeeds, or no server answers.

        Raises WrongIdentity.
        """
        try:
            self.examine(identity)
            return self._probe(address, host_name)
        except WrongIdentity:
            raise
        except TlsError as error:
            return str(error)

    def _probe(self, address: str, host_name: str) -> str:
        host, _, port = address.rpartition(":")
        context = self.context(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((host.strip("[]"), int(port)), _PROBE_TIMEOUT) as raw,
                context.wrap_socket(raw, server_hostname=host_name) as connection,
            ):
                received = connection.recv(1)
        except ssl.SSLCertVerificationError as error:
            return (
                f"the certificate of the syncer at {address} is not good: {error.verify_message}. It belongs to another job, or one of the "
                "two has not got its renewed files yet"
            )
        except ssl.SSLError as error:
            return f"the syncer at {address} refuses this certificate: {error.reason}"
        except OSError:
            return ""  # no server, or it went away: certificates are not the reason
        if received:
            return ""
        return (
            f"the syncer at {address} refuses this unit's certificate (its log says why): it comes from an authority that the syncer does "
            "not trust, or not yet, or it is not valid by the syncer's clock"
        )

    def context(self, protocol: int) -> ssl.SSLContext:
        """Make a context from the present files, for one end (`ssl.PROTOCOL_TLS_SERVER`, `ssl.PROTOCOL_TLS_CLIENT`) of one connection.
        Raises TlsError if a file is missing or cannot be used."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.roots)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(f"{self.roots} holds no certificates that can be read ({_detail(error)})") from error
        try:
            context.load_cert_chain(self.identity, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise TlsError(f"{self.identity} holds no private key with its certificate ({_detail(error)})") from error
        return context


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Make credentials for a server that demands a certificate from every client. Raises TlsError if the files cannot be used now.

    They are read again for every connection. If they cannot be used then, the last good ones stay in use.
    """
    first = _configuration(files.read())
    # The stubs do not know that None means "unchanged".
    return grpc.dynamic_ssl_server_credentials(first, _Fetcher(files), require_client_authentication=True)  # type: ignore[arg-type]


class _Fetcher:
    """Called by gRPC, on a thread of its own, before every handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._last: Material | None = None
        self._trouble = ""

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates. None tells gRPC to go on with the last ones."""
        try:
            material = self._files.read()
        except TlsError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.error("%s; going on with the certificate from before", error)
            return None
        self._trouble = ""
        if material == self._last:
            return None
        if self._last is not None:
            _log.info("new certificates in %s", self._files.folder)
        self._last = material
        return _configuration(material)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.identity, material.identity)], root_certificates=material.roots)


def peer_identity(auth_context: Mapping[str, Iterable[Any]]) -> str:
    """Return the URI in the certificate of the other end of an RPC (`context.auth_context()`). Empty if it has not exactly one."""
    uris = [value.decode("utf-8", "replace") for value in auth_context.get("peer_uri", ())]
    return uris[0] if len(uris) == 1 else ""


def identities(certificate: Mapping[str, Any]) -> list[str]:
    """Return the URIs in a certificate as the `ssl` module gives it (`getpeercert()`)."""
    return [name[1] for name in certificate.get("subjectAltName", ()) if name[0] == "URI"]


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Do a TLS handshake in memory, and return the client's certificate as the server sees it. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    done = [False, False]
    while not all(done):
        before = (to_server.pending, to_client.pending, *done)
        for index, end in enumerate(ends):
            if not done[index]:
                try:
                    end.do_handshake()
                    done[index] = True
                except ssl.SSLWantReadError:
                    continue
        if before == (to_server.pending, to_client.pending, *done):
            raise ssl.SSLError("the handshake does not end")
    return ends[1].getpeercert() or {}


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def _detail(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
