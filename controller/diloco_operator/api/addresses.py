"""Addresses of syncers for learners and operators outside their cluster. Pure.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from diloco import contract

_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS_PATTERN = rf"^(([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:{_PORT})?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*)$"
"""The form of an address, for the CRD's rules. It also has groups of digits that are no IPv6 address, such as `1:2:3`."""
_FORM = re.compile(ADDRESS_PATTERN)
_PARTS = re.compile(r"(\[(?P<ipv6>.*)\]|(?P<name>[^:]*))(:(?P<port>[0-9]+))?", re.ASCII)


class Address(NamedTuple):
    """Where a syncer is, for learners outside its cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host`, `host:port`, an IPv6 address, or `[address]:port`. Raises ValueError."""
    match = _PARTS.fullmatch(text)
    name, ipv6, port = (match["name"], match["ipv6"], match["port"]) if match is not None else (None, text, None)
    if not _FORM.fullmatch(text) or (name is None and not _is_ipv6(ipv6)):
        raise ValueError(f"{text!r} is no address such as syncer.example.com, 203.0.113.7:7077 or [2001:db8::7]:7077")
    return Address(name or ipv6, int(port or contract.SYNCER_PORT))


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
