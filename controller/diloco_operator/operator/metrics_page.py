"""The text of /metrics: made in a thread, once a second at most, for all who ask meanwhile.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from diloco_operator.timeouts import ENDPOINTS

type Offload = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function beside the event loop, such as `asyncio.to_thread`."""


@dataclass(slots=True)
class _Held:
    making: asyncio.Task[bytes]
    made_at: float | None = None
    """None while the page is being made."""


class MetricsPage:
    """Makes the page and keeps it. `look` is called in the event loop before each encoding, so that collectors in the thread read nothing
    that the loop changes meanwhile. `now` returns seconds of any clock."""

    def __init__(self, registry: CollectorRegistry, *, look: Callable[[], None], now: Callable[[], float], offload: Offload) -> None:
        self._registry = registry
        self._look = look
        self._now = now
        self._offload = offload
        self._held: dict[str, _Held] = {}
        """By content type; there are as many as prometheus_client has formats."""
        self._encoding = asyncio.Lock()

    async def get(self, accept: str) -> tuple[bytes, str]:
        """Return text and content type for a request with this Accept header."""
        encode, content_type = choose_encoder(accept)
        page = self._held.get(content_type)
        if page is None or (page.made_at is not None and self._now() - page.made_at >= ENDPOINTS.page):
            making = asyncio.create_task(self._make(content_type, lambda: encode(self._registry)))
            page = self._held[content_type] = _Held(making)
        # The scraper that came first may disconnect while others wait for the same text.
        return await asyncio.shield(page.making), content_type

    async def _make(self, content_type: str, encode: Callable[[], bytes]) -> bytes:
        try:
            async with self._encoding:
                self._look()
                text = await self._offload(encode)
        except BaseException:
            del self._held[content_type]
            raise
        self._held[content_type].made_at = self._now()
        return text
