"""JSON that is nested deeper than Python's parser follows. Pure.

An API server accepts objects of 10,000 levels, and wraps them in a list or a watch event. Python's parser fails at such an object, which
would hide all others of its list. So parts that are nested too deep are cut out; the reader of the object refuses it for its depth.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEPTH = 1000
"""Levels that are kept. No object of Kubernetes has 100."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def loads(body: bytes) -> Any:
    """Parse JSON, with null in place of parts that are nested too deep. Raises ValueError if it is not JSON."""
    try:
        return json.loads(body)
    except RecursionError:
        return json.loads(_cut(body))


def _cut(body: bytes) -> bytes:
    pieces: list[bytes] = []
    kept = depth = 0
    for token in _TOKEN.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == DEPTH:
                pieces += [body[kept : token.start()], b"null"]
        elif token[0] in b"]}":
            if depth == DEPTH:
                kept = token.end()
            depth -= 1
    return b"".join([*pieces, body[kept:]])
