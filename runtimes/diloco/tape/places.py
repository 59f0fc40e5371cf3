"""Finding the tape below a folder: the state directory of `diloco up`, a syncer's volume, or the tape itself.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from diloco.tape.records import TapeError, begins_as_tape
from diloco.tape.segments import FOLDER, HISTORY, heads, heads_of, segments

_DEPTH: Final = 4
"""Levels of folders from a state directory to a tape: `volumes/<namespace>/<claim>/tape`."""


def find_tape(where: Path) -> Path:
    """Return the folder of the only tape in `where`. Raises TapeError if there is none, or several."""
    tapes = list(_tapes(where, _DEPTH)) if where.is_dir() else []
    if not tapes:
        raise TapeError(f"no tape is in {where}: it is a folder named {FOLDER} on the volume of a job's syncer")
    if len(tapes) > 1:
        raise TapeError(f"several tapes are in {where}; name one: {', '.join(map(str, sorted(tapes)))}")
    return tapes[0]


def heads_in(where: Path) -> Iterator[dict[str, Any]]:
    """Yield the heads of a segment's file, or of the tape in a folder. Raises TapeError."""
    try:
        is_file = where.is_file()
    except OSError as error:
        raise TapeError(f"{where} cannot be read: {error.strerror or error}") from error
    if not is_file:
        yield from heads(find_tape(where))
    elif not begins_as_tape(where):
        raise TapeError(
            f"{where} is no tape: name the state directory of a job, or a file 00000001.tape in it. If it was a tape, its beginning is "
            "damaged: put a good copy back in its place"
        )
    else:
        yield from heads_of(where)


def _tapes(folder: Path, depth: int) -> Iterator[Path]:
    try:
        if (folder / HISTORY).is_file() or segments(folder):
            yield folder
        elif depth:
            for below in sorted(folder.iterdir()):
                if below.is_dir() and not below.is_symlink():
                    yield from _tapes(below, depth - 1)
    except OSError as error:
        raise TapeError(f"{folder} cannot be read: {error.strerror or error}") from error
