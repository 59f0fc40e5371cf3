"""What pods have written, for code that reads logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from diloco_operator.kube.client import ApiError, LogRequest, NotFound


class Logs:
    """What pods have written, in pieces that end anywhere. In a pod's name `_` stands for `-`."""

    def __init__(self, **written: list[bytes] | ApiError) -> None:
        self._written = {name.replace("_", "-"): pieces for name, pieces in written.items()}
        self.asked: list[tuple[str, LogRequest]] = []

    async def pod_logs(self, namespace: str, name: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        self.asked.append((name, wanted))
        pieces = self._written.get(name) or NotFound(404, "NotFound", f'pods "{name}" not found')
        if isinstance(pieces, ApiError):
            raise pieces
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece
