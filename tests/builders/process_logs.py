"""What the processes of a test wrote last, to be shown when it fails. Builders let them write to `*.log` in pytest's temporary folders."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_LINES = 40
"""Of each log."""
_WIDTH = 250
"""Bytes of a line on average: what comes before the last _LINES * _WIDTH is not read."""
_LOGS = 40
"""Those that were written to last."""


def last_lines(folders: Iterable[Path], since: float) -> Iterator[tuple[str, str]]:
    """Yield the name below its folder and the last lines of each log that was written to since then, seconds of the Unix epoch."""
    logs = sorted(itertools.chain.from_iterable(_written(folder, since) for folder in folders), reverse=True)
    for _, folder, log in sorted(logs[:_LOGS], key=lambda each: each[2]):
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LINES * _WIDTH))
            lines = file.read(_LINES * _WIDTH).decode(errors="replace").splitlines()
            yield str(log.relative_to(folder)), "\n".join(lines[-_LINES:])
    if len(logs) > _LOGS:
        yield "logs that are not shown", "\n".join(str(log) for _, _, log in logs[_LOGS:])


def _written(folder: Path, since: float) -> Iterator[tuple[float, Path, Path]]:
    """Yield when each log was written to last, its folder, and its path. Folders that links lead to are not entered."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if name.endswith(".log")):
            with contextlib.suppress(OSError):  # a process that still runs may remove what is its own
                found = path.stat()
                if found.st_size and found.st_mtime >= since:
                    yield found.st_mtime, folder, path
