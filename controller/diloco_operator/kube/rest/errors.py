"""Turns a server's answers into the errors of `kube.client`. Pure."""

from __future__ import annotations

import contextlib
import json
from http import HTTPStatus
from typing import Any

from diloco_operator.kube.client import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    InternalError,
    Invalid,
    NotFound,
    Obj,
    Unavailable,
)
from diloco_operator.kube.fields import ERROR_LIMIT, clip

_EXCERPT = 300
_CAUSES = 100
"""The most causes of an error that are kept."""
_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
_TOO_NEW = "ResourceVersionTooLarge"


def error_of_status(status: Obj, code: int = 0) -> ApiError:
    """Return the error for a Status object. `code`: the HTTP status, used if the object has none.

    A server error becomes `Unavailable`, except for a resourceVersion from the future: a retry would not help there.
    """
    own_code = status.get("code")
    code = own_code if isinstance(own_code, int) and 400 <= own_code <= 599 else code or 500
    reason = _text(status.get("reason")) or _standard_reason(code)
    details = status.get("details")
    listed = details.get("causes") if isinstance(details, dict) else None
    causes = [cause for cause in listed[:_CAUSES] if isinstance(cause, dict)] if isinstance(listed, list) else []
    kind = _BY_CODE.get(code, Unavailable if code >= 500 else ApiError)
    if code == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    if code == 500 and reason == "InternalError":  # a server without etcd gives another reason, or none
        kind = InternalError
    if any(cause.get("reason") == _TOO_NEW for cause in causes):
        kind = ApiError
    message = _text(status.get("message")) or reason
    return kind(code, reason, message, [Cause(_text(cause.get("field")), _text(cause.get("message"))) for cause in causes])


def _text(value: object) -> str:
    """Return a clipped text, "" for anything else: admission webhooks and proxies may answer anything."""
    return clip(value, ERROR_LIMIT) if isinstance(value, str) else ""


def error_of_answer(code: int, body: bytes) -> ApiError:
    """Return the error for an answer with status 400 or more. It may come from a proxy instead of an API server."""
    status: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        status = json.loads(body)
    if isinstance(status, dict) and status.get("kind") == "Status":
        return error_of_status(status, code)
    text = body[:_EXCERPT].decode(errors="replace").strip()
    return error_of_status({"message": text or f"HTTP status {code} without a message"}, code)


def retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header. None without one, or if it is a date, which Kubernetes does not send."""
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def _standard_reason(code: int) -> str:
    try:
        return HTTPStatus(code).phrase.replace(" ", "")
    except ValueError:
        return "Unknown"
