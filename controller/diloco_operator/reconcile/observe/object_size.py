"""How large the object of a job is, and how much of it may be status. Pure.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import json
from typing import Any

from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD
from diloco_operator.api.spec import MAX_LEARNERS, Spec
from diloco_operator.api.unit_figures import FIGURES_BYTES
from diloco_operator.kube.client import Cause

OBJECT_LIMIT = 3 << 19
"""Bytes of one object with metadata and managedFields: etcd's default for one request, 1.5 MiB."""
_RESERVE = 16 << 10
"""Bytes for what the API server adds: the managedFields of this status, and the frame of the request to etcd."""
_STEP = 8 << 10
"""The budget changes in steps of this many bytes: one byte more in an annotation must not change a text in status."""
MAX_UNITS = 2 * MAX_LEARNERS
"""Units in one status, as the CRD limits it. Twice the learners: one pool may drain while another takes its place."""
_UNIT_BYTES = 540 + FIGURES_BYTES
"""Bytes of a unit without its slice, texts, counts by reason and failures."""
_LEAST_SHARE = 768
"""Bytes that each unit must have for its slice, texts and counts by reason. Ten counts take 560 of them."""
_REPORTED_UNIT_BYTES = 160
"""Bytes of a unit of a part, of which status says only what the syncer reports."""
_TOP_BYTES = 232 << 10
"""Bytes of everything but the units and those of parts, with the longest texts."""
FAILURE_BYTES = 27
"""Bytes of the time of one failure: a quoted RFC 3339 time in milliseconds, and a comma."""
_FAILURES_BYTES = FAILURE_BYTES * (MAX_FAILURES_ON_RECORD + MAX_LEARNERS)
"""Bytes of the failures of all units that run."""


def stored_bytes(value: Any) -> int:
    """Bytes of JSON-like data as an API server stores it: it escapes some characters that Python does not."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) + 3 * (text.count("\u2028") + text.count("\u2029"))
    return size + 5 * (text.count("<") + text.count(">") + text.count("&")) + 4 * (text.count("\\b") + text.count("\\f"))


def status_budget(beside: int) -> int:
    """Bytes that the status may have. `beside`: bytes of the rest of the object, as `stored_bytes` counts them."""
    return OBJECT_LIMIT - _RESERVE - -(-beside // _STEP) * _STEP


def unit_share(budget: int, units: int, of_parts: int) -> int:
    """Bytes that each unit has for its slice, texts, counts by reason and, if it does not run, failures. `of_parts`: units of parts."""
    return (_for_units(budget) - of_parts * _REPORTED_UNIT_BYTES) // max(1, units) - _UNIT_BYTES


def _for_units(budget: int) -> int:
    return budget - _TOP_BYTES - _FAILURES_BYTES


def too_large(spec: Spec, beside: int) -> list[Cause]:
    """Why the status of the job may not fit beside its spec and metadata; empty if it fits."""
    units = min(MAX_UNITS, sum(pool.learners.max for pool in spec.pools if not pool.cluster))
    of_parts = sum(len(part.units) for part in spec.parts) + sum(pool.learners.max for pool in spec.pools if pool.cluster)
    room = _for_units(status_budget(0)) - units * (_UNIT_BYTES + _LEAST_SHARE) - of_parts * _REPORTED_UNIT_BYTES - _STEP
    if beside <= room:
        return []
    text = (
        f"spec and metadata take {beside >> 10} KiB; {room >> 10} KiB are left for them beside the status of {units + of_parts} units, "
        "because an API server stores 1.5 MiB at most. Make the templates smaller, remove annotations, or lower pools[].learners.max"
    )
    return [Cause("spec", text)]
