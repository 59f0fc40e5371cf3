"""Addresses of syncers for learners and operators outside their cluster. Pure.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from diloco import contract

_BRACKETED = re.compile(r"\[(?P<host>[^\]]*)\](:(?P<port>[0-9]{1,5}))?", re.ASCII)
_PLAIN = re.compile(r"(?P<host>[^:\[\]/ ]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)
_LAST_PORT = 65535


class Address(NamedTuple):
    """Where a syncer is, for learners outside its cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host`, `host:port`, an IPv6 address, or `[address]:port`. Raises ValueError."""
    match = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    host, port = (match["host"], int(match["port"] or contract.SYNCER_PORT)) if match is not None else (text, contract.SYNCER_PORT)
    if not 1 <= port <= _LAST_PORT or (":" in host and not _is_ipv6(host)) or not host:
        raise ValueError(f"{text!r} is no address such as syncer.example.com, 203.0.113.7:7077 or [2001:db8::7]:7077")
    return Address(host, port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
