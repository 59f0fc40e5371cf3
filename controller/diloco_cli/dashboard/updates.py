"""Sends updates to open pages. A browser that reads slowly costs no memory: only the newest version of each section waits for it.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping

from diloco_cli.dashboard.page import version

_log = logging.getLogger(__name__)

MOST_STREAMS = 64
"""Pages that may be open at once."""
_SILENCE = 15.0
"""Seconds without an update after which a stream sends a comment."""
_TICK = 5.0
"""Seconds after which charts move on although nothing changed."""


class TooManyStreams(Exception):
    """MOST_STREAMS pages are open already."""


class _Stream:
    """The updates of one open page."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        """Newest HTML of each section that is to be sent."""
        self.sent: dict[str, str] = {}
        """Version of each section that was sent or waits."""
        self.ready = asyncio.Event()

    def offer(self, sections: Mapping[str, str]) -> None:
        """Let the sections that changed wait to be sent."""
        for key, html in sections.items():
            if self.sent.get(key) != (current := version(html)):
                self.sent[key] = current
                self.waiting[key] = html
        if self.waiting:
            self.ready.set()

    def take(self) -> str:
        """Take all waiting sections, as one server-sent event."""
        sections = {key: {"version": self.sent[key], "html": html} for key, html in self.waiting.items()}
        self.waiting = {}
        self.ready.clear()
        return f"event: sections\ndata: {json.dumps(sections, separators=(',', ':'))}\n\n"


class Updates:
    """Renders each open page at most once in `interval` seconds, however many browsers show it and however often something changes.
    `render` gives the sections of the page at a path."""

    def __init__(self, render: Callable[[str], Mapping[str, str]], interval: float = 1.0) -> None:
        self._render = render
        self._interval = interval
        self._streams: dict[str, set[_Stream]] = {}
        self._dirty = asyncio.Event()
        self._closed = False

    def changed(self) -> None:
        """Tell that pages may have something new to show."""
        self._dirty.set()

    async def run(self) -> None:
        """Send updates until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._dirty.wait()
            self._dirty.clear()
            self.offer_now()
            await asyncio.sleep(self._interval)

    def close(self) -> None:
        """End all streams, because the server ends."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.ready.set()

    async def stream(self, path: str) -> AsyncIterator[str]:
        """Yield the updates of the page at `path`, all its sections first. Raises TooManyStreams before it yields anything."""
        if sum(map(len, self._streams.values())) >= MOST_STREAMS:
            raise TooManyStreams
        stream = _Stream()
        self._streams.setdefault(path, set()).add(stream)
        try:
            stream.offer(self._render(path))
            yield "retry: 2000\n\n"
            while not self._closed:
                try:
                    async with asyncio.timeout(_SILENCE):
                        await stream.ready.wait()
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                if stream.waiting:
                    yield stream.take()
        finally:
            self._streams[path].discard(stream)
            if not self._streams[path]:
                del self._streams[path]

    def offer_now(self) -> None:
        """Render every open page, and offer its sections to the streams."""
        for path, streams in self._streams.items():
            try:
                sections = self._render(path)
            except Exception:  # noqa: BLE001 - what one job says may stop its own page, not those of others
                _log.exception("page %s could not be brought up to date", path)
                continue
            for stream in streams:
                stream.offer(sections)
