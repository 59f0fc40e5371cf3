"""Short names for folders of this machine.

The path of a Unix socket has at most 107 bytes (unix(7)). Programs make sockets below TMPDIR: multiprocessing and torch's data loaders use
names such as `pymp-abcdefgh/listener-abcdefgh`. The path of a pod's folder in the state directory may be too long for such a name.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

LONGEST = 40
"""Most bytes of a path that needs no short name: 67 are left for names below it."""
_SHORT = Path("/tmp")  # noqa: S108 - the folder made there is this user's alone


class ShortPaths:
    """Links to folders, in a folder that only this user can enter."""

    def __init__(self) -> None:
        self._links: dict[Path, Path] = {}
        self._numbers = itertools.count()
        self._home: Path | None = None

    def of(self, folder: Path) -> Path:
        """Return the folder, or a link to it if its path is long. Raises OSError."""
        if len(os.fsencode(folder)) <= LONGEST:
            return folder
        if folder not in self._links:
            if self._home is None:
                self._home = _own_folder()
            link = self._home / str(next(self._numbers))
            link.symlink_to(folder, target_is_directory=True)
            self._links[folder] = link
        return self._links[folder]

    def release(self, below: Path) -> None:
        """Remove the links to folders below this one."""
        for folder in [each for each in self._links if each.is_relative_to(below)]:
            self._links.pop(folder).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all links."""
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._links, self._home = {}, None


def _own_folder() -> Path:
    # mkdtemp: only this user can enter it.
    parent = _SHORT if os.access(_SHORT, os.W_OK | os.X_OK) else None
    return Path(tempfile.mkdtemp(prefix="dl-", dir=parent))
