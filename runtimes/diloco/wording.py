"""Counts in sentences, and what others say."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """`1 unit`, `2 units`, `0 units`. `many`: the words for any count but 1, if they are not those for 1 and an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def one_line(text: str, most: int) -> str:
    """What a stranger said, in one printable line of at most so many characters."""
    return "".join(character if character.isprintable() else " " for character in text[:most]).strip()
