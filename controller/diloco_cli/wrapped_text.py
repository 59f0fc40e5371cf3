"""Texts of several lines for a terminal. Pure."""

from __future__ import annotations

import textwrap

_LEAST_WIDTH = 60
"""Columns that a narrower terminal counts as: lines that it breaks read better than shorter ones."""


def wrapped(text: str, label: str, width: int) -> list[str]:
    """Break the text into lines with `label` before the first one, and indent the others as far. `width`: columns; 0: one line."""
    # Messages are of people and other programs: a line break in one would end the indentation.
    whole = " ".join(text.split())
    if not width:
        return [f"{label}{whole}"]
    wide = max(width, _LEAST_WIDTH)
    # Names of units and options have hyphens: broken there, they could not be copied.
    return textwrap.wrap(
        whole, wide, initial_indent=label, subsequent_indent=" " * len(label), break_long_words=False, break_on_hyphens=False
    )
