"""Wraps texts for a terminal. Pure."""

from __future__ import annotations

import textwrap

_LEAST_WIDTH = 60
"""Least width in columns. On a narrower terminal, lines that it breaks itself read better than shorter ones."""


def wrapped(text: str, label: str, width: int) -> list[str]:
    """Break the text into lines of `width` columns, or keep one line if `width` is 0. `label` stands before the first line, and the others
    are indented as far."""
    # Messages of people and other programs may have line breaks, which would end the indentation.
    whole = " ".join(text.split())
    if not width:
        return [f"{label}{whole}"]
    wide = max(width, _LEAST_WIDTH)
    # Not broken at hyphens: names of units and options have some, and must stay whole to be copied.
    return textwrap.wrap(
        whole, wide, initial_indent=label, subsequent_indent=" " * len(label), break_long_words=False, break_on_hyphens=False
    )
