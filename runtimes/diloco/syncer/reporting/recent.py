"""What happened lately, for watchers that keep a record: a bounded number of entries. Each watcher's stream gets each entry once.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from diloco.protocol.diloco_pb2 import Entry, LocalStep, Merge, Progress
from diloco.syncer.streams.sessions import UnitSession

MOST_ENTRIES = 4096
"""Entries that are kept: some minutes of a small job, enough for a watcher that connects again."""
MOST_BYTES = 64 << 10
"""The most bytes of the entries in one report."""


class RecentEntries:
    """The newest entries of one process. Times are on the clock of the reports."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)
        self._last = 0
        self._steps: dict[str, tuple[str, int]] = {}
        """For each unit its session's holder and newest local step."""

    def stepped(self, session: UnitSession, progress: Progress, at: float) -> None:
        """Note a learner's progress, unless it has no new step: a resting unit reports the same step again."""
        step = progress.local_step
        if (session.holder, step) == self._steps.get(session.unit) or not step:
            return
        self._steps[session.unit] = (session.holder, step)
        taken = LocalStep(
            unit=session.unit,
            attempt=session.attempt,
            local_step=step,
            step_seconds=progress.step_seconds,
            loss=progress.loss,
            samples_done=progress.samples_done,
            tokens_done=progress.tokens_done,
        )
        self._add(Entry(at=at, step=taken))

    def merged(self, t: int, fragment: int, units: Sequence[str], loss: float | None, at: float) -> None:
        """Note that outer step `t` has merged these units' contributions to the fragment. Without units, the step was skipped."""
        self._add(Entry(at=at, merge=Merge(t=t, fragment=fragment, units=units, loss=loss)))

    def after(self, number: int) -> list[Entry]:
        """Return the entries after this number, as many as one report takes, and at least one if there is one."""
        later = itertools.islice(self._entries, max(0, number - self._last + len(self._entries)), None)
        entries: list[Entry] = []
        size = 0
        for entry in later:
            size += entry.ByteSize()
            if entries and size > MOST_BYTES:
                break
            entries.append(entry)
        return entries

    @property
    def last(self) -> int:
        """The number of the newest entry. 0 if there is none."""
        return self._last

    def _add(self, entry: Entry) -> None:
        self._last += 1
        entry.number = self._last
        self._entries.append(entry)
