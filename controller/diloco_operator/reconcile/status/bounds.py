"""The size of a job's object, bounded by construction. Pure.

etcd stores 1.5 MiB per object. The bytes that spec and metadata leave are the status's budget. A status that is larger gets shorter: first
the loss history goes, then messages get shorter, then the names of slices with many hosts, at last what units that do not run keep of their
failures. Names, states, attempts and counts stay. What is shortened depends on the status alone, and not on figures that go up and down, so
that equal states give equal texts.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.status import SLICE_LIMIT, UnitState
from diloco_operator.api.unit_figures import FIGURES_BYTES, KEYS
from diloco_operator.reconcile.observe.object_size import FAILURE_BYTES, TOP_FLOOR, UNIT_FLOOR, stored_bytes
from diloco_operator.reconcile.observe.throughput import POOL_FIGURES

MESSAGE_LIMIT = 4096
"""Characters of the message of a unit or pool, as the CRD limits it."""
_SOMETIMES = ("grantorSaid", "lastFailure", "cause", "beganWith")
_TEXTS = ("message", *_SOMETIMES)
"""What a unit says in words. Many have the first only."""
_NAMES = {text: len(f',"{text}":""') for text in _SOMETIMES}
"""Bytes of such a field without its text."""
_REMEDY_LIMIT = 1024
"""Characters of a remedy, as the CRD limits it."""
_REMEDIES = len(',"remedies":')
CONDITION_LIMIT = 8000
"""Characters of a condition's message; an eighth of what the CRD allows is more than a person reads."""
_REFUSED_KEYS = 10
_REFUSED_KEY = 32
_POOL_FIGURES = 70
"""Bytes that a pool's figures take at most."""
_PROGRESS = 500
"""The same of the job's."""
_GOODPUT = 500
"""The same of `goodput`, with the time up to which it counts."""
LOSSES = "losses"
HELD_OUT_LOSSES = "heldOutLosses"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bytes of each text."""

    unit: int
    other: int = 1 << 20
    slice: int = 1 << 20
    last: bool = False
    """Units that do not run keep what identifies and counts them, and `refused` is one number."""


_UNLIMITED = _Limits(1 << 20)
_LADDER = (
    *(_Limits(limit) for limit in (2048, 1024, 512, 256)),
    _Limits(128, other=1024),
    _Limits(128, other=1024, slice=512),
    _Limits(64, other=1024, slice=128),
    _Limits(0, other=512, slice=40),
    _Limits(0, other=512, slice=40, last=True),
)
"""Tried in this order until the status fits."""


def bounded(status: dict[str, Any], budget: int) -> dict[str, Any]:
    """Return the status, with texts no longer than the CRD allows, and shortened so that it has at most `budget` bytes."""
    status = _within_crd(status)
    units: Sequence[dict[str, Any]] = status.get("units") or ()
    reserve = _PROGRESS + _GOODPUT + FIGURES_BYTES * len(units) + _POOL_FIGURES * len(status.get("pools") or ())
    if _at_most(status, units) <= budget or stored_bytes(status) + reserve <= budget:  # the exact sum takes twenty times as long
        return status
    # Before any text: the history changes with every step, and which texts are shortened must not depend on that.
    status = _without_history(status)
    sizes = _Sizes.of(status, units)
    if sizes.under(_UNLIMITED) <= budget:
        return status
    # The last one always fits: `object_size.too_large` refuses a spec that leaves less.
    limits = next((limits for limits in _LADDER if sizes.under(limits) <= budget), _LADDER[-1])
    return _shortened(status, limits)


def _without_history(status: dict[str, Any]) -> dict[str, Any]:
    progress = {key: value for key, value in (status.get("progress") or {}).items() if key not in (LOSSES, HELD_OUT_LOSSES)}
    return {**status, "progress": progress} if "progress" in status else status


def clip_bytes(text: str, limit: int) -> str:
    """Return the text, or its beginning and an ellipsis, with at most `limit` stored bytes; "" if not even that fits."""
    if _text_bytes(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _text_bytes(text[:middle]) + _ELLIPSIS_BYTES <= limit else (low, middle - 1)
    return f"{text[:low]}{_ELLIPSIS}" if low else ""


_ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(_ELLIPSIS.encode())
_DIGEST = 12


def _clip_slice(name: str, limit: int) -> str:
    """Return the beginning of a slice's name, and a digest that tells it from others. No node has such a name: a unit finds its slice again
    from its pods, and one without pods gets another slice."""
    if _text_bytes(name) <= limit:
        return name
    return clip_bytes(name, limit - _DIGEST) + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _text_bytes(text: str) -> int:
    return stored_bytes(text) - 2


def _idle(unit: Mapping[str, Any]) -> bool:
    """Say whether a unit does not run, or not for long: its failures decide nothing."""
    state = unit["state"]
    parked = state == UnitState.PENDING and not unit["slice"] and follows(unit["reason"], Follows.NOT_WANTED)
    return parked or state in (UnitState.FAILED, UnitState.COMPLETED, UnitState.DRAINING)


# --- what the CRD allows ------------------------------------------------------------------------------------------------
def _within_crd(status: dict[str, Any]) -> dict[str, Any]:
    found = status
    if len(status.get(_ENDED, "")) > MESSAGE_LIMIT:
        found = {**found, _ENDED: _first(status[_ENDED], MESSAGE_LIMIT)}
    for key, limit in (("units", MESSAGE_LIMIT), ("pools", MESSAGE_LIMIT), ("conditions", CONDITION_LIMIT)):
        entries = status.get(key) or ()
        if any(len(each.get(text, "")) > limit for each in entries for text in _TEXTS):
            found = {**found, key: [{**each, **{text: _first(each[text], limit) for text in _TEXTS if text in each}} for each in entries]}
    pools = found.get("pools") or ()
    if any(len(remedy) > _REMEDY_LIMIT for pool in pools for remedy in pool.get("remedies") or ()):
        found = {**found, "pools": [_with_short_remedies(pool) for pool in pools]}
    units = found.get("units") or ()
    if any(len(unit["slice"]) > SLICE_LIMIT or not _is_small(unit["refused"]) for unit in units):
        short = [{**unit, "refused": _few(unit["refused"]), "slice": _clip_slice(unit["slice"], SLICE_LIMIT)} for unit in units]
        found = {**found, "units": short}
    return found


def _with_short_remedies(pool: Mapping[str, Any]) -> dict[str, Any]:
    return {**pool, **({"remedies": [_first(each, _REMEDY_LIMIT) for each in pool["remedies"]]} if "remedies" in pool else {})}


def _first(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}{_ELLIPSIS}"


def _is_small(refused: Mapping[str, int]) -> bool:
    return not refused or (
        len(refused) <= _REFUSED_KEYS and all(len(key) <= _REFUSED_KEY and key.isascii() and key.isalnum() for key in refused)
    )


def _few(refused: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason. The syncer's image may be any program's, so that the number of reasons and their length are limited."""
    if _is_small(refused):
        return dict(refused)
    named = {key: count for key, count in refused.items() if _is_small({key: count}) and key != _OTHERS}
    kept = dict(sorted(named.items())[: _REFUSED_KEYS - 1])
    return {**kept, _OTHERS: sum(refused.values()) - sum(kept.values())}


_OTHERS = "Others"


# --- how large it is ----------------------------------------------------------------------------------------------------
def _at_most(status: Mapping[str, Any], units: Sequence[Mapping[str, Any]]) -> int:
    """Return no less than the real size, and quick: every character counts as the longest one."""
    refused = _REFUSED_KEYS * (_REFUSED_KEY + 24)
    progress = status.get("progress") or {}
    found = TOP_FLOOR + sum(6 * len(each.get("message", "")) for key in _OTHER_TEXTS for each in status.get(key) or ())
    found += 6 * len(status.get(_ENDED, ""))
    found += sum(6 * len(remedy) + 3 for pool in status.get("pools") or () for remedy in pool.get("remedies") or ())
    found += sum(len(progress.get(key) or "") for key in (LOSSES, HELD_OUT_LOSSES))  # ASCII
    for unit in units:
        texts = 6 * (len(unit["message"]) + len(unit["slice"])) + sum(
            6 * len(unit[text]) + _NAMES[text] for text in _SOMETIMES if text in unit
        )
        found += UNIT_FLOOR + texts + FAILURE_BYTES * len(unit["failures"]) + (refused if unit["refused"] else 0)
    return found


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of a status by what can be shortened."""

    rest: int
    """Everything else. Figures that go up and down count with their longest form."""
    names: int
    """Names of fields of units that go with their texts."""
    messages: tuple[int, ...]
    slices: tuple[int, ...]
    others: tuple[int, ...]
    """Messages of conditions, pools and hosts, and how the job ended."""
    last: int
    """What the last step saves, besides shorter texts."""
    remedies: int
    """Remedies of all pools; they go as soon as messages of conditions, pools and hosts get shorter."""

    @staticmethod
    def of(status: Mapping[str, Any], units: Sequence[dict[str, Any]]) -> _Sizes:
        texts = [each for key in _OTHER_TEXTS for each in status.get(key) or ()]
        messages = tuple(_text_bytes(unit[text]) for unit in units for text in _TEXTS if text in unit)
        slices = tuple(_text_bytes(unit["slice"]) for unit in units)
        others = (*(_text_bytes(each.get("message", "")) for each in texts), _text_bytes(status.get(_ENDED, "")))
        pools = [{key: value for key, value in pool.items() if key not in POOL_FIGURES} for pool in status.get("pools") or ()]
        found = stored_bytes({**status, "units": [_stable(unit) for unit in units], "pools": pools, "progress": {}, "goodput": {}})
        found += _PROGRESS + _GOODPUT + FIGURES_BYTES * len(units) + _POOL_FIGURES * len(pools)
        last = sum(stored_bytes(_stable(unit)) - stored_bytes(_stable(_essential(unit))) for unit in units)
        names = sum(size for unit in units for text, size in _NAMES.items() if text in unit)
        remedies = sum(stored_bytes(pool["remedies"]) + _REMEDIES for pool in status.get("pools") or () if "remedies" in pool)
        return _Sizes(found - names - sum(messages) - sum(slices) - sum(others), names, messages, slices, others, last, remedies)

    def under(self, limits: _Limits) -> int:
        """Return bytes of the status with these limits."""
        found = self.rest + (self.names if limits.unit else 0) - (self.last if limits.last else 0)
        found -= self.remedies if limits.other < _UNLIMITED.other else 0
        for sizes, limit in ((self.messages, limits.unit), (self.slices, limits.slice), (self.others, limits.other)):
            found += sum(min(size, limit) for size in sizes)
        return found


_OTHER_TEXTS = ("pools", "conditions", "hosts")
_ENDED = "endedWith"
# `refused` is no figure here: what it takes depends on the syncer, and counts as it is.
_UNSTABLE = frozenset(KEYS.values()) - {"refused"}


def _stable(unit: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in unit.items() if key not in _UNSTABLE}


# --- what goes ----------------------------------------------------------------------------------------------------------
def _shortened(status: dict[str, Any], limits: _Limits) -> dict[str, Any]:
    found = dict(status)
    if limits.other < _UNLIMITED.other and "pools" in status:
        status = {**status, "pools": [{key: value for key, value in pool.items() if key != "remedies"} for pool in status["pools"]]}
    for key in _OTHER_TEXTS:
        if key in status:
            found[key] = [{**each, "message": clip_bytes(each.get("message", ""), limits.other)} for each in status[key] or ()]
    if _ENDED in status:
        found[_ENDED] = clip_bytes(status[_ENDED], limits.other)
    units = [_essential(unit) for unit in status["units"]] if limits.last else status["units"]
    found["units"] = [_with_short_texts(unit, limits) for unit in units]
    return found


def _with_short_texts(unit: dict[str, Any], limits: _Limits) -> dict[str, Any]:
    texts = {text: clip_bytes(unit[text], limits.unit) for text in _TEXTS if text in unit}
    found = {**unit, **texts, "slice": _clip_slice(unit["slice"], limits.slice)}
    return {key: value for key, value in found.items() if value or key not in _SOMETIMES}  # absent, as of a unit that never had it


def _essential(unit: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies and counts a unit, and what the next attempt of one that runs needs."""
    refused = sum(unit["refused"].values())
    found = {**unit, "refused": {_OTHERS: refused} if refused else {}}
    for key in ("unschedulable", "pausedUntil", "slowSince", "ownData"):  # the next pause for a slice is short again, that is all
        found.pop(key, None)
    if _idle(unit):
        found["failures"] = []
        for key in ("endedAt", "recoverSeconds"):
            found.pop(key, None)
    return found
