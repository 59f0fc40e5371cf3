"""Kubernetes quantities (`4`, `500m`, `96Gi`) as exact numbers. Pure."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

_QUANTITY = re.compile(r"^([+-]?\d{1,40}(?:\.\d{0,40})?|[+-]?\.\d{1,40})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,2}))?$", re.ASCII)
"""Kubernetes keeps a quantity in 64 bits. A number with more digits is not accepted: to compute with it could take for ever."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: str | float) -> Fraction:
    """Parse a quantity. Raises ValueError."""
    return _parsed(str(text))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Fraction:
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text[:64]!r} is not a quantity such as 4, 500m or 96Gi")
    number, suffix, exponent = Fraction(match[1]), match[2], match[3]
    if exponent:
        return number * Fraction(10) ** int(exponent)
    if suffix in _BINARY:
        return number * Fraction(2) ** _BINARY[suffix]
    return number * Fraction(10) ** _DECIMAL.get(suffix or "", 0)
