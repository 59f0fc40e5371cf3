"""The size of a job's object, bounded by construction. Pure.

etcd stores 1.5 MiB per object. Every text of a job has a limit, and every unit an equal share of what spec, metadata and those limits
leave. What does not fit into a unit's share gets shorter: its failures go if it does not run, then its slice and its texts are cut. Names,
states, attempts and counts stay. Figures count with their longest form, so that equal states give equal texts.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.status import SLICE_LIMIT, UnitState
from diloco_operator.reconcile.observe.object_size import FAILURE_BYTES, stored_bytes, unit_share

TEXT_LIMIT = 4096
"""Bytes of each text of a unit, of a condition's message, and of how the job ended. The CRD allows as many characters."""
_ENTRY_LIMIT = 1024
"""Bytes of the message of a pool or a host."""
_OUTSIDE_LIMIT = 512
"""Bytes of the message of a part, or of a learner outside the cluster."""
_MESSAGES = {
    "conditions": TEXT_LIMIT,
    "pools": _ENTRY_LIMIT,
    "hosts": _ENTRY_LIMIT,
    "outside": _OUTSIDE_LIMIT,
    "parts": _OUTSIDE_LIMIT,
}
"""Lists of the status whose entries have a message -> the bytes of that."""
_REMEDY_LIMIT = 512
"""Bytes of a remedy."""
_SOMETIMES = ("cause", "lastFailure", "beganWith", "grantorSaid")
_TEXTS = (*_SOMETIMES, "message")
"""What a unit says in words, the message last: it may have what the others leave. Many units have nothing else."""
_REFUSED_KEYS = 10
"""Reasons of refused contributions that a unit lists; the others are added up under `_OTHERS`."""
_REFUSED_KEY = 32
"""Characters of such a reason."""
_REFUSED_BYTES = _REFUSED_KEY + 24
"""Bytes of such a reason with its count."""
_OTHERS = "Others"
_ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(_ELLIPSIS.encode())
_DIGEST = 12


def bounded(status: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """Shorten the status to at most `budget` bytes, and each text to what the CRD allows."""
    short = dict(status)
    for key, limit in _MESSAGES.items():
        if status.get(key):
            short[key] = [_with_short_message(entry, limit) for entry in status[key]]
    for pool in short.get("pools", ()):
        if "remedies" in pool:
            pool["remedies"] = [clip_bytes(entry, _REMEDY_LIMIT) for entry in pool["remedies"]]
    if "endedWith" in status:
        short["endedWith"] = clip_bytes(status["endedWith"], TEXT_LIMIT)
    if "units" in status:
        of_parts = sum(len(part.get("units") or ()) for part in status.get("parts") or ())
        share = unit_share(budget, len(status["units"]), of_parts)
        short["units"] = [_in_share(unit, share) for unit in status["units"]]
    return short


def _with_short_message(entry: Mapping[str, Any], limit: int) -> dict[str, Any]:
    return {**entry, "message": clip_bytes(entry["message"], limit)} if "message" in entry else dict(entry)


def clip_bytes(text: str, limit: int) -> str:
    """Return the text, or its beginning and an ellipsis, with at most `limit` stored bytes; "" if not even that fits."""
    if 6 * len(text) <= limit or _text_bytes(text) <= limit:  # no character takes more than six bytes
        return text
    low, high = 0, min(len(text), limit)
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _text_bytes(text[:middle]) + _ELLIPSIS_BYTES <= limit else (low, middle - 1)
    return f"{text[:low]}{_ELLIPSIS}" if low else ""


def _in_share(unit: Mapping[str, Any], share: int) -> dict[str, Any]:
    """Shorten the unit so that its slice, texts and counts by reason have at most `share` bytes. The failures of a unit that runs do not
    come out of the share: a new operator must count the same failures."""
    short = {**unit, "refused": _few(unit["refused"])}
    share -= _REFUSED_BYTES * len(short["refused"])
    if _idle(unit):
        if FAILURE_BYTES * len(unit["failures"]) > share // 2:
            short["failures"] = []
        share -= FAILURE_BYTES * len(short["failures"])
    present = [text for text in _TEXTS if text in unit]
    if 6 * (len(unit["slice"]) + sum(len(unit[text]) for text in present)) <= min(share, TEXT_LIMIT):
        return short  # everything fits, whatever the characters are. To encode each text would take a hundred times as long
    short["slice"] = _clip_slice(unit["slice"], min(share // 2, SLICE_LIMIT))
    share -= _text_bytes(short["slice"])
    for index, text in enumerate(present):
        short[text] = clip_bytes(unit[text], min(TEXT_LIMIT, share // (len(present) - index)))
        share -= _text_bytes(short[text])
        if text in _SOMETIMES and not short[text]:
            del short[text]  # a unit that never had this text lacks the key, too
    return short


def _idle(unit: Mapping[str, Any]) -> bool:
    """Whether the unit does not run, or not for long. Its failures then only tell whether a host was to blame."""
    state = unit["state"]
    parked = state == UnitState.PENDING and not unit["slice"] and follows(unit["reason"], Follows.NOT_WANTED)
    return parked or state in (UnitState.FAILED, UnitState.COMPLETED, UnitState.DRAINING)


def _clip_slice(name: str, limit: int) -> str:
    """Return the beginning of the slice's name and a digest that tells it from others. No slice has that name: a unit with pods learns its
    slice from them again, and a unit without pods gets another slice."""
    if not name or 6 * len(name) <= limit or _text_bytes(name) <= limit:
        return name  # "" means that the unit has no slice, and stays "" even where the limit is below 0
    return clip_bytes(name, limit - _DIGEST) + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _few(refused: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of refused contributions by reason. The syncer may be any program, so the number and length of its reasons are
    limited."""
    if all(_is_name(key) for key in refused) and len(refused) <= _REFUSED_KEYS:
        return dict(refused)
    named = sorted((key, count) for key, count in refused.items() if _is_name(key) and key != _OTHERS)
    kept = dict(named[: _REFUSED_KEYS - 1])
    return {**kept, _OTHERS: sum(refused.values()) - sum(kept.values())}


def _is_name(key: str) -> bool:
    return len(key) <= _REFUSED_KEY and key.isascii() and key.isalnum()


def _text_bytes(text: str) -> int:
    return stored_bytes(text) - 2
