"""Free space of a volume. It is checked before a large write, so that the error says how much is missing and nothing is half-written.

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
    """A file system has less free space than a write needs."""


def demand(folder: Path, needed: int) -> None:
    """Raise `NoRoom` if the file system of `folder`, which may not exist yet, has fewer free bytes than `needed`."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        status = os.statvfs(existing)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    # A file system without blocks does not say how much is free: a full one will refuse the write itself.
    if status.f_blocks and free < needed:
        raise NoRoom(errno.ENOSPC, f"it needs {bytes_text(needed)}, and {bytes_text(free)} are free", str(folder))


def remedy(error: OSError, *besides: str) -> str:
    """Return what to do about a refused write to the syncer's volume. `besides`: what else helps if it is full."""
    if error.errno not in _FULL:
        return "Check the syncer's volume"
    return " or ".join([f"Give the syncer's volume more room ({STORAGE_FIELD})", *besides])
