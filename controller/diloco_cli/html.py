"""HTML pages as trees of elements, so that no text of a job can become markup, and how every page looks. Pure.

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
"""What stands in one cell of a table, or beside the name of a figure."""


def document(title: str, head: Iterable[Element], body: Iterable[Element]) -> str:
    """Return a whole page. `head`: what follows its title."""
    meta = (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
    )
    html = element("html", element("head", *meta, *head), element("body", *body), lang="en")
    return "<!DOCTYPE html>\n" + markup(html) + "\n"


def markup(node: Element) -> str:
    """Return an element as HTML; every text in it is escaped."""
    return tostring(node, encoding="unicode", method="html")


def figures(named: Iterable[tuple[str, Cell]]) -> Element:
    """Return figures by name, side by side."""
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in named))


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, label: str = "", texts: Mapping[str, str] | None = None) -> Element:
    """Return a table that scrolls by itself where it is too wide. `label`: its name, for those who do not see it. `texts`: the class of the
    columns that have no numbers, by heading."""
    classes = [{"class_": texts[name]} if texts and name in texts else {} for name in head]
    heads = (element("th", name, scope="col", **said) for name, said in zip(head, classes, strict=True))
    body = (element("tr", *(element("td", cell, **said) for cell, said in zip(row, classes, strict=True))) for row in rows)
    found = element("table", element("thead", element("tr", *heads)), element("tbody", *body))
    attributes = {"tabindex": "0", "role": "region", "aria_label": label} if label else {}  # so that a keyboard can scroll it
    return element("div", found, class_="table", **attributes)


def scrolled(drawn: Iterable[Element], label: str) -> Element:
    """Return drawings below each other, which scroll sideways by themselves where the screen is too narrow to read them. `label`: their
    name."""
    return element("div", *drawn, class_="charts", tabindex="0", role="region", aria_label=label)


def notes(said: Sequence[str]) -> list[Element]:
    """Return a box with what a reader has to know of the page; [] for nothing."""
    return [element("div", *(element("p", note) for note in said), class_="notes")] if said else []
