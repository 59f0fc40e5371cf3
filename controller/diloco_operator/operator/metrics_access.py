"""Who may read /metrics: the API server says whose token it is (TokenReview) and what they may do (SubjectAccessReview).

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
from collections.abc import Callable
from typing import Protocol

from diloco_operator.api.names import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from diloco_operator.kube.client import ApiError, Obj, Resource
from diloco_operator.timeouts import ENDPOINTS

log = logging.getLogger(__name__)

MOST_ANSWERS = 256
MOST_REVIEWS = 4
"""Reviews that run at once."""


class Access(enum.Enum):
    GRANTED = enum.auto()
    UNAUTHENTICATED = enum.auto()
    FORBIDDEN = enum.auto()
    UNKNOWN = enum.auto()
    """The API server does not answer."""


class Reviews(Protocol):
    """The part of a `kube.client.Client` that is needed."""

    async def create(self, resource: Resource, obj: Obj) -> Obj: ...


class MetricsAccess:
    """Keeps answers of the API server for a while. `now` returns seconds of any clock."""

    def __init__(self, reviews: Reviews, now: Callable[[], float]) -> None:
        self._reviews = reviews
        self._now = now
        self._answers: dict[bytes, tuple[float, Access]] = {}
        """(when the answer expires, answer) by the digest of the token, the oldest first."""
        self._few = asyncio.Semaphore(MOST_REVIEWS)

    async def check(self, authorization: str) -> Access:
        """Return what a request with this Authorization header may do."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return Access.UNAUTHENTICATED
        key = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if (known := self._known(key)) is not None:
            return known
        async with self._few:
            if (known := self._known(key)) is not None:  # another request with this token asked meanwhile
                return known
            try:
                answer = await self._ask(token)
            except ApiError as error:
                log.warning("the API server does not say who may read /metrics: %s", error)
                return Access.UNKNOWN
        self._keep(key, answer)
        return answer

    def _known(self, key: bytes) -> Access | None:
        until, answer = self._answers.get(key, (0.0, None))
        return answer if answer is not None and self._now() < until else None

    def _keep(self, key: bytes, answer: Access) -> None:
        self._answers.pop(key, None)
        while len(self._answers) >= MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._now() + ENDPOINTS.access, answer)

    async def _ask(self, token: str) -> Access:
        review = await self._reviews.create(TOKEN_REVIEWS, {"metadata": {}, "spec": {"token": token}})
        status = review.get("status") or {}
        user = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return Access.UNAUTHENTICATED
        spec = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }
        verdict = await self._reviews.create(SUBJECT_ACCESS_REVIEWS, {"metadata": {}, "spec": spec})
        return Access.GRANTED if (verdict.get("status") or {}).get("allowed") is True else Access.FORBIDDEN
