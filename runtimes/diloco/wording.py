"""Counts in sentences."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """`1 unit`, `2 units`, `0 units`. `many`: the words for any count but 1, if they are not those for 1 and an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"
