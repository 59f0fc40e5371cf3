"""Helpers with which the generators in this folder write Markdown: wrapped text, lists, and tables with aligned columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 120
PADDED = 56


def paragraph(text: str) -> str:
    """Wrapped at `WIDTH` characters."""
    return _fill(outside_code(text)) + "\n"


def bullet(text: str) -> str:
    """One item of a list, wrapped at `WIDTH` characters."""
    return _fill(outside_code(text), initial_indent="- ", subsequent_indent="  ") + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table. Every column but the last is padded to the width of its longest cell; cells longer than `PADDED` do not count."""
    cells = [[cell(each) for each in row] for row in rows]
    columns = range(len(header) - 1)
    widths = [max(length for row in [header, *cells] if (length := len(row[index])) <= PADDED) for index in columns]

    def line(row: Sequence[str]) -> str:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        return f"| {' | '.join([*padded, row[-1]])} |\n".replace("|  |\n", "| |\n")

    return line(header) + line([*("-" * width for width in widths), "---"]) + "".join(line(row) for row in cells)


def cell(text: str) -> str:
    """One line. What would end the cell or begin a tag is escaped."""
    return outside_code(text).replace("|", "\\|")


def outside_code(text: str) -> str:
    """One line. A `<` that would begin a tag is escaped, except in code spans, where Markdown shows it as it is."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"<(?=[A-Za-z/!?])", "&lt;", part) for part in parts)


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with `text` between these two lines, in place of what stands there."""
    head, begins, rest = page.partition(begin)
    _, ends, tail = rest.partition(end)
    if not begins or not ends:
        raise SystemExit(f"the page has no place for the table: it needs the lines {begin.strip()} and {end.strip()}")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _fill(text: str, *, initial_indent: str = "", subsequent_indent: str = "") -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=initial_indent,
        subsequent_indent=subsequent_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
