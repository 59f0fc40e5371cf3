"""When a node ends, if that is known: flex-start capacity, limited run times. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.fleet.node import NodeView

_DIGITS = 12
"""A number with more digits than this is no lifetime in seconds."""


@dataclass(frozen=True, slots=True)
class LifetimeSignals:
    """What tells when a node ends. Times in annotations are not among it: they are in `NodeView.announced_end`."""

    lifetime_labels: Sequence[str]
    """Labels whose value is how long the node may live, in seconds from its creation."""
    flex_start_labels: Sequence[tuple[str, str]]
    """Labels, with their values, of nodes that live at most `flex_start_lifetime`."""
    flex_start_lifetime: float
    """Seconds from the creation of a node that announces nothing more exact."""
    lead: float
    """How many seconds before the end units leave the node."""


def end_of_life(node: NodeView, signals: LifetimeSignals) -> float | None:
    """Return when the node ends at the latest, in seconds since the epoch. None if that is not known. An end that this node announces
    outweighs the general lifetime of flex-start nodes."""
    ends = [] if node.announced_end is None else [node.announced_end]
    if node.created is not None:
        lifetimes = (_seconds(node.labels.get(label, "")) for label in signals.lifetime_labels)
        ends += [node.created + lifetime for lifetime in lifetimes if lifetime]
        if not ends and any(node.labels.get(key) == value for key, value in signals.flex_start_labels):
            ends.append(node.created + signals.flex_start_lifetime)
    return min(ends, default=None)


def _seconds(value: str) -> int:
    """Return the value as seconds, or 0 if it is no lifetime."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else 0
