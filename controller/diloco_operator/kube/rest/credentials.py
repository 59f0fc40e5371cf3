"""What a client needs to talk to an API server: its address, how to verify it, and the client's own proof of identity."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """How to verify the server, and the client's certificate. Two with the same files but other contents differ."""

    ca_file: str = ""
    """Certificates that may sign the server's; "" for the ones that the machine trusts."""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str = ""
    """The name in the server's certificate, if it is not the one in its URL."""
    contents: tuple[bytes, ...] = field(default=(), repr=False)
    """The contents of the files, at the time of creation."""

    @classmethod
    def of_files(cls, *, ca_file: str = "", cert_file: str = "", key_file: str = "", verify: bool = True, server_name: str = "") -> Tls:
        """Read the files. Raises OSError if one cannot be read."""
        contents = tuple(Path(name).read_bytes() if name else b"" for name in (ca_file, cert_file, key_file))
        return cls(ca_file, cert_file, key_file, verify, server_name, contents)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file or None)
        # Python 3.13 began to reject CAs without key identifiers. Many clusters have them, and Go, thus kubectl, accepts them.
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
    """URL without a trailing slash."""
    authorization: str = field(default="", repr=False)
    """The header's value; "" for no header (a client certificate, or nothing)."""
    tls: Tls = field(default_factory=Tls)
    proxy: str = field(default="", repr=False)
    """URL of the proxy to the server, "" for none. It may contain a password."""
    expires: float | None = None
    """When they expire, in seconds since the epoch. None if that is unknown."""
