"""How each phase of a unit looks: its colour in charts, and its style in a terminal. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.api.phases import Phase


class Look(NamedTuple):
    """One phase, wherever it is shown."""

    colour: str
    """In a chart, as CSS writes it."""
    style: str
    """In a terminal, as rich writes it: one that both light and dark ones can show."""


LOOKS: Mapping[Phase, Look] = {
    Phase.MISSING: Look("#b8b8b8", "dim"),
    Phase.START: Look("#e8c15a", "yellow"),
    Phase.COMPILE: Look("#a98fd0", "magenta"),
    Phase.TRAINING: Look("#3a9d6e", "green"),
    Phase.WAITING: Look("#8cc2dd", "cyan"),
    Phase.PAUSE: Look("#5f7fc4", "blue"),
    Phase.LOST_WORK: Look("#8f1d1d", "red"),
    Phase.RECOVERY: Look("#e2593c", "red"),
    Phase.RECONFIGURATION: Look("#a3713a", "yellow"),
    Phase.FAILED: Look("#7b1e3a", "bold red"),
    Phase.OVER: Look("#d5d9dc", "dim"),
}
