"""A job's certificate authority, as text. Plain data, so that a plan can carry it from the snapshot to whoever signs."""

from __future__ import annotations

from dataclasses import dataclass, field

BACKDATE = 3600.0
"""A certificate begins to hold this long before it is made, seconds: the clocks of those who check it differ."""
AUTHORITY_LIFETIME = 10 * 365 * 86400.0
"""Seconds. No job lives as long; all the same it is renewed in time (reconcile.certificates)."""


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
    """Who signs for a job."""

    root: Root
    key: str = field(repr=False)
    """Private key, PEM."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One certificate to be made."""

    key: str
    """Under which key of the Secret it is kept, with its private key."""
    identity: str
    """The URI in it (diloco.contract)."""
    host_names: tuple[str, ...] = ()
    """Not empty: it is a server's. A client's has none."""
