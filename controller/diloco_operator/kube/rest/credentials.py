"""What it takes to talk to an API server: where it is, how it proves itself, how the client does."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server is checked, and what the client shows. Two of the same files with other contents differ."""

    ca_file: str = ""
    """"" for the certificates that the machine trusts."""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str = ""
    """The name that the server's certificate must carry where it is not the one in its URL."""
    contents: tuple[bytes, ...] = field(default=(), repr=False)
    """Of the files, as they were when this was made."""

    @classmethod
    def of_files(cls, *, ca_file: str = "", cert_file: str = "", key_file: str = "", verify: bool = True, server_name: str = "") -> Tls:
        """Raises OSError for a file that cannot be read."""
        contents = tuple(Path(name).read_bytes() if name else b"" for name in (ca_file, cert_file, key_file))
        return cls(ca_file, cert_file, key_file, verify, server_name, contents)

    def context(self) -> ssl.SSLContext:
        """Raises OSError (`ssl.SSLError` is one) for files that are missing or hold no certificates."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        # Python 3.13 began to refuse CAs without key identifiers, which many clusters have and Go, so kubectl, accepts.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


@dataclass(frozen=True, slots=True)
class Credentials:
    server: str
    """URL, without a slash at its end."""
    authorization: str = field(default="", repr=False)
    """The header's value; "" for none (a client certificate, or nothing)."""
    tls: Tls = field(default_factory=Tls)
    proxy: str = field(default="", repr=False)
    """URL of the proxy to the server, "" for none. May hold a password."""
    expires: float | None = None
    """When they end, in seconds since the epoch, as far as that is known."""
