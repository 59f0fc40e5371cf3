"""The job's secret on every RPC. (Mutual TLS comes with the real cluster; the secret stays, it tells jobs apart.)"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path

TOKEN_KEY = "diloco-token"
"""Metadata key that carries the job's secret."""


def read_secret(path: str | Path) -> str:
    """The secret in the mounted file, without surrounding white space. Raises OSError, and ValueError for an empty or non-ASCII file."""
    secret = Path(path).read_text(encoding="utf-8").strip()
    if not secret:
        raise ValueError(f"secret file {path} is empty")
    if not secret.isascii() or not secret.isprintable():
        raise ValueError(f"secret file {path} must hold printable ASCII: gRPC metadata carries nothing else")
    return secret


def credentials(secret: str) -> tuple[tuple[str, str], ...]:
    """Metadata for an RPC."""
    return ((TOKEN_KEY, secret),)


def authorized(metadata: Iterable[tuple[str, str | bytes]] | None, secret: str) -> bool:
    """Whether an RPC's metadata carries `secret`. Compares in constant time."""
    for key, value in metadata or ():
        if key == TOKEN_KEY:
            given = value.encode() if isinstance(value, str) else value
            return hmac.compare_digest(given, secret.encode())
    return False
