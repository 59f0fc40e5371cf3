"""`python -m benchmarks.gated_learner FOLDER UNIT MODULE [argument...]`: a trainer that joins when FOLDER/go exists.

It creates FOLDER/UNIT.ready when it is ready. Imports and compilation take seconds and differ between frameworks, and a short training
whose numbers are compared must not begin when only the fastest learner is there. FOLDER/UNIT.began gets a line at the first step of each
attempt: seconds of the monotonic clock. If its environment has DIES_AFTER, the process kills itself after this number of steps.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from diloco.session.session import Session

DIES_AFTER = "BENCHMARK_DIES_AFTER_STEPS"
_POLL = 0.005


class _Watch:
    """Notes the first step of a session, and kills the process after step `last`. 0 means never."""

    def __init__(self, began: Path, last: int) -> None:
        self._began, self._last = began, last
        self._steps = 0
        self._step = Session.step

    def step(self, session: Session, /, **values: Any) -> None:
        """Called in place of `Session.step`."""
        self._step(session, **values)
        self._steps += 1
        if self._steps == 1:
            with self._began.open("a", encoding="ascii") as lines:
                lines.write(f"{time.monotonic():.3f}\n")
        if self._steps == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> int:
    folder, unit, module, *arguments = argv

    def wait_for_go() -> None:
        (Path(folder) / f"{unit}.ready").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(_POLL)

    watch = _Watch(Path(folder) / f"{unit}.began", int(os.environ.get(DIES_AFTER, "0")))

    def step(session: Session, /, **values: Any) -> None:
        watch.step(session, **values)

    Session.step = step  # type: ignore[method-assign,assignment]
    status: int = importlib.import_module(module).main(arguments, before_join=wait_for_go)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
