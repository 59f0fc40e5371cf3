"""A job's certificate authority as plain data, so that a plan can carry it to the code that signs.

See docs/decisions/0095-certificates.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BACKDATE = 3600.0
"""Seconds before its creation from which a certificate is valid, since the clocks of its readers differ."""
AUTHORITY_LIFETIME = 10 * 365 * 86400.0
"""Seconds. If a job did run longer, its authority would be renewed in time (reconcile.children.certificates)."""


@dataclass(frozen=True, slots=True)
class Root:
    """A certificate that a job trusts. Times are seconds since the epoch."""

    id: str
    """Its subject key identifier, hex."""
    pem: str
    made: float
    expires: float


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority of a job: it signs the certificates of the job's pods."""

    root: Root
    key: str = field(repr=False)
    """Private key, PEM."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One certificate to be issued."""

    key: str
    """The key of the Secret for the certificate and its private key."""
    identity: str
    """The URI in the certificate (diloco.contract)."""
    host_names: tuple[str, ...] = ()
    """Host names and IP addresses at which the holder serves. Empty if none is needed."""
    connects: bool = True
    """Its holder shows it when it opens connections, too."""
