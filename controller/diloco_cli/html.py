"""HTML pages as trees of elements, so that no text of a job can become markup, and the CSS of all pages. Pure.

See docs/decisions/0216-figures-and-plots.md. See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element, tostring

from diloco_cli.svg import element

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5d6771; --line: #e3e6e9; --paper: #ffffff; --note: #fdf3d7; --link: #0b62a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa5af; --line: #343b43; --paper: #14181d; --note: #3a3015; --link: #6cb6f5; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Arial, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 20px; margin: 36px 0 4px; overflow-wrap: anywhere; }
.soft { color: var(--soft); margin: 0 0 12px; overflow-wrap: anywhere; }
.claims { padding: 10px 14px; border-left: 4px solid #c4261d; margin: 12px 0; } .claims p { margin: 2px 0; }
.notes { padding: 8px 14px; background: var(--note); margin: 12px 0; } .notes p { margin: 2px 0; overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 14px 0; }
dt { color: var(--soft); font-size: 12px; } dd { margin: 0; font-size: 18px; overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; height: auto; margin: 6px 0; } td svg { max-width: none; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin-top: 14px; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
"""

type Cell = str | Element
"""Content of a cell of a table, or the value of a figure."""


def document(title: str, head: Iterable[Element], body: Iterable[Element]) -> str:
    """A whole page. `head` follows the title in its head."""
    meta = (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
    )
    html = element("html", element("head", *meta, *head), element("body", *body), lang="en")
    return "<!DOCTYPE html>\n" + markup(html) + "\n"


def markup(node: Element) -> str:
    """Write an element as HTML. Every text in it is escaped."""
    return tostring(node, encoding="unicode", method="html")


def figures(named: Iterable[tuple[str, Cell]]) -> Element:
    """Figures with their names, side by side."""
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in named))


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, label: str = "", texts: Mapping[str, str] | None = None) -> Element:
    """A table, which scrolls sideways if it is too wide. `label` is its name for people who cannot see it. `texts` has the CSS class of
    columns without numbers, by heading."""
    classes = [{"class_": texts[name]} if texts and name in texts else {} for name in head]
    heads = (element("th", name, scope="col", **css) for name, css in zip(head, classes, strict=True))
    body = (element("tr", *(element("td", cell, **css) for cell, css in zip(row, classes, strict=True))) for row in rows)
    html_table = element("table", element("thead", element("tr", *heads)), element("tbody", *body))
    attributes = {"tabindex": "0", "role": "region", "aria_label": label} if label else {}  # so that a keyboard can scroll it
    return element("div", html_table, class_="table", **attributes)


def scrolled(drawn: Iterable[Element], label: str) -> Element:
    """Drawings below each other, which scroll sideways on a narrow screen. `label` is their name for people who cannot see them."""
    return element("div", *drawn, class_="charts", tabindex="0", role="region", aria_label=label)


def notes(sentences: Sequence[str]) -> list[Element]:
    """A box with sentences that the reader should know. Empty without sentences."""
    return [element("div", *(element("p", note) for note in sentences), class_="notes")] if sentences else []
