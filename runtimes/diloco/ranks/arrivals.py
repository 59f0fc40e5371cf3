"""Which version of a fragment all ranks of a unit have. Pure.

Each rank tells the leader of one version of a fragment at a time and keeps that until it is adopted or dropped, so that what the leader
orders is there. Of each fragment a rank holds two versions at most.

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

    def came(self, fragment: int, version: Version, value: V) -> Version | None:
        """Note that a version has come. Returns what to tell the leader of now; None: nothing, or later."""
        self._newest[fragment] = (version, value)
        return None if fragment in self._told else self._promote(fragment)

    def adopt(self, fragment: int, version: Version) -> tuple[V | None, Version | None]:
        """Return (the value, which this rank told of; None if it owns nothing of the fragment, what to tell the leader of now)."""
        told, value = self._told.get(fragment, (None, None))
        if told != version:
            return None, None
        del self._told[fragment]
        return value, self._promote(fragment)

    def drop(self, fragment: int, version: Version) -> Version | None:
        """Drop a version that the leader does not want: another rank will never have it. Returns what to tell the leader of now."""
        if self._told.get(fragment, (None, None))[0] != version:
            return None
        del self._told[fragment]
        return self._promote(fragment)

    def waiting(self, ordered: Mapping[int, Version]) -> set[int]:
        """Return fragments of which something came that is not ordered to be adopted. `ordered`: the version of each fragment that was
        last."""
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
    """What the leader knows of the versions that ranks have received, and when all owners of a fragment have the same one."""

    def __init__(self, owners: Sequence[Collection[int]]) -> None:
        """Begin with `owners`: for each fragment the ranks that own a part of it, at least one."""
        self._owners = [frozenset(ranks) for ranks in owners]
        self._told: list[dict[int, Version]] = [{} for _ in owners]

    def told(self, rank: int, fragment: int, version: Version) -> None:
        """Note that the rank has this version. Ignored from one that owns nothing of the fragment."""
        if rank in self._owners[fragment]:
            self._told[fragment][rank] = version

    def settle(self) -> tuple[list[tuple[int, Version]], list[Dropped]]:
        """Return (versions that all owners have: to be adopted now, each given once; versions that cannot become common)."""
        common: list[tuple[int, Version]] = []
        dropped: list[Dropped] = []
        for fragment, told in enumerate(self._told):
            if not told:
                continue
            newest = max(told.values())
            dropped += [Dropped(rank, fragment, version) for rank, version in told.items() if version < newest]
            told = self._told[fragment] = {rank: version for rank, version in told.items() if version == newest}
            if len(told) == len(self._owners[fragment]):
                common.append((fragment, newest))
                told.clear()
        return common, dropped
