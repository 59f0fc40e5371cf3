"""Why a job ends before its last step: its token budget is trained, or a program has ended it.

The budget is compared with the committed tokens, also after a restart. A program's request is written down before it counts, together with
the job's `steps` at that time. If `steps` is raised later, the request no longer holds and the job goes on.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS, Training
from diloco.durable import write_json
from diloco.wording import one_line, plural

_log = logging.getLogger(__name__)

FILE = "end.json"
MOST_REASON = 200
"""Characters that are kept of a program's reason."""


class EndError(Exception):
    """The file cannot be read. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An early end."""

    by: str
    """`contract.ENDED_BY_TOKENS` or `ENDED_BY_PROGRAM`."""
    t: int
    """The outer step at which the job ends. The job may have got further before the end was decided."""
    unit: str = ""
    """The unit whose program has ended the job. Empty for a budget."""
    reason: str = ""
    """Why the program has ended it. Empty for a budget."""


def load_ending(directory: Path, job_uid: str, training: Training) -> Ending | None:
    """Return the end that a program of this very job has asked for, or None if none still holds. Raises EndError for a damaged file."""
    path = directory / FILE
    try:
        stored = json.loads(path.read_bytes())
        if stored["job"] != job_uid or training.steps > int(stored["steps"]):
            return None
        return Ending(ENDED_BY_PROGRAM, int(stored["t"]), str(stored["unit"]), str(stored["reason"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EndError(
            f"{path} cannot be used: {error}. It says that a training program has ended the job: remove it to train on."
        ) from error


def is_over(training: Training, ending: Ending | None, t: int, tokens: int) -> bool:
    """Whether the job is over at outer step `t` with this many committed tokens."""
    budget = training.tokens is not None and tokens >= training.tokens
    return t >= training.steps or budget or (ending is not None and t >= ending.t)


class JobEnding:
    """Decides once whether and when the job ends early. Used by the engine's task only."""

    def __init__(self, directory: Path, job_uid: str, training: Training, ending: Ending | None, decided: Callable[[], None]) -> None:
        """
        Args:
            directory: where a program's request is stored
            ending: from `load_ending`
            decided: called in the event loop once a program's request is durable, or could not be written
        """
        self._directory = directory
        self._job_uid = job_uid
        self._training = training
        self._decided = decided
        self._task: asyncio.Task[None] | None = None
        self.ending = ending
        """None while nothing ends the job before its last step."""

    def finish(self, unit: str, reason: str, t: int) -> None:
        """Note that the unit's program wants the job to end at outer step `t`, the present one. Only the first request counts."""
        if self.ending is not None or self._task is not None:
            return
        ending = Ending(ENDED_BY_PROGRAM, t, unit, one_line(reason, MOST_REASON))
        _log.info("unit %s ends the job at outer step %d of %d: %s", unit, t, self._training.steps, ending.reason)
        self._task = asyncio.create_task(self._write(ending), name="end")

    def end_at(self, t: int, tokens: int) -> int | None:
        """Return the outer step at which the job ends early, or None. `t` is the present one, `tokens` the committed tokens."""
        budget = self._training.tokens
        if self.ending is None and budget is not None and tokens >= budget:
            self.ending = Ending(ENDED_BY_TOKENS, t)
            _log.info("the token budget of %s is trained at outer step %d of %d", plural(budget, "token"), t, self._training.steps)
        return None if self.ending is None else self.ending.t

    async def idle(self) -> None:
        """Wait until nothing is being written."""
        if self._task is not None:
            await self._task

    async def _write(self, ending: Ending) -> None:
        stored: dict[str, Any] = {"job": self._job_uid, "steps": self._training.steps}
        stored |= {"t": ending.t, "unit": ending.unit, "reason": ending.reason}
        try:
            await asyncio.to_thread(write_json, self._directory / FILE, stored)
        except OSError as error:
            # The job ends nevertheless. If this process dies first, the unit repeats its request to the next one.
            _log.error("the end of the job could not be written to %s: %s", self._directory, error.strerror or error)
        self.ending = ending
        self._decided()
