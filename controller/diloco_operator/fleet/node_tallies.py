"""Counts over all nodes: the signs that their labels show, and what is odd about their accelerators. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection

from diloco_operator.accelerators import Sign, signs
from diloco_operator.fleet.nearby import Oddity, oddity
from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.slice_kinds import kind_of
from diloco_operator.fleet.slices import OddNodes, SliceKind


class NodeTallies:
    """Counts that are kept up to date node by node."""

    def __init__(self) -> None:
        self._signs: Counter[Sign] = Counter()
        self._odd: dict[Oddity, dict[str, None]] = {}
        """Oddity -> the nodes that have it."""

    def copy(self) -> NodeTallies:
        copy = NodeTallies()
        copy._signs = Counter(self._signs)
        copy._odd = {why: dict(nodes) for why, nodes in self._odd.items()}
        return copy

    @property
    def signs(self) -> Collection[Sign]:
        return self._signs.keys()

    def odd_nodes(self, resource: str, most: int) -> tuple[OddNodes, ...]:
        """Return the odd nodes whose accelerators are of this resource, or of an unknown one: at most `most` groups, the largest first."""
        oddities = ((why, nodes) for why, nodes in self._odd.items() if resource and why.resource in ("", resource))
        groups = heapq.nsmallest(most, oddities, key=lambda each: (-len(each[1]), each[0]))
        return tuple(OddNodes(why.what, why.remedy, len(nodes), next(iter(nodes))) for why, nodes in groups)

    def note(self, old: NodeView | None, new: NodeView | None, kind: SliceKind | None = None) -> None:
        """Note that a node changed, came (`old` is None) or went (`new` is None). `kind` is the kind of the new node."""
        self._note_oddity(old, new, kind)
        if old is not None and new is not None and old.labels == new.labels:
            return
        if new is not None:
            self._signs.update(signs(new.labels))
        if old is not None:
            for sign in signs(old.labels):
                self._signs[sign] -= 1
                if not self._signs[sign]:
                    del self._signs[sign]

    def _note_oddity(self, old: NodeView | None, new: NodeView | None, kind: SliceKind | None) -> None:
        before = oddity(old, kind_of(old)) if old is not None else None
        now = oddity(new, kind) if new is not None else None
        if before == now:
            return
        if old is not None and before is not None:
            del self._odd[before][old.name]
            if not self._odd[before]:
                del self._odd[before]
        if new is not None and now is not None:
            self._odd.setdefault(now, {})[new.name] = None
