"""Checks the status of a job before anything reads it. Pure.

The operator is not the only writer of status: every user with the right to write `dilocojobs/status` can put anything into it that the CRD
allows, and an API server with another CRD allows more. Malformed parts are left out, as if they had never been written; the rest counts.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from diloco_operator.api import names
from diloco_operator.api.base import field_path
from diloco_operator.api.status import Status
from diloco_operator.kube.fields import clip, kind_of_json

_NAMED = 3
"""Malformed parts that a message names."""

type _Part = tuple[str, int | str | None]
"""A field of status, and its malformed item. None if the whole field is malformed."""


def check_status(raw: object) -> tuple[bytes, str]:
    """Return the status as JSON without its malformed parts, and a text that names these parts, "" if there are none."""
    status: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
    problems = [] if raw is None or isinstance(raw, dict) else [f"status must be an object, not {kind_of_json(raw)}"]
    while True:
        data = json.dumps(status, separators=(",", ":")).encode()
        bad = _malformed_parts(data)
        if not bad:
            return data, _summary(problems)
        problems += bad.values()
        left = _without(status, bad)
        # No part to leave out if the JSON as a whole is malformed, for example by half a surrogate pair: then nothing of it counts.
        status = left if left != status else {}


def _malformed_parts(data: bytes) -> dict[_Part, str]:
    """Malformed part -> what is wrong with it."""
    try:
        checked = Status.model_validate_json(data, strict=True, context={"from": "api"})
    except ValidationError as error:
        return {
            _part(problem["loc"]): f"{field_path(('status', *problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_input=False)
        }
    malformed: dict[_Part, str] = {}
    for index, unit in enumerate(checked.units):
        if names.unit_index(unit.pool, unit.name) is None:
            malformed["units", index] = f"status.units[{index}].name: must be the pool's name, a dash and a number"
        elif max(unit.attempt, unit.ended_attempt) > names.MAX_ATTEMPT:
            malformed["units", index] = f"status.units[{index}].attempt: must be {names.MAX_ATTEMPT} at most"
    return malformed


def _part(location: tuple[int | str, ...]) -> _Part:
    field, *within = location or ("",)
    return str(field), within[0] if within else None


def _without(status: Mapping[str, Any], bad: Iterable[_Part]) -> dict[str, Any]:
    left = dict(status)
    items: dict[str, set[int | str]] = {}
    for field, part in bad:
        if part is None:
            left.pop(field, None)
        else:
            items.setdefault(field, set()).add(part)
    for field, parts in items.items():
        value = left.get(field)
        if isinstance(value, list):
            left[field] = [item for index, item in enumerate(value) if index not in parts]
        elif isinstance(value, dict):
            left[field] = {key: item for key, item in value.items() if key not in parts}
    return left


def _summary(problems: list[str]) -> str:
    if not problems:
        return ""
    more = f", and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    return clip("; ".join(problems[:_NAMED]) + more)
