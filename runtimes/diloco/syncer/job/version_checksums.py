"""The checksums of the versions that were made lately. They tell whether a learner holds what this state has made. Pure.

The number of an outer step does not name contents: a syncer whose volume was restored from a backup takes steps again, with other results.
A learner that was away meanwhile holds the former ones.

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

KEPT = 64
"""Versions of each fragment. A learner that holds an older one begins anew. It was away for 64 times H local steps, hours for a large
model."""
KEPT_IN_ALL = 1 << 14
"""Versions of all fragments together, as each snapshot's manifest has them. A job with thousands of fragments keeps fewer of each."""


class VersionChecksums:
    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}
        """By fragment, outer step -> checksum, the newest last."""

    def add(self, p: int, t: int, checksum: int) -> None:
        versions = self._of.setdefault(p, {})
        versions[t] = checksum
        while len(versions) > max(2, min(KEPT, KEPT_IN_ALL // len(self._of))):
            del versions[next(iter(versions))]

    def of(self, p: int, t: int) -> int:
        """Return the checksum of version t of fragment p. 0 if it is not known, as that of a seed."""
        return self._of.get(p, {}).get(t, 0)

    def may_be(self, p: int, t: int, checksum: int) -> bool:
        """Return whether version t of fragment p, as this state has made it, may have this checksum. 0: nothing is known of it."""
        return not checksum or self.of(p, t) == checksum

    def to_json(self) -> dict[str, Any]:
        return {str(p): {str(t): checksum for t, checksum in versions.items()} for p, versions in self._of.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Mapping[str, int]]) -> Self:
        """Read what `to_json` wrote. Raises TypeError or ValueError for anything else."""
        checksums = cls()
        for p, versions in stored.items():
            for t, checksum in sorted((int(t), int(checksum)) for t, checksum in versions.items()):
                checksums.add(int(p), t, checksum)
        return checksums
