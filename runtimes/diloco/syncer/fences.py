"""The newest attempt of each unit. It is durable before the attempt joins, so that a restarted syncer accepts no older one.

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from diloco.durable import write_json

_log = logging.getLogger(__name__)

FILE = "fences.json"


class FencesError(Exception):
    """The file cannot be read. The message says why and what to do."""


def load_fences(directory: Path, job_uid: str) -> dict[str, int]:
    """Return the fences of job `job_uid`. Empty if the file is another job's, or missing. Raises FencesError for a damaged file."""
    path = directory / FILE
    try:
        stored = json.loads(path.read_bytes())
        if stored["job"] != job_uid:
            return {}
        return {str(unit): int(attempt) for unit, attempt in stored["attempts"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FencesError(
            f"{path} cannot be used: {error}. "
            "It lists the attempts that may not return: remove it if no learner of an older attempt can still be alive."
        ) from error


def save_fences(directory: Path, job_uid: str, fences: Mapping[str, int]) -> None:
    """Write the fences durably. Raises OSError."""
    write_json(directory / FILE, {"job": job_uid, "attempts": dict(sorted(fences.items()))})


class FenceWriter:
    """Writes the fences in a thread, so that leases and reports do not wait for the disk. Fences that come while a write runs are written
    together."""

    def __init__(self, directory: Path, job_uid: str, fences: Mapping[str, int], written: Callable[[], None]) -> None:
        """`fences` are durable already. `written` is called after each write, even one that has failed."""
        self._directory = directory
        self._job_uid = job_uid
        self._settled = dict(fences)
        self._wanted = dict(fences)
        self._written = written
        self._task: asyncio.Task[None] | None = None

    def settled(self, unit: str, attempt: int) -> bool:
        """Whether the attempt's fence is durable, or its write has failed and was logged."""
        return self._settled.get(unit, 0) >= attempt

    def write(self, fences: Mapping[str, int]) -> None:
        self._wanted = dict(fences)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_wanted(), name="fences")

    async def idle(self) -> None:
        if self._task is not None:
            await self._task

    async def _write_wanted(self) -> None:
        while self._wanted != self._settled:
            fences = self._wanted
            try:
                await asyncio.to_thread(save_fences, self._directory, self._job_uid, fences)
            except OSError as error:
                # The learner joins nevertheless: it is not its fault, and the next snapshot holds the fences as well.
                _log.error("the fences could not be written to %s: %s", self._directory, error.strerror or error)
            self._settled = fences
            self._written()
