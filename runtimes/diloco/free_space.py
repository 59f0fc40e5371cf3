"""Room on a volume: asked for before anything large is written, so that what is missing is told in figures and nothing is half-written.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from diloco.wording import bytes_text

STORAGE_FIELD = "spec.syncer.storage.size"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoRoom(OSError):
    """A file system has less room than what is to be written."""


def demand(folder: Path, needed: int) -> None:
    """Raise `NoRoom` if the file system of `folder`, which may not exist yet, has fewer free bytes than `needed`. One that does not say how
    many it has is taken at its word when it is written to."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        found = os.statvfs(there)
    except OSError:
        return
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and free < needed:
        raise NoRoom(errno.ENOSPC, f"it needs {bytes_text(needed)}, and {bytes_text(free)} are free", str(folder))


def remedy(error: OSError, *besides: str) -> str:
    """Return what to do about a write to the syncer's volume that was refused. `besides`: what else helps where it is full."""
    if error.errno not in _FULL:
        return "Check the syncer's volume"
    return " or ".join([f"Give the syncer's volume more room ({STORAGE_FIELD})", *besides])
