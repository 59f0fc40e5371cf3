"""Why a job ends before its last step: its token budget is trained, or a program has ended it.

A budget is a level: it is judged by the committed tokens, also after a restart. What a program said is written down before it counts,
together with the steps that the job was to take then: with more of them the job goes on.

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
"""Characters that are kept of what a program says."""


class EndError(Exception):
    """The file cannot be read. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An early end."""

    by: str
    """`contract.ENDED_BY_TOKENS` or `ENDED_BY_PROGRAM`."""
    t: int
    """The outer step at which the job ends; it may have got further before it heard of it."""
    unit: str = ""
    reason: str = ""
    """For the end by a program: which unit said so, and why."""


def load_ending(directory: Path, job_uid: str, training: Training) -> Ending | None:
    """Return what a program of this very job has said; None: nothing that still holds. Raises EndError for a file that is damaged."""
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
    """Return whether a state of outer step `t` with so many committed tokens is the end of the job."""
    budget = training.tokens is not None and tokens >= training.tokens
    return t >= training.steps or budget or (ending is not None and t >= ending.t)


class JobEnding:
    """Decides once. Used by the engine's task only."""

    def __init__(self, directory: Path, job_uid: str, training: Training, ending: Ending | None, decided: Callable[[], None]) -> None:
        """Hold the job's ending as loaded. `decided` is called when what a program said is durable, in the event loop."""
        self._directory = directory
        self._job_uid = job_uid
        self._training = training
        self._decided = decided
        self._task: asyncio.Task[None] | None = None
        self.ending = ending
        """None: the job ends at its last step, as far as anybody knows."""

    def finish(self, unit: str, reason: str, t: int) -> None:
        """Note that the unit's program wants the job to end at outer step `t`, the present one. The first one counts, and once."""
        if self.ending is not None or self._task is not None:
            return
        ending = Ending(ENDED_BY_PROGRAM, t, unit, one_line(reason, MOST_REASON))
        _log.info("unit %s ends the job at outer step %d of %d: %s", unit, t, self._training.steps, ending.reason)
        self._task = asyncio.create_task(self._write(ending), name="end")

    def end_at(self, t: int, tokens: int) -> int | None:
        """Return the outer step at which the job ends early; None: it does not. `t`: the present one. `tokens`: committed."""
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
            # The job ends without it, unless this process does: then the unit, which says so until the end, says it to the next one.
            _log.error("the end of the job could not be written to %s: %s", self._directory, error.strerror or error)
        self.ending = ending
        self._decided()
