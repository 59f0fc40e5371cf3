"""The slices of the fleet, one kind beside the other: what is known of each, and which can be had. Pure.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from diloco_operator.fleet.slices import Slice, SliceKind, SliceState, is_divisible

type Key = tuple[str, str]
"""Node pool and name: the order in which slices are offered."""


@dataclass(slots=True)
class Entry:
    """The hosts of one slice, complete or not."""

    kind: SliceKind
    key: Key
    kinds: dict[str, SliceKind] = field(default_factory=dict)
    """Node -> its kind."""
    of_kind: dict[SliceKind, int] = field(default_factory=dict)
    """Nodes of each kind."""
    broken: str = ""
    """Why these hosts are no slice."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Node -> why no unit can start on it now."""
    used: dict[str, int] = field(default_factory=dict)
    """Node -> other pods that use its accelerators."""
    reserved: int = 0
    """Nodes that a job has reserved."""
    slice_: Slice | None = None
    """None: must be made anew."""
    room_known: bool = False
    """False: the room of `slice_` must be computed again."""
    filed: SliceState | None = None
    """Under which state the index has it; None: it has it not."""
    left: int = 0
    """Accelerators of a divisible host that no unit and no other pod has."""
    offered: bool = False
    """Whether the index offers it, or what is left of it."""

    @property
    def nodes(self) -> Collection[str]:
        """The hosts, in a copy too."""
        return self.kinds if self.slice_ is None else tuple(host.node for host in self.slice_.hosts)

    @property
    def state(self) -> SliceState:
        if self.reserved:
            return SliceState.RESERVED
        if self.broken or self.unusable:
            return SliceState.UNUSABLE
        return SliceState.USED if self.used else SliceState.FREE

    @property
    def divisible(self) -> bool:
        return is_divisible(self.kind.accelerator)

    @property
    def offers(self) -> bool:
        """Whether a unit can start here."""
        if self.broken or self.unusable:
            return False
        return self.left > 0 if self.divisible else not self.reserved and not self.used

    @property
    def why_not(self) -> str:
        """Why it cannot be used, "" when it can; its users do not matter."""
        return self.broken or (self.unusable[min(self.unusable)] if self.unusable else "")

    def copy(self) -> Entry:
        """Copy the entry for a reader: without what only a change of nodes needs."""
        # A reservation of the reader changes what is used; nothing of it changes what is unusable.
        unusable = dict(self.unusable) if self.unusable else _UNKNOWN
        return Entry(
            self.kind, self.key, _UNKNOWN, _UNKNOWN, self.broken, unusable, dict(self.used), self.reserved, self.slice_, self.room_known,
            self.filed, self.left, self.offered,
        )  # fmt: skip


_UNKNOWN = cast("dict[Any, Any]", MappingProxyType({}))
"""What copies share: to note something there raises TypeError."""


@dataclass(slots=True)
class SliceIndex:
    """All slices of one kind."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    free: list[Key] = field(default_factory=list)
    """Sorted: usable, and no unit or other pod has all of it."""
    unusable: dict[Key, None] = field(default_factory=dict)
    """Reserved or not."""
    used: dict[Key, None] = field(default_factory=dict)
    """Usable, not reserved, and used by other pods."""
    reserved: dict[Key, None] = field(default_factory=dict)

    def file(self, entry: Entry) -> None:
        """Note the state that the entry has now."""
        if entry.broken or entry.unusable:
            self.unusable[entry.key] = None
        else:
            self.unusable.pop(entry.key, None)
        if entry.offers is not entry.offered:
            self._note_offer(entry, offered=entry.offers)
        state = entry.state
        if state is not entry.filed:
            self._unfile(entry)
            if state is SliceState.USED:
                self.used[entry.key] = None
            elif state is SliceState.RESERVED:
                self.reserved[entry.key] = None
            entry.filed = state

    def remove(self, entry: Entry) -> None:
        if entry.offered:
            self._note_offer(entry, offered=False)
        self._unfile(entry)
        entry.filed = None
        self.unusable.pop(entry.key, None)
        del self.entries[entry.key]

    def _note_offer(self, entry: Entry, *, offered: bool) -> None:
        entry.offered = offered
        if offered:
            bisect.insort(self.free, entry.key)
        else:
            del self.free[bisect.bisect_left(self.free, entry.key)]

    def _unfile(self, entry: Entry) -> None:
        if entry.filed is SliceState.USED:
            del self.used[entry.key]
        elif entry.filed is SliceState.RESERVED:
            del self.reserved[entry.key]

    def copy(self) -> SliceIndex:
        entries = {key: entry.copy() for key, entry in self.entries.items()}
        return SliceIndex(entries, list(self.free), dict(self.unusable), dict(self.used), dict(self.reserved))
