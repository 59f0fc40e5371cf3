"""The slices of the fleet, by kind: what is known of each, and which are on offer. Pure.

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
    """The hosts of one slice, whether all of them are there or not."""

    kind: SliceKind
    key: Key
    kinds: dict[str, SliceKind] = field(default_factory=dict)
    """Node -> its kind."""
    of_kind: dict[SliceKind, int] = field(default_factory=dict)
    """Kind -> how many of the nodes are of it."""
    broken: str = ""
    """Why these hosts are no slice. "" if they are one."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Unusable node -> why no unit can start on it now."""
    used: dict[str, int] = field(default_factory=dict)
    """Used node -> how many other pods keep units off it."""
    reserved: int = 0
    """How many of the nodes jobs have reserved."""
    slice_: Slice | None = None
    """None if it must be made anew."""
    room_known: bool = False
    """Whether the room of `slice_` is up to date."""
    filed: SliceState | None = None
    """The state under which the index has the entry. None if the index does not have it."""
    left: int = 0
    """Accelerators that are left of a divisible host, see `Offers.devices_left`."""
    offered: bool = False
    """Whether the index offers the slice, or what is left of it."""

    @property
    def nodes(self) -> Collection[str]:
        """The hosts. A copy has them, too, although it has no `kinds`."""
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
        """Why the slice cannot be used, however it is used now. "" if it can."""
        return self.broken or (self.unusable[min(self.unusable)] if self.unusable else "")

    def copy(self) -> Entry:
        """Return a copy for a reader, without what only a change of nodes needs."""
        # A reservation by the reader may change `used`. It never changes `unusable`, so an empty one can be the shared mapping.
        unusable = dict(self.unusable) if self.unusable else _UNKNOWN
        return Entry(
            self.kind, self.key, _UNKNOWN, _UNKNOWN, self.broken, unusable, dict(self.used), self.reserved, self.slice_, self.room_known,
            self.filed, self.left, self.offered,
        )  # fmt: skip


_UNKNOWN = cast("dict[Any, Any]", MappingProxyType({}))
"""An empty mapping that copies share. A write to it raises TypeError."""


@dataclass(slots=True)
class SliceIndex:
    """All slices of one kind."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    free: list[Key] = field(default_factory=list)
    """Slices that are usable and not all in use by units or other pods, sorted."""
    unusable: dict[Key, None] = field(default_factory=dict)
    """Unusable slices, reserved or not."""
    used: dict[Key, None] = field(default_factory=dict)
    """Slices that are usable and not reserved, but used by other pods."""
    reserved: dict[Key, None] = field(default_factory=dict)
    """Reserved slices, usable or not."""

    def file(self, entry: Entry) -> None:
        """Sort the entry in by its present state."""
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
