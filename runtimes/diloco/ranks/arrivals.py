"""Which version of a fragment all ranks of a unit have. Pure.

Each rank tells the leader of one version of a fragment at a time, and keeps it until it is adopted or dropped. So every rank has what the
leader orders to adopt, and holds at most two versions of each fragment.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diloco.ranks.orders import Version


class ReceivedVersions[V]:
    """What one rank has received and not adopted yet."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[Version, V]] = {}
        self._newest: dict[int, tuple[Version, V]] = {}

    def add(self, fragment: int, version: Version, value: V) -> Version | None:
        """Note that a version has come. Returns the version to tell the leader of now, or None."""
        self._newest[fragment] = (version, value)
        return None if fragment in self._told else self._promote(fragment)

    def adopt(self, fragment: int, version: Version) -> tuple[V | None, Version | None]:
        """Return (the value, the version to tell the leader of now). The value is None if this rank has not told of `version`; the version
        may be None."""
        known, value = self._told.get(fragment, (None, None))
        if known != version:
            return None, None
        del self._told[fragment]
        return value, self._promote(fragment)

    def drop(self, fragment: int, version: Version) -> Version | None:
        """Drop a version that another rank will never have. Returns the version to tell the leader of now, or None."""
        if self._told.get(fragment, (None, None))[0] != version:
            return None
        del self._told[fragment]
        return self._promote(fragment)

    def waiting(self, ordered: Mapping[int, Version]) -> set[int]:
        """Return the fragments with a received version whose adoption is not ordered yet. `ordered`: the version of each fragment whose
        adoption was ordered last."""
        return {*self._newest, *(fragment for fragment, (version, _) in self._told.items() if ordered.get(fragment) != version)}

    def _promote(self, fragment: int) -> Version | None:
        newest = self._newest.pop(fragment, None)
        if newest is None:
            return None
        self._told[fragment] = newest
        return newest[0]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Tell this rank to drop a version."""

    rank: int
    fragment: int
    version: Version


class Arrivals:
    """What the leader knows of the versions that ranks have received. Finds the versions that all owners of a fragment have."""

    def __init__(self, owners: Sequence[Collection[int]]) -> None:
        """`owners`: for each fragment the ranks that own a part of it, at least one."""
        self._owners = [frozenset(ranks) for ranks in owners]
        self._told: list[dict[int, Version]] = [{} for _ in owners]

    def received(self, rank: int, fragment: int, version: Version) -> None:
        """Note that the rank has this version. Ignored if the rank owns nothing of the fragment."""
        if rank in self._owners[fragment]:
            self._told[fragment][rank] = version

    def settle(self) -> tuple[list[tuple[int, Version]], list[Dropped]]:
        """Return (versions that all owners have and can adopt now, each given once; versions that cannot become common)."""
        common: list[tuple[int, Version]] = []
        dropped: list[Dropped] = []
        for fragment, versions in enumerate(self._told):
            if not versions:
                continue
            newest = max(versions.values())
            dropped += [Dropped(rank, fragment, version) for rank, version in versions.items() if version < newest]
            versions = self._told[fragment] = {rank: version for rank, version in versions.items() if version == newest}
            if len(versions) == len(self._owners[fragment]):
                common.append((fragment, newest))
                versions.clear()
        return common, dropped
