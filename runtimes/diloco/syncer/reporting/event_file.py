"""TensorBoard's event files: scalars over outer steps, in files that are only appended to.

    <root>/events.out.tfevents.00000003.t240

The first number counts the files, and readers sort them by it. The second is the outer step at which the file begins. Each process begins a
file of its own with a START event. A reader then forgets what earlier files have from that step on, so no step appears twice after a
roll-back. TensorBoard's own package, the extra `tensorboard`, writes the format.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE_VERSION = "brain.Event:2"
MOST_FILES = 64
MOST_BYTES = 64 << 20
"""The most bytes of all files together when a new one begins; the oldest are removed. Only a job whose syncer restarts again and again
reaches these limits."""

_NAME = re.compile(r"^events\.out\.tfevents\.(\d{8,})\.t\d+$")


def installed() -> bool:
    """Whether TensorBoard's package is installed. Does not import it."""
    return find_spec("tensorboard") is not None


class EventFile:
    """One event file, written by one thread at a time. Needs TensorBoard's package. Its methods raise OSError."""

    def __init__(self, root: Path, t: int, wall_time: float) -> None:
        """Open a new file in `root` that begins at outer step `t`. `wall_time`: seconds since the epoch."""
        # Imported here, in the writer's thread, because it takes 0.2 s of a core, and a syncer without learners does not need it.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        self._summary: Any = Summary
        root.mkdir(parents=True, exist_ok=True)
        self.path = root / f"events.out.tfevents.{_make_room(root):08d}.t{t}"
        self._file: Any = RecordWriter(self.path.open("xb"))
        self._readable = False
        self._append(Event(wall_time=wall_time, file_version=FILE_VERSION))
        self._append(Event(wall_time=wall_time, step=t, session_log=SessionLog(status=SessionLog.START)))

    def write(self, t: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag at outer step `t`."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._append(self._event(wall_time=wall_time, step=t, summary=self._summary(value=values)))

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()
        self._readable = True

    def close(self) -> None:
        """Close the file, also after an error, and remove it if nothing in it was flushed. Raises nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._readable:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _append(self, event: Any) -> None:
        self._file.write(event.SerializeToString())


def event_files(root: Path) -> list[Path]:
    """Return the event files in `root`, oldest first."""
    if not root.is_dir():
        return []
    numbered = [(int(match[1]), entry) for entry in root.iterdir() if (match := _NAME.match(entry.name))]
    return [entry for _, entry in sorted(numbered)]


def _make_room(root: Path) -> int:
    """Remove the oldest files beyond the limits, and return the number of the next one."""
    files = event_files(root)
    sizes = [path.stat().st_size for path in files]
    while files and (len(files) >= MOST_FILES or sum(sizes) > MOST_BYTES):
        files.pop(0).unlink(missing_ok=True)
        sizes.pop(0)
    return 1 + max((int(match[1]) for path in files if (match := _NAME.match(path.name))), default=0)
