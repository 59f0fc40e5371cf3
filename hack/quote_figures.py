"""Writes what benchmarks printed into the pages that quote it: hack/quote_figures.py LINES, a file of JSON lines of `python -m benchmarks`.

README.md and docs/results/*.md quote figures in two kinds of places, and count limits in a third:

- A row of a table with the head `| figure | limit | ours | command | commit |`, or the same without the command. Its first cell begins with
  the name of the figure in backticks, or with that and the name of a field of its line: `figure` `field.part`. The cells "ours" and
  "commit" are written.
- A number before a mark, `1.004<!-- figure -->` or `8.7<!-- figure field.part -->`.
- Between `<!-- limits -->` and `<!-- /limits -->` stands how many limits there are on all pages, and how many are met; between
  `<!-- missed -->` and `<!-- /missed -->` stand the names of the others.

If a line cannot be quoted, nothing is written and the exit status is 1. That is so for a smoke run, for changes that are not committed, and
for a figure without a place.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "| figure | limit | ours | command | commit |"
HEADS = (HEAD, "| figure | limit | ours | commit |")
MISSING = "not recorded"
"""Stands in the cell of a figure that no run has printed yet."""
_COMMIT_DIGITS = 8
_BAR = re.compile(r"(?<!\\)\|")
_NAME = re.compile(r"`([\w.-]+)`(?: `([\w.-]+)`)?")
_MARK = re.compile(r"[\d.,]+(<!-- ([\w.-]+)(?: ([\w.-]+))? -->)")
_LIMITS = re.compile(r"(<!-- limits -->).*(<!-- /limits -->)")
_MISSED = re.compile(r"(<!-- missed -->).*(<!-- /missed -->)")
_CLEAN_COMMIT = re.compile(r"[0-9a-f]{8,40}")

type Line = Mapping[str, object]
type Key = tuple[str, str]
"""Name of a figure, and name of a field of its line. "" stands for the field `value`."""


class Unquotable(Exception):
    """A line cannot be quoted. The message says why, and what to do."""


def pages() -> list[Path]:
    """Every page that quotes figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]


def read_lines(text: str) -> dict[str, Line]:
    """The newest line of each figure. Text that is no JSON line, such as the output of make, is skipped. Raises `Unquotable`."""
    newest: dict[str, Line] = {}
    for number, text_line in enumerate(text.splitlines(), 1):
        if not text_line.startswith("{"):
            continue
        try:
            line = json.loads(text_line)
            name, commit = str(line["figure"]), str(line["commit"])
        except (ValueError, KeyError) as error:
            raise Unquotable(f"line {number}: no line of a benchmark: {error!r}") from error
        if "smoke" in line:
            raise Unquotable(f"line {number}: {name} is of a smoke run, whose values mean nothing; run it without --smoke")
        if not _CLEAN_COMMIT.fullmatch(commit):
            raise Unquotable(f"line {number}: {name} is of commit {commit}; commit what you changed and measure again")
        newest[name] = line
    return newest


def number(value: object) -> str:
    """The value with four significant digits, without an exponent. Whole numbers are exact."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unquotable(f"{value!r} is no number")
    if value == int(value):
        return f"{int(value):,}"
    return format(Decimal(f"{value:.4g}"), ",f")


def value_of(line: Line, field: str) -> str:
    """The number in a field of the line; "" means `value`. `processor_ms.with.other_threads` is a field in objects."""
    value: object = line
    parts = field.split(".") if field else ["value"]
    for part in parts:
        if not isinstance(value, Mapping) or part not in value:
            raise Unquotable(f"the line of {line['figure']} has no field {field}")
        value = value[part]
    try:
        return number(value)
    except Unquotable as error:
        raise Unquotable(f"{line['figure']}, field {field or 'value'}: {error}") from error


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _BAR.split(row)[1:-1]]


def _lines_of_page(text: str) -> Iterator[tuple[str, Key | None]]:
    """Yield each line with the figure whose row it is. None if it is no such row."""
    quoting = False
    for line in text.splitlines():
        quoting = line in HEADS or (quoting and line.startswith("|"))
        named = _NAME.match(_cells(line)[0]) if quoting else None
        yield line, (named[1], named[2] or "") if named else None


def rows(text: str) -> dict[Key, list[str]]:
    """The cells of each row that quotes a figure."""
    return {key: _cells(line) for line, key in _lines_of_page(text) if key}


def marks(text: str) -> dict[Key, str]:
    """The number before each mark."""
    return {(mark[2], mark[3] or ""): mark[0].removesuffix(mark[1]) for mark in _MARK.finditer(text)}


def quoted(text: str, lines: Mapping[str, Line]) -> str:
    """The page with the figures of the lines. Raises `Unquotable`."""

    def replaced(mark: re.Match[str]) -> str:
        return value_of(lines[mark[2]], mark[3] or "") + mark[1] if mark[2] in lines else mark[0]

    page_lines = []
    for line, key in _lines_of_page(text):
        if key and key[0] in lines:
            field, measured = key[1], lines[key[0]]
            name, limit, _, *command, _ = _cells(line)
            value = value_of(measured, field)
            missed = not field and not measured["ok"]
            cells = (name, limit, f"**{value}**" if missed else value, *command, str(measured["commit"])[:_COMMIT_DIGITS])
            page_lines.append(f"| {' | '.join(cells)} |")
        else:
            page_lines.append(_MARK.sub(replaced, line))
    return "\n".join(page_lines) + "\n"


def figures(texts: Iterable[str]) -> dict[Key, list[str]]:
    """The cells of each row that quotes a figure, from all pages."""
    return {key: cells for text in texts for key, cells in rows(text).items()}


def counted(page: str, quoted_figures: Mapping[Key, list[str]]) -> str:
    """The page with the count of all limits, and with the names of those that are missed."""
    limited = {key: cells for key, cells in quoted_figures.items() if cells[1] and cells[2] != MISSING}
    missed = [" ".join(f"`{part}`" for part in key if part) for key, cells in sorted(limited.items()) if cells[2].startswith("**")]
    met = f"{len(limited) - len(missed)} of our {len(limited)} limits for figures are met."
    return _MISSED.sub(rf"\g<1>{', '.join(missed)}\2", _LIMITS.sub(rf"\g<1>{met}\2", page))


def without_a_place(texts: Iterable[str], lines: Mapping[str, Line]) -> list[str]:
    """The figures of the lines that no page quotes in a row."""
    placed = {name for text in texts for name, _ in rows(text)}
    return sorted(set(lines) - placed)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: hack/quote_figures.py LINES\n")
        return 2
    texts = {page: page.read_text() for page in pages()}
    try:
        lines = read_lines(Path(arguments[0]).read_text())
        if unplaced := without_a_place(texts.values(), lines):
            raise Unquotable(f"no row for {', '.join(unplaced)}; add one to docs/results/further-figures.md")
        new = {page: quoted(text, lines) for page, text in texts.items()}
        new = {page: counted(text, figures(new.values())) for page, text in new.items()}
    except Unquotable as error:
        sys.stderr.write(f"{arguments[0]}: {error}\n")
        return 1
    for page, text in new.items():
        if text != texts[page]:
            page.write_text(text)
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
