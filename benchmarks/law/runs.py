"""Trainings that have ended, one line of JSON each, so that a comparison of hours goes on where it was stopped."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figure import measured_commit

type Outcome = Mapping[str, Any]
"""What one training has shown, as JSON has it."""


@dataclass
class Runs[T: Hashable]:
    """Trainings by what was trained; a line of the file has `trial`, `outcome`, `seconds` and `commit`."""

    file: Path
    train: Callable[[T], Outcome]
    as_json: Callable[[T], Mapping[str, Any]]
    known: dict[T, Outcome] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)
    """Commits of what is known."""
    commit: str = field(default_factory=measured_commit)
    """The commit of what is trained from now on."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, from_json: Callable[[dict[str, Any]], T]) -> None:
        """Take what the file has; it may be missing, and a last line that a kill cut short counts for nothing.

        Raises ValueError, with file and line, when another is not a run; `from_json` raises KeyError or TypeError then.
        """
        if not self.file.exists():
            return
        text = self.file.read_text(encoding="ascii")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.file.write_text(whole, encoding="ascii")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                values = json.loads(line)
                trial, outcome, commit = from_json(values["trial"]), dict(values["outcome"]), str(values["commit"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.file}, line {number}, is no run ({error!r}): delete the line, or the file") from error
            self.known[trial] = outcome
            self.commits.add(commit)

    def run(self, trial: T) -> Outcome:
        """Return what a training has shown: as the file has it, or trained now and written there. Raises what `train` raises."""
        if trial in self.known:
            return self.known[trial]
        began = time.monotonic()
        outcome = self.train(trial)
        seconds = round(time.monotonic() - began)
        line = {"trial": self.as_json(trial), "outcome": outcome, "seconds": seconds, "commit": self.commit}
        with self._lock:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="ascii") as lines:
                lines.write(json.dumps(line) + "\n")
            self.known[trial] = outcome
            self.commits.add(self.commit)
        sys.stderr.write(f"{trial}: {json.dumps(outcome)}, {seconds} s\n")
        sys.stderr.flush()
        return outcome
