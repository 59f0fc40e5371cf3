"""The colour of each phase of a unit in charts, and its style in a terminal. Pure.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.api.phases import Phase


class Look(NamedTuple):
    colour: str
    """CSS colour in charts."""
    style: str
    """Style of rich in a terminal, which can be read on light and dark ones."""


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
