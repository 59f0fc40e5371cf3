"""Wraps texts for a terminal. Pure."""

from __future__ import annotations

import textwrap

_LEAST_WIDTH = 60
"""Least width in columns. On a narrower terminal, lines that it breaks itself read better than shorter ones."""


def wrapped(text: str, label: str, width: int) -> list[str]:
    """Break the text into lines of `width` columns (0 for one line), with `label` before the first one and the others indented as far."""
    # Messages of people and other programs may have line breaks, which would end the indentation.
    whole = " ".join(text.split())
    if not width:
        return [f"{label}{whole}"]
    wide = max(width, _LEAST_WIDTH)
    # Names of units and options have hyphens, and must stay whole to be copied.
    return textwrap.wrap(
        whole, wide, initial_indent=label, subsequent_indent=" " * len(label), break_long_words=False, break_on_hyphens=False
    )
