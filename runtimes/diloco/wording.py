"""How messages write counts, lists, sizes, losses, and texts that come from outside."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, one: str, many: str = "") -> str:
    """Return `1 unit`, `2 units`, `0 units`. `many`: the plural, if it is not `one` and an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def and_more(named: Sequence[str], count: int) -> str:
    """Return `a, b and 3 more`. `named`: the first of `count` names."""
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return ", ".join(named) + more


def some(items: Sequence[str], most: int = 5) -> str:
    """Return the first items and how many more there are."""
    return and_more(items[:most], len(items))


def bytes_text(size: float) -> str:
    """Return a text such as `3.4 MiB`."""
    if size < 1 << 20:
        return f"{size:,.0f} bytes"
    return f"{size / (1 << 20):,.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):,.2f} GiB"


def parameters_text(count: int) -> str:
    """Return a model's size as people say it: `1.1 B`, `124 M`, `4,096`."""
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e9:.3g} B" if count >= 1_000_000_000 else f"{count / 1e6:.3g} M"


def loss_text(loss: float, digits: int = 4) -> str:
    """Return `2.310`, `0.004120`, `4.100e-05`: `digits` significant digits, so that a small loss does not look like 0."""
    return f"{loss:#.{digits}g}".removesuffix(".")


def one_line(text: str, most: int) -> str:
    """Return a text from outside as one printable line of at most `most` characters."""
    return "".join(character if character.isprintable() else " " for character in text[:most]).strip()
