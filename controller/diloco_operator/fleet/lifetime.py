"""When a node ends, where that is known: flex-start capacity, limited run times. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.fleet.node import NodeView

_DIGITS = 12
"""The most digits of a lifetime in seconds. More are no lifetime."""


@dataclass(frozen=True, slots=True)
class LifetimeSignals:
    """What tells the end of a node. A time in an annotation is in `NodeView.announced_end` already."""

    lifetime_labels: Sequence[str]
    """Labels whose value is how long the node may live, in seconds from its creation."""
    flex_start_labels: Sequence[tuple[str, str]]
    """Labels with their values of nodes that live `flex_start_lifetime` at most."""
    flex_start_lifetime: float
    """Seconds from the creation of a node that announces nothing more exact."""
    lead: float
    """Seconds before the end at which units leave the node."""


def end_of_life(node: NodeView, signals: LifetimeSignals) -> float | None:
    """Return when the node ends at the latest, in seconds since the epoch; None: not known. What is announced for this node outweighs what
    holds for all of its kind."""
    ends = [] if node.announced_end is None else [node.announced_end]
    if node.created is not None:
        lifetimes = (_seconds(node.labels.get(label, "")) for label in signals.lifetime_labels)
        ends += [node.created + lifetime for lifetime in lifetimes if lifetime]
        if not ends and any(node.labels.get(key) == value for key, value in signals.flex_start_labels):
            ends.append(node.created + signals.flex_start_lifetime)
    return min(ends, default=None)


def _seconds(value: str) -> int:
    """Return seconds; 0: it is none."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else 0
